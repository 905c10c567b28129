"""How near every dumped state is to every boundary, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eagle3ref.align.boundary import Boundary
from eagle3ref.align.rows import ComparedSequence, Shift, usable_rows

SHOWN_VALUES = 5
NOT_FINITE = "NaN or infinity"
Sample = tuple[float, tuple[float, ...]]  # norm of a row, and its first values


@dataclass(frozen=True)
class Place:
    """Where a state may come from: a boundary, its rows laid on positions in some way."""

    boundary: Boundary
    shift: Shift


@dataclass(frozen=True, eq=False)
class Distances:
    """One dumped state beside one place.

    Args:
        error: [R], |dumped - target| / |dumped| of each row; nan where there is nothing to compare.
        cosine: [R], between the two.
        norm_ratio: [R], |dumped| / |target|.
        unrelated: [R], as ``error`` but with the target's row of another token: what a wrong place looks like.
        shown: |target| and its first values at the row that is shown; None if that row has no partner here.
    """

    error: Tensor
    cosine: Tensor
    norm_ratio: Tensor
    unrelated: Tensor
    shown: Sample | None


class Measurement:
    """Collects the distances while boundaries pass by; holds a few numbers for each row, never a boundary.

    Args:
        sequences: what was dumped.
        shifts: the ways to lay rows on positions that are tried.
    """

    def __init__(self, sequences: Sequence[ComparedSequence], shifts: Sequence[Shift]) -> None:
        self.sequences, self.shifts = sequences, shifts
        self.labels = tuple(sequences[0].states)
        self.distances: dict[str, dict[Place, Distances]] = {label: {} for label in self.labels}
        self._dumped = [_Dumped.of(sequence) for sequence in sequences]
        self._num_usable = torch.stack([dumped.usable.sum(1) for dumped in self._dumped]).sum(0)

    def visit(self, boundary: Boundary, states: Sequence[Tensor]) -> None:
        """Compare one boundary, [T, C] for each sequence, with all that was dumped."""
        for shift in self.shifts:
            firsts = [sequence.first_position(shift) for sequence in self.sequences]
            pairs = list(zip(self._dumped, states, firsts, strict=True))
            found = torch.cat([dumped.compare(state, first) for dumped, state, first in pairs], dim=2)
            # A shift that leaves most rows without a partner is no way to read the dump.
            is_possible = torch.isfinite(found[0]).sum(1) * 2 >= self._num_usable
            for index, label in enumerate(self.labels):
                if is_possible[index] and self._num_usable[index]:
                    shown = (dumped.partner(index, state, first) for dumped, state, first in pairs)
                    error, cosine, norm_ratio, unrelated = found[:, index]
                    self.distances[label][Place(boundary, shift)] = Distances(
                        error, cosine, norm_ratio, unrelated, next(filter(None, shown), None)
                    )

    def shown_row(self, label: str) -> Sample | None:
        """Norm and first values of the dumped row that is shown: the middle one of the first sequence with any."""
        index = self.labels.index(label)
        for sequence, dumped in zip(self.sequences, self._dumped, strict=True):
            if (row := dumped.shown[index]) is not None:
                return _sample(sequence.states[label][row])
        return None

    def bad_rows(self, label: str) -> str | None:
        """Rows that could not be used, told with sequence and position; None if all are sound."""
        states = [(sequence, sequence.states[label]) for sequence in self.sequences]
        count = sum(int((~usable_rows(state)).sum()) for _, state in states)
        for kind in (NOT_FINITE, "zeros"):
            for sequence, state in states:
                is_bad = ~torch.isfinite(state).all(1) if kind == NOT_FINITE else ~usable_rows(state)
                if bool(is_bad.any()):
                    position = sequence.first_row + int(is_bad.nonzero()[0])
                    return f"{kind}, first at position {position} of sequence {sequence.id!r}; {count} rows left out"
        return None


@dataclass(frozen=True, eq=False)
class _Dumped:
    """All L states of one sequence, stacked: rows [L, R, C], which of them are usable, their norms, the row shown."""

    rows: Tensor
    usable: Tensor
    norms: Tensor
    shown: tuple[int | None, ...]

    @classmethod
    def of(cls, sequence: ComparedSequence) -> _Dumped:
        kinds = {state.dtype for state in sequence.states.values()}
        kind = torch.float64 if torch.float64 in kinds else torch.float32
        states = [state.to("cpu", kind) for state in sequence.states.values()]
        rows = pad_sequence(states, batch_first=True, padding_value=torch.nan)
        usable = torch.stack([usable_rows(state) for state in rows])
        rows = torch.where(usable.unsqueeze(2), rows, 1)
        return cls(rows, usable, rows.norm(dim=2), tuple(map(_middle, usable)))

    def compare(self, target: Tensor, first: int) -> Tensor:
        """[4, L, R] as in ``Distances``, nan where a row has no partner; row 0 lies on position ``first``."""
        found = torch.full((4, *self.usable.shape), torch.nan, dtype=torch.float64)
        begin, end = max(0, -first), min(self.usable.shape[1], len(target) - first)
        if begin >= end:
            return found
        kind = torch.promote_types(self.rows.dtype, target.dtype)
        ours, theirs = target[first + begin : first + end].to("cpu", kind), self.rows[:, begin:end].to(kind)
        norms, their_norms = ours.norm(dim=1), self.norms[:, begin:end]
        found[0, :, begin:end] = (theirs - ours).norm(dim=2) / their_norms
        found[1, :, begin:end] = torch.einsum("lrc,rc->lr", theirs, ours) / (norms * their_norms)
        found[2, :, begin:end] = their_norms / norms
        found[3, :, begin:end] = (theirs - ours.roll(len(ours) // 2, 0)).norm(dim=2) / their_norms
        if len(ours) == 1:
            found[3, :, begin:end] = 1.0  # as far as a row is from nothing
        return found.masked_fill(~self.usable, torch.nan)

    def partner(self, index: int, target: Tensor, first: int) -> Sample | None:
        """The target's row that lies under the one shown of a state."""
        row = self.shown[index]
        return None if row is None or not 0 <= first + row < len(target) else _sample(target[first + row])


def _middle(usable: Tensor) -> int | None:
    """A row away from both ends: the first token of a text is unlike all others in most models."""
    rows = usable.nonzero().flatten()
    return int(rows[len(rows) // 2]) if len(rows) else None


def _sample(row: Tensor) -> Sample:
    return float(row.float().norm()), tuple(row[:SHOWN_VALUES].float().tolist())
