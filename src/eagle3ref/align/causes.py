"""What went wrong with a dump, named: another order, a layer twice, rows shifted, normed, taken inside a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from eagle3ref.align.claims import Convention
from eagle3ref.align.match import TensorMatch
from eagle3ref.align.measure import NOT_FINITE, Place
from eagle3ref.align.rival import NEARER_ROWS
from eagle3ref.align.rows import NEAR_SHIFTS, Shift

CONVENTIONS: tuple[Convention, ...] = ("inputs", "outputs")


def aux_of(matches: Sequence[TensorMatch]) -> list[TensorMatch]:
    """The states that a draft is to read: all but the one that is called final."""
    return [match for match in matches if match.claim is None or not match.claim.is_final]


def quoted(matches: Sequence[TensorMatch]) -> str:
    """Their labels."""
    return ", ".join(f'"{match.label}"' for match in matches)


def convention_that_holds(matches: Sequence[TensorMatch]) -> Convention | None:
    """By which all labels but that of the final state are right about the places named; None if by neither."""
    named = [(match.claim, match.boundary) for match in aux_of(matches) if match.claim is not None and match.boundary]
    for convention in CONVENTIONS:
        if all(claim.holds(boundary, convention) for claim, boundary in named):
            return convention
    return None


def wrong_finals(matches: Sequence[TensorMatch]) -> list[TensorMatch]:
    """States that are called final and are something else, or normed where they are said to be raw."""
    finals = [(match, match.claim, match.boundary) for match in matches if match.claim and match.claim.is_final]
    return [match for match, claim, place in finals if place is not None and not claim.holds(place, "inputs")]


def causes(matches: Sequence[TensorMatch]) -> tuple[str, ...]:
    """Everything that is wrong with what was dumped or how it is called, one clause each."""
    named = (_labels, _final, _duplicates, _shifts, _kinds, _scaled, _mixed, _ambiguous, _nothing, _not_finite)
    return tuple(clause for cause in named for clause in cause(matches))


def _labels(matches: Sequence[TensorMatch]) -> Iterator[str]:
    """How the labels and the places differ as lists, where they do and all places are streams."""
    aux = [match for match in aux_of(matches) if match.claim is not None]
    found = [match.boundary.capture_point for match in aux if match.boundary is not None]
    points = [point for point in found if point is not None]
    if convention_that_holds(matches) is not None or len(points) < len(aux) or not aux:
        return
    readings = [[match.claim.point(convention) for match in aux if match.claim] for convention in CONVENTIONS]
    offsets = {point - claim for point, claim in zip(points, readings[0], strict=True)}
    if len(offsets) == 1:
        offset = offsets.pop()
        why = ": they name the layers left where those entered are meant" if offset == 1 else ""
        yield f"every label is {abs(offset)} too {'low' if offset > 0 else 'high'}{why}"
        return
    if all(point in either for point, *either in zip(points, *readings, strict=True)):
        yield "some labels name the layer entered, and others the layer left"
        return
    for claimed in readings:
        if sorted(claimed) == sorted(points):
            yield f"the right layers in another order, {_list(points)} where the labels say {_list(claimed)}"
            return
        if len(points) > 1 and points[:-1] == claimed[1:]:
            yield "the labels are one state behind: each names the state before its own"
            return
        if len(points) > 1 and points[1:] == claimed[:-1]:
            yield "the labels are one state ahead: each names the state after its own"
            return


def _final(matches: Sequence[TensorMatch]) -> Iterator[str]:
    for match in wrong_finals(matches):
        if match.claim is not None:
            is_its_name = match.claim.text == match.label
            called = "no final state" if is_its_name else f'called "{match.claim.text}"'
            yield f'"{match.label}" is {called}'


def _duplicates(matches: Sequence[TensorMatch]) -> Iterator[str]:
    first: dict[object, TensorMatch] = {}
    for match in matches:
        if match.boundary is not None and match.best is not None:
            other = first.setdefault(match.best.place, match)
            if other is not match:
                yield f"{quoted([other, match])} are one and the same state, dumped twice"


def _shifts(matches: Sequence[TensorMatch]) -> Iterator[str]:
    groups: dict[Shift, list[TensorMatch]] = {}
    for match in matches:
        if match.boundary is not None and match.best is not None and not match.best.place.shift.is_none:
            groups.setdefault(match.best.place.shift, []).append(match)
    for shift, group in groups.items():
        rows = "every row" if len(group) == len(matches) else f"every row of {quoted(group)}"
        steps = f"{abs(shift.rows)} position{'s' * (abs(shift.rows) != 1)}"
        if shift.anchor == "start":
            yield f"{rows} belongs to the token {steps} {'later' if shift.rows > 0 else 'earlier'} than the dump says"
        else:
            last = f"the token {steps} before the last one" if shift.rows else "the last token"
            yield f"rows in front are missing, as of a cached prefix: the last row of {quoted(group)} belongs to {last}"


def _kinds(matches: Sequence[TensorMatch]) -> Iterator[str]:
    aux = aux_of(matches)
    if not aux:
        yield "no aux state was dumped: the final one alone is what servers hand over under the flag EAGLE, not EAGLE3"
    yield from _clause(
        aux,
        lambda match: match.boundary is not None and match.boundary.kind == "final_norm",
        "{} the final state, which servers hand over under the flag EAGLE, not EAGLE3",
    )
    yield from _clause(
        aux,
        lambda match: match.boundary is not None and match.boundary.kind in ("input_norm", "mlp_norm"),
        "{} normed, where a draft reads the raw residual stream",
    )
    yield from _clause(
        aux,
        lambda match: match.boundary is not None and match.boundary.kind in ("attention", "mlp"),
        "{} taken before the addition to the residual stream",
    )
    yield from _clause(
        aux,
        lambda match: match.boundary is not None and match.boundary.kind == "after_attention",
        "{} taken in the middle of a layer, where a draft reads the stream between two layers",
    )


def _scaled(matches: Sequence[TensorMatch]) -> Iterator[str]:
    for match in matches:
        if match.verdict == "scaled" and match.best is not None:
            yield f'"{match.label}" is scaled: its rows are {match.best.norm_ratio:.3g} times as long as the target\'s'


def _mixed(matches: Sequence[TensorMatch]) -> Iterator[str]:
    for match in matches:
        if match.verdict == "mixed" and match.best is not None and match.runner_up is not None:
            yield (
                f'only {match.nearer_rows:.0%} of the rows of "{match.label}" are the {match.best.place.boundary}, '
                f"and others the {_beside(match.runner_up.place, match.best.place)}"
            )


def _nothing(matches: Sequence[TensorMatch]) -> Iterator[str]:
    nothing = [match for match in matches if match.verdict == "none"]
    unusable = [match for match in nothing if match.num_rows == 0]
    if unusable:
        why = unusable[0].bad_rows or "no row has a partner in the target's run"
        yield f"nothing can be compared with {quoted(unusable)}: {why}"
    among_recorded = [match for match in nothing if match.num_rows and match.only_recorded]
    if among_recorded:
        yield f"no point that the trace holds fits {quoted(among_recorded)}; give the target's folder to look at all"
    others = [match for match in nothing if match.num_rows and not match.only_recorded]
    if others:
        yield (
            f"nothing fits {quoted(others)} better than it fits rows of other tokens: "
            f"other tokens, rows moved by more than {NEAR_SHIFTS[-1]}, or another model"
        )


def _not_finite(matches: Sequence[TensorMatch]) -> Iterator[str]:
    for match in matches:
        if match.num_rows and match.bad_rows is not None and match.bad_rows.startswith(NOT_FINITE):
            yield f'"{match.label}" has rows of {NOT_FINITE}'


def _ambiguous(matches: Sequence[TensorMatch]) -> Iterator[str]:
    for match in matches:
        if match.verdict != "ambiguous" or match.best is None:
            continue
        place = match.best.place.boundary
        if match.nearer_rows >= NEARER_ROWS and match.unrecorded:
            missing = " and ".join(str(boundary.layer) for boundary in match.unrecorded)
            yield (
                f'"{match.label}" is near the {place}, and the trace does not hold point {missing} to compare it with: '
                "give the target's folder"
            )
        elif match.runner_up is not None:
            other = _beside(match.runner_up.place, match.best.place)
            yield f'"{match.label}" is as near to the {place} as to the {other}'


def _beside(other: Place, best: Place) -> str:
    return f"{other.boundary}{'' if other.shift == best.shift else ' with its rows moved'}"


def _clause(matches: Sequence[TensorMatch], holds: Callable[[TensorMatch], bool], text: str) -> Iterator[str]:
    """One clause for all that it holds of."""
    found = [match for match in matches if holds(match)]
    if found:
        yield text.format(f"{quoted(found)} {'is' if len(found) == 1 else 'are'}")


def _list(points: Sequence[int]) -> str:
    return ", ".join(map(str, points))
