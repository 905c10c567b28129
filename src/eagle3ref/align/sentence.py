"""One sentence: what the labels of a dump should have been."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from eagle3ref.align.causes import aux_of, causes, convention_that_holds, quoted, wrong_finals
from eagle3ref.align.match import TensorMatch

AlignVerdict = Literal["right", "wrong", "cannot tell"]


def verdict_of(matches: Sequence[TensorMatch]) -> AlignVerdict:
    """Whether the labels are right.

    A label that says nothing is never wrong. States that no draft can read are: no stream, rows elsewhere, scaled, the
    same one twice, from two places or none in this target, or the final one alone.
    """
    if any(match.verdict in ("mixed", "none") for match in matches) or wrong_finals(matches) or not aux_of(matches):
        return "wrong"
    if convention_that_holds(matches) is None:
        return "wrong"
    places = [match.best.place for match in matches if match.boundary is not None and match.best is not None]
    found = [match for match in matches if match.boundary is not None]
    is_raw = all(match.boundary.kind == "stream" for match in aux_of(found) if match.boundary is not None)
    is_sound = all(place.shift.is_none for place in places) and len(set(places)) == len(places)
    if not is_raw or not is_sound or any(match.verdict == "scaled" for match in found):
        return "wrong"
    return "right" if len(found) == len(matches) else "cannot tell"


def capture_points_of(matches: Sequence[TensorMatch]) -> tuple[int, ...] | None:
    """The capture points of the aux states, in the order of the dump; None if one of them is not a stream."""
    points = [None if match.boundary is None else match.boundary.capture_point for match in aux_of(matches)]
    known = tuple(point for point in points if point is not None)
    return known if known and len(known) == len(points) else None


def sentence_of(matches: Sequence[TensorMatch]) -> str:
    """What the states are, whether their labels say so, and every cause why not."""
    parts = [_head(matches), *filter(None, [_identities(matches)])]
    return f"{': '.join(parts)}{''.join(f'; {clause}' for clause in causes(matches))}."


def _head(matches: Sequence[TensorMatch]) -> str:
    verdict, convention = verdict_of(matches), convention_that_holds(matches)
    claims = [match.claim for match in aux_of(matches) if match.claim is not None]
    labels_are = _labels_are([claim.text for claim in claims], all(claim.is_believed for claim in claims))
    if verdict == "cannot tell":
        return f"It cannot be told whether {labels_are} right" if claims else "Not every state has a place of its own"
    if convention is None:
        return f"{labels_are[0].upper()}{labels_are[1:]} wrong"
    if verdict == "wrong":
        return "The dump is wrong"
    if not claims:
        return "The labels say nothing of layers"
    has_choice = any(claim.as_input != claim.as_output for claim in claims)
    return f"{labels_are[0].upper()}{labels_are[1:]} right" + (f", as {convention} of layers" if has_choice else "")


def _labels_are(texts: list[str], are_believed: bool) -> str:
    if are_believed:
        return f"the capture points that its format suggests ({', '.join(texts)}) are"
    names = ", ".join(f'"{text}"' for text in texts)
    return f"the label {names} is" if len(texts) == 1 else f"the labels {names} are"


def _identities(matches: Sequence[TensorMatch]) -> str:
    """Streams told together, as inputs and as outputs; everything else by its own name."""
    aux, points = aux_of(matches), capture_points_of(matches)
    told = [] if points is None else [_streams(points, aux)]
    others = [match for match in matches if points is None or match not in aux]
    return "; ".join(told + [f'"{match.label}" is the {match.boundary}' for match in others if match.boundary])


def _streams(points: tuple[int, ...], aux: Sequence[TensorMatch]) -> str:
    boundaries = [match.boundary for match in aux if match.boundary is not None]
    listed = ", ".join(map(str, points))
    if len(points) == 1:
        return f"{quoted(aux)} is the {boundaries[0]}, capture point ({listed},)"
    if 0 in points or boundaries[0].num_layers in points:  # they enter or leave no layer
        return f"these states are the {', the '.join(map(str, boundaries))}, capture points ({listed})"
    outputs = ", ".join(str(point - 1) for point in points)
    return f"these states are the inputs of layers {listed} = outputs of layers {outputs}, capture points ({listed})"
