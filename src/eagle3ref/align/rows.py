"""Which rows of a dump are compared: a few tokens of a few sequences, each state on its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from eagle3ref.dumps import Dump, DumpedSequence
from eagle3ref.errors import Eagle3RefError

FINAL_LABEL = "final"
NEAR_SHIFTS = range(-2, 3)


@dataclass(frozen=True, order=True)
class Shift:
    """How rows are laid on positions.

    Args:
        anchor: ``start``: row 0 belongs to the token that the dump says. ``end``: the last row belongs to the last
            token, whatever the dump says of the first.
        rows: positions further on.
    """

    anchor: str
    rows: int

    @property
    def is_none(self) -> bool:
        """Whether the rows lie where the dump says."""
        return self == Shift("start", 0)


@dataclass(frozen=True, eq=False)
class ComparedSequence:
    """The rows of one sequence that are compared.

    Args:
        id: in the dump.
        tokens: int64 [T], all that the dump has.
        states: label -> [R, C], the first rows of each tensor.
        first_row: the position of row 0, as the dump says.
        num_rows: that the dump has, of which ``states`` holds some.
    """

    id: str
    tokens: Tensor
    states: dict[str, Tensor]
    first_row: int
    num_rows: int

    def first_position(self, shift: Shift) -> int:
        """Where row 0 lies under that shift; it may be outside the sequence."""
        start = self.first_row if shift.anchor == "start" else len(self.tokens) - self.num_rows
        return start + shift.rows

    @property
    def has_gap(self) -> bool:
        """Whether the last row lies so far from the last token that rows in front may be missing."""
        return len(self.tokens) - self.num_rows - self.first_row not in NEAR_SHIFTS

    def num_positions(self, shifts: Iterable[Shift]) -> int:
        """How many tokens have to be run for the rows compared, under every shift."""
        rows = max(len(state) for state in self.states.values())
        last = max(self.first_position(shift) for shift in shifts) + rows
        return max(1, min(len(self.tokens), last))


def possible_shifts(sequences: Iterable[ComparedSequence]) -> tuple[Shift, ...]:
    """The ways to lay rows on positions: as the dump says, near that, and from the end where rows may be missing."""
    near = tuple(Shift("start", rows) for rows in NEAR_SHIFTS)
    if any(sequence.has_gap for sequence in sequences):
        return near + tuple(Shift("end", rows) for rows in NEAR_SHIFTS if rows <= 0)
    return near


def select_rows(
    dump: Dump, hidden_size: int, tokens: Mapping[str, Tensor], *, max_sequences: int, max_tokens: int
) -> list[ComparedSequence]:
    """The first rows of the first sequences.

    Args:
        dump: read lazily: no further than this.
        hidden_size: C of the target; a state [R, k * C] is k states, one behind the other.
        tokens: id -> int64 [T], for sequences whose tokens the dump does not hold.
        max_sequences, max_tokens: how much is enough.

    Raises:
        Eagle3RefError: no sequence, no state, no tokens, or states of another width.
    """
    chosen = [
        _first_rows(dump, dump.sequence(sequence_id), hidden_size, tokens.get(sequence_id), max_tokens)
        for sequence_id in dump.ids[:max_sequences]
    ]
    if not chosen:
        _refuse(dump, "no sequence", "at least one", "Dump some.")
    labels = [tuple(sequence.states) for sequence in chosen]
    if len(set(labels)) > 1:
        _refuse(dump, f"states {labels[0]} in one sequence and others elsewhere", "the same in all", "Dump it again.")
    return chosen


def _first_rows(
    dump: Dump, sequence: DumpedSequence, hidden_size: int, tokens: Tensor | None, max_tokens: int
) -> ComparedSequence:
    ids = tokens if sequence.tokens is None else sequence.tokens
    where = f"sequence {sequence.id!r}"
    if ids is None or not len(ids):
        action = "Give the prompts (--prompts), add the token ids to the dump, or align with a trace that has this id."
        _refuse(dump, f"no tokens of {where}", "the token ids that the states belong to", action)
    states = dict(_split(dump, sequence, hidden_size))
    lengths = {label: len(state) for label, state in states.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{length} rows of {label}" for label, length in lengths.items())
        _refuse(dump, f"{found} in {where}", "as many of each", "Rows are missing: dump that sequence again.")
    if not lengths or not max(lengths.values()):
        _refuse(dump, f"no states in {where}", "at least one state with a row", "Dump it again.")
    rows = {label: state[:max_tokens] for label, state in states.items()}
    return ComparedSequence(sequence.id, ids.cpu(), rows, sequence.first_row, max(lengths.values()))


def _split(dump: Dump, sequence: DumpedSequence, hidden_size: int) -> Iterable[tuple[str, Tensor]]:
    states = dict(sequence.states)
    if sequence.final is not None:
        states[FINAL_LABEL if FINAL_LABEL not in states else "final state"] = sequence.final
    for label, state in states.items():
        width = state.shape[-1]
        if state.dim() != 2 or width % hidden_size or not width or not state.is_floating_point():
            _refuse(
                dump,
                f"{label} of shape {list(state.shape)}, {state.dtype}, in sequence {sequence.id!r}",
                f"floats [rows, {hidden_size}] of this target, or several of these side by side",
                "The dump is of another model, or its axes are in another order.",
            )
        parts = state.split(hidden_size, dim=1)
        for index, part in enumerate(parts):
            yield (label if len(parts) == 1 else f"{label}, part {index}"), part


def usable_rows(state: Tensor) -> Tensor:
    """bool [R]: rows that are finite and not all zero."""
    return torch.isfinite(state).all(1) & (state != 0).any(1)


def _refuse(dump: Dump, found: str, expected: str, action: str) -> NoReturn:
    raise Eagle3RefError(f"aligning the dump {dump.path}", found=found, expected=expected, action=action)
