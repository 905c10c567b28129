"""Which places of the target the states of a dump come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eagle3ref.align.boundary import Boundary
from eagle3ref.align.claims import claims_of
from eagle3ref.align.match import TensorMatch, find_match
from eagle3ref.align.measure import Measurement
from eagle3ref.align.recorded import match_sequences, recorded_boundaries, tokens_by_id, walk_trace
from eagle3ref.align.rows import ComparedSequence, possible_shifts, select_rows
from eagle3ref.align.sentence import AlignVerdict, capture_points_of, sentence_of, verdict_of
from eagle3ref.align.walk import walk_target
from eagle3ref.dumps import Dump
from eagle3ref.target import Target
from eagle3ref.target.base import dtype_of
from eagle3ref.trace import Trace

DEFAULT_MAX_TOKENS = 64
DEFAULT_MAX_SEQUENCES = 4
ROUNDING_MAKES_LESS = 0.02  # states of servers in bfloat16 are within 0.01 of the target in float32


@dataclass(frozen=True)
class Alignment:
    """A dump beside its target.

    Args:
        dump, reference: what was compared with what.
        matches: one for each dumped tensor.
        num_layers: of the target.
        model_type: of the target.
        num_sequences: that were compared.
        notes: what a reader should know: what was left out, what could not be told.
    """

    dump: str
    reference: str
    matches: tuple[TensorMatch, ...]
    num_layers: int
    model_type: str
    num_sequences: int
    notes: tuple[str, ...]

    @property
    def verdict(self) -> AlignVerdict:
        """Whether the labels are right."""
        return verdict_of(self.matches)

    @property
    def sentence(self) -> str:
        """What the labels should have been."""
        return sentence_of(self.matches)

    @property
    def capture_points(self) -> tuple[int, ...] | None:
        """Of the aux states, in the order of the dump; None if one of them is no residual stream."""
        return capture_points_of(self.matches)

    def to_dict(self) -> dict[str, Any]:
        """For programs; what is unknown is null."""
        return {
            "dump": self.dump,
            "reference": self.reference,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "capture_points": None if self.capture_points is None else list(self.capture_points),
            "num_sequences": self.num_sequences,
            "tensors": [match.to_dict() for match in self.matches],
            "notes": list(self.notes),
        }


def align(
    dump: Dump,
    reference: Trace | Target,
    *,
    claimed: Sequence[str] | None = None,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    max_sequences: int = DEFAULT_MAX_SEQUENCES,
    on_layer: Callable[[int], None] | None = None,
) -> Alignment:
    """Find the place in the target that each state of a dump comes from.

    Every state is held against every place (``Boundary``), with its rows where the dump says and one or two positions
    off, and from the end where rows in front may be missing. A few tokens are enough: a target is run once on the
    dump's own tokens, layer by layer, and no layer is kept.

    Args:
        dump: from ``read_dump``.
        reference: the target; or a trace of it, whose recorded capture points are then the only candidates. Sequences
            of a trace are found by their tokens, not by their ids.
        claimed: what the owner of the dump calls its states, in order, e.g. ``("embed", "layer3", "layer31")``.
            None: what their labels say, or else the capture points that the reader of the dump believes.
        max_tokens: rows of each sequence that are compared.
        max_sequences: sequences that are compared.
        on_layer: called with the number of layers done.

    Raises:
        Eagle3RefError: states of another width, no tokens, tokens outside the vocabulary, no text in common with the
            trace, or names that name no layer.
    """
    identity = reference.header.target if isinstance(reference, Trace) else reference.config
    tokens = tokens_by_id(reference) if isinstance(reference, Trace) and _lacks_tokens(dump) else {}
    selected = select_rows(dump, identity.hidden_size, tokens, max_sequences=max_sequences, max_tokens=max_tokens)
    # Before the target runs: that may take hours, and names that do not fit are found at once.
    claims = claims_of(dump, tuple(selected[0].states), claimed, identity.num_layers)
    if isinstance(reference, Trace):
        compared = _beside_trace(selected, reference)
    else:
        compared = _beside_target(selected, reference, on_layer or (lambda _: None))
    measured = compared.measured
    matches = tuple(
        find_match(
            label,
            claims[label],
            measured.distances[label],
            _rounding(measured.sequences[0].states[label].dtype, compared.dtype),
            shown=measured.shown_row(label),
            bad_rows=measured.bad_rows(label),
            looked_at=compared.looked_at,
        )
        for label in measured.labels
    )
    bad = tuple(f"{match.label}: {match.bad_rows}" for match in matches if match.bad_rows is not None)
    return Alignment(
        dump=str(dump.path),
        reference=compared.name,
        matches=matches,
        num_layers=identity.num_layers,
        model_type=identity.model_type,
        num_sequences=len(measured.sequences),
        notes=bad + tuple(_far_off(matches)) + compared.notes,
    )


@dataclass(frozen=True, eq=False)
class _Compared:
    measured: Measurement
    dtype: torch.dtype
    name: str
    looked_at: frozenset[Boundary] | None = None
    notes: tuple[str, ...] = ()


def _beside_trace(selected: Sequence[ComparedSequence], trace: Trace) -> _Compared:
    pairs = match_sequences(selected, trace)
    sequences = [sequence for sequence, _ in pairs]
    measured = Measurement(sequences, possible_shifts(sequences))
    walk_trace(trace, pairs, measured.visit)
    looked_at = recorded_boundaries(trace, trace[pairs[0][1]])
    notes = []
    if len(sequences) < len(selected):
        notes.append(f"{len(selected) - len(sequences)} sequences of the dump are not in the trace and were left out")
    points = ", ".join(map(str, trace.header.capture_points))
    notes.append(f"the trace holds points {points}; others, normed states and halves of layers were not looked at")
    return _Compared(measured, trace.header.torch_dtype, str(trace.path), frozenset(looked_at), tuple(notes))


def _beside_target(sequences: Sequence[ComparedSequence], target: Target, on_layer: Callable[[int], None]) -> _Compared:
    shifts = possible_shifts(sequences)
    measured = Measurement(sequences, shifts)
    texts = [sequence.tokens[: sequence.num_positions(shifts)] for sequence in sequences]
    walk_target(target, texts, measured.visit, on_layer)
    dtype = dtype_of(target)
    return _Compared(measured, dtype, target.config.path or target.config.name)


def _far_off(matches: Sequence[TensorMatch]) -> Iterator[str]:
    """What a right place does not say: whether the weights are those of the target."""
    far = [m for m in matches if m.verdict == "same" and m.best is not None and m.best.error > ROUNDING_MAKES_LESS]
    if far:
        errors = ", ".join(f"{match.label} {match.best.error:.1%}" for match in far if match.best is not None)
        yield (
            f"off by more than rounding alone makes: {errors}; quantized weights do that, "
            "and so does another checkpoint of the same model"
        )


def _lacks_tokens(dump: Dump) -> bool:
    return bool(dump.ids) and dump.sequence(dump.ids[0]).tokens is None


def _rounding(*dtypes: torch.dtype) -> float:
    """Half a unit in the last place of the coarsest dtype, relative: what storing alone may change."""
    return max(torch.finfo(dtype).eps for dtype in dtypes) / 2
