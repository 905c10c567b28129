"""A trace in the place of the target: the boundaries that it recorded, for the tokens that it shares with a dump."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from eagle3ref.align.boundary import Boundary
from eagle3ref.align.rows import ComparedSequence
from eagle3ref.align.walk import Visit
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace import RecordedSequence, Trace

FEWEST_COMMON = 4  # tokens in common, behind the first row of the dump


def tokens_by_id(trace: Trace) -> dict[str, Tensor]:
    """id -> int64 [T], for dumps without tokens."""
    return {sequence.id: sequence.tokens for sequence in trace}


def match_sequences(dumped: Sequence[ComparedSequence], trace: Trace) -> list[tuple[ComparedSequence, int]]:
    """For each dumped sequence the number of the recorded one that starts with most of its tokens.

    States depend on the tokens before them alone, so two texts can be compared as far as they are equal. The dumped
    ones are cut to that. Ids do not matter; sequences with too few tokens in common are left out.

    Raises:
        Eagle3RefError: none is left.
    """
    recorded = [sequence.tokens for sequence in trace]
    pairs = []
    for sequence in dumped:
        common = [_common(sequence.tokens, tokens) for tokens in recorded]
        longest = max(common, default=0)
        if longest >= min(sequence.first_row + FEWEST_COMMON, len(sequence.tokens)):
            rows = longest - sequence.first_row
            states = {label: state[:rows] for label, state in sequence.states.items()}
            pairs.append((replace(sequence, states=states), common.index(longest)))
    if not pairs:
        raise Eagle3RefError(
            f"aligning with the trace {trace.path}",
            found=f"no sequence that starts like one of the {len(dumped)} of the dump",
            expected=f"at least {FEWEST_COMMON} tokens in common behind the dump's first row",
            action="Give the target's folder in place of the trace: it is run on the dump's own tokens.",
        )
    return pairs


def walk_trace(trace: Trace, pairs: Sequence[tuple[ComparedSequence, int]], visit: Visit) -> None:
    """Show every recorded boundary to ``visit``; as long as the dumped sequence and the recorded one agree."""
    header = trace.header
    sequences = [trace[number] for _, number in pairs]
    lengths = [_common(pair[0].tokens, recorded.tokens) for pair, recorded in zip(pairs, sequences, strict=True)]
    depth = header.target.num_layers
    for point in header.capture_points:
        visit(Boundary("stream", point, depth), _cut([s.aux_hidden_states[point] for s in sequences], lengths))
    finals = [sequence.final_hidden_state for sequence in sequences]
    if None not in finals:
        visit(Boundary("final_norm", depth, depth), _cut(finals, lengths))


def recorded_boundaries(trace: Trace, sequence: RecordedSequence) -> set[Boundary]:
    """What ``walk_trace`` shows."""
    depth = trace.header.target.num_layers
    streams = {Boundary("stream", point, depth) for point in trace.header.capture_points}
    return streams if sequence.final_hidden_state is None else {*streams, Boundary("final_norm", depth, depth)}


def _common(left: Tensor, right: Tensor) -> int:
    """How many tokens from the first on are equal."""
    length = min(len(left), len(right))
    differ = (left[:length] != right[:length].to(left.device)).nonzero()
    return int(differ[0]) if len(differ) else length


def _cut(states: Sequence[Tensor | None], lengths: Sequence[int]) -> list[Tensor]:
    return [state[:length] for state, length in zip(states, lengths, strict=True) if state is not None]
