"""Faults of the target's hidden states: which ones the draft is given, in what order, at which token, how exact."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from eagle3ref.diagnose.bench import Bench
from eagle3ref.diagnose.hypothesis import Cause, Hypothesis, LeftOut
from eagle3ref.diagnose.wiring import Embedding, Head, Stream, Vocabulary, Wiring
from eagle3ref.engines import default_capture_points

_MOST_PERMUTED = 3  # streams of which every order is tried; of more, only the reversed one
_FLAG_FIX = "Start the server with --speculative-algorithm EAGLE3 instead of EAGLE."
_IDS_FIX = "Correct eagle_aux_hidden_state_layer_ids for this engine; `eagle3ref explain` says what it must be."
_DEAD = "acceptance length 1.00 or a little above, whatever the prompt"


def state_faults(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    """All of them; needs decide which can be replayed."""
    yield from _flags(bench)
    yield from _ids(bench)
    yield from _orders(bench)
    yield from _shifts()
    yield from _damaged(bench)


def _flags(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    config, layers = bench.draft.config, bench.trace.header.target.num_layers
    final: tuple[tuple[str, Stream, str], ...] = (
        ("eagle-flag", "final", "after the final norm"),
        ("eagle-flag-pre-norm", layers, "before the final norm"),
    )
    for name, stream, which in final:
        if config.hidden_size != config.target_hidden_size:
            reason = "The target's state is of another width than the draft, so no engine can skip fc."
            yield LeftOut(name, "wrong_flag", reason)
        elif bench.shared is None:
            reason = "The engine would take the target's head and embedding, and no target was given."
            yield LeftOut(name, "wrong_flag", reason, "Pass the target (--target).")
        elif action := bench.lacking((stream,)):
            reason = f"The trace lacks the target's final state {which}."
            yield LeftOut(name, "wrong_flag", reason, action, (stream,))
        else:
            yield Hypothesis(
                name,
                "wrong_flag",
                f"It runs the draft as EAGLE-1: the target's final state {which} skips fc. The head is the target's, "
                "cut to its first draft_vocab_size rows, whose places are taken for target ids.",
                _FLAG_FIX,
                _DEAD,
                _as_eagle_1(bench, stream),
            )


def _as_eagle_1(bench: Bench, stream: Stream) -> Wiring:
    """SGLang 0.5.23: the draft's logits processor cuts the target's scores to the draft's vocabulary (recorded)."""
    config, shared = bench.draft.config, bench.shared
    own = shared is not None and shared.has_embedding(bench.draft.embed_tokens.weight)
    embedding: Embedding = "draft" if own else "target"
    head: Head = "target" if config.draft_vocab_size == config.vocab_size else "target rows"
    vocabulary: Vocabulary = "d2t" if head == "target" else "ignored"
    return Wiring(streams=(stream,), bypasses_fc=True, head=head, vocabulary=vocabulary, embedding=embedding)


def _ids(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    points = bench.draft.capture_points
    for sign, step in (("plus", 1), ("minus", -1)):
        moved = tuple(point + step for point in points)
        direction = "the outputs of the layers whose inputs" if step > 0 else "one layer earlier than"
        does = f"It captures {direction} the draft was trained on: {_ids_of(moved)} instead of {_ids_of(points)}."
        yield from _captured(bench, f"capture-{sign}-1", does, moved, "a few per cent below, at every position")
        for place in range(len(points)):
            one = points[:place] + (points[place] + step,) + points[place + 1 :]
            does = f"One capture id is off by one: {_ids_of(one)} instead of {_ids_of(points)}."
            name = f"capture-{_nth(place)}-{sign}-1"
            yield from _captured(bench, name, does, one, "a little below, at every position")
    first = (0, *points[1:])
    does = f"An id of -1 captures the embedding output in place of the first stream: {_ids_of(first)}."
    yield from _captured(bench, "capture-embedding-first", does, first, "clearly below, at every position")
    default = default_capture_points(bench.trace.header.target.num_layers)
    if len(default) == len(points):
        does = f"It does not read the ids and captures its default: {_ids_of(default)}."
        yield from _captured(bench, "capture-default", does, default, "below, at every position")


def _captured(
    bench: Bench, name: str, does: str, streams: tuple[int, ...], looks: str
) -> Iterator[Hypothesis | LeftOut]:
    if streams == bench.draft.capture_points:
        yield LeftOut(name, "aux_layer_ids", "These are the streams that the draft was trained on.")
    elif not all(0 <= point <= bench.trace.header.target.num_layers for point in streams):
        yield LeftOut(name, "aux_layer_ids", f"The target has no such layers: {_ids_of(streams)}.")
    elif action := bench.lacking(streams):
        reason = f"The trace lacks some of the capture points {_ids_of(streams)}."
        yield LeftOut(name, "aux_layer_ids", reason, action, streams)
    else:
        yield Hypothesis(name, "aux_layer_ids", does, _IDS_FIX, looks, Wiring(streams=streams))


def _orders(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    points = bench.draft.capture_points
    if len(points) == 1:
        yield LeftOut("capture-order", "aux_layer_ids", "The draft fuses a single stream.")
        return
    orders = list(permutations(points))[1:] if len(points) <= _MOST_PERMUTED else [points[::-1]]
    for order in orders:
        name = "capture-order-" + "-".join(str(points.index(point) + 1) for point in order)
        does = f"It hands the streams to fc in another order: {_ids_of(order)}."
        fix = (
            "Write the ids in ascending order; an engine hands the streams over in the order of the layers or the ids."
        )
        yield Hypothesis(name, "aux_layer_ids", does, fix, "near 1.00 at every position", Wiring(streams=order))
    for place, point in enumerate(points):
        does = f"Every chunk of fc gets the same stream, {point}."
        fix = (
            "Check that ids differ, and that the capture hook keeps a copy: a buffer used again gives one state thrice."
        )
        streams = (point,) * len(points)
        yield Hypothesis(
            f"capture-all-{_nth(place)}",
            "aux_layer_ids",
            does,
            fix,
            "near 1.00 at every position",
            Wiring(streams=streams),
        )


def _shifts() -> Iterator[Hypothesis | LeftOut]:
    cause: Cause = "token_shift"
    fix = "An error of the engine: the state at p goes with the token p + 1. Update it, or report it with this table."
    low = "far below, at every position, with short prompts too"
    does = "The token is not shifted: row p takes the state and the token of the same position."
    yield Hypothesis("token-not-shifted", cause, does, fix, low, Wiring(token_lag=1))
    does = "The states are one row late: row p takes the state of p - 1 and the token p + 1."
    yield Hypothesis("states-one-late", cause, does, fix, low, Wiring(state_lag=1))
    does = "The drafts start from the row before the last one: an index of the last row that is one too small."
    yield Hypothesis("drafts-from-row-before", "token_shift", does, fix, low, Wiring(first_row_lag=1))
    reason = "Row p would take the token p + 2, which is not drawn yet when the drafts start from the last row."
    yield LeftOut("token-one-ahead", cause, reason)
    reason = "Row p would take the state of p + 1, which the target has not computed yet when the drafts start."
    yield LeftOut("states-one-early", cause, reason)


def _damaged(bench: Bench) -> Iterator[Hypothesis | LeftOut]:
    places = tuple(range(len(bench.draft.capture_points)))
    does = "The draft gets zeros for all states: capture is off, or a wrapper does not hand them on."
    fix = "Check that the target's model class supports capture, and that eagle_config does not switch it off."
    near_one = "slightly above 1.00; higher on repetitive text, which the tokens alone predict"
    yield Hypothesis("states-zero", "aux_not_captured", does, fix, near_one, Wiring(zeroed=places))
    for place in places if len(places) > 1 else ():
        does = f"The {_nth(place)} stream is zeros."
        name, wiring = f"states-{_nth(place)}-zero", Wiring(zeroed=(place,))
        yield Hypothesis(name, "aux_not_captured", does, fix, "far below, at every position", wiring)
    for rounding in ("int8", "fp8"):
        does = f"The states pass through {rounding}, one scale for each token."
        fix = "Compare with an unquantized target or an unquantized transfer of hidden states."
        name, wiring = f"states-{rounding}", Wiring(rounding="int8" if rounding == "int8" else "fp8")
        yield Hypothesis(name, "quant_rotation", does, fix, "a little below or not at all", wiring)
    does = "The target's residual stream is rotated (QuaRot) and the draft was trained on the unrotated one."
    fix = "Serve an engine version that rotates the states back for the draft, or train the draft on this target."
    yield Hypothesis("states-rotated", "quant_rotation", does, fix, "about 1.07", Wiring(rotated=True))
    does = "States and embedding are both in the target's rotated basis."
    yield Hypothesis(
        "states-and-embedding-rotated", "quant_rotation", does, fix, _DEAD, Wiring(rotated=True, embedding="rotated")
    )


def _ids_of(points: tuple[int, ...]) -> str:
    return ",".join(map(str, points))


def _nth(place: int) -> str:
    return ("first", "second", "third")[place] if place < 3 else f"{place + 1}th"
