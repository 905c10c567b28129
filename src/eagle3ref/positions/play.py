"""The rounds of some sequences: from every position, or along the walk of a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.draft import Eagle3Draft
from eagle3ref.positions.committed import CommittedRows
from eagle3ref.positions.lookahead import Found, look_ahead
from eagle3ref.positions.ranks import num_accepted
from eagle3ref.positions.visits import walk_positions

# What a pass costs however few its rows, in multiply-adds of a row for each parameter: reading the weights from memory
# takes as long as some rows' arithmetic, and the calls of a small draft take longer than its arithmetic.
_ROWS_OF_READING, _MULTIPLY_ADDS_OF_CALLS = 30, 3e7


class Played(NamedTuple):
    """Rounds from n roots, ascending in each sequence.

    Args:
        sequence: int64 [n].
        root: int64 [n], token indices.
        ranks: int16 [n, S, S], as ``Found.ranks``.
        num_rows: int64 [n], draft rows that were run.
        skipped_rows: int64 [n], those of positions between this root and the next one.
    """

    sequence: Tensor
    root: Tensor
    ranks: Tensor
    num_rows: Tensor
    skipped_rows: Tensor

    @classmethod
    def of(cls, sequence: Tensor, root: Tensor, found: Found) -> Played:
        """Rounds between which nothing was run."""
        return cls(sequence, root, *found, torch.zeros_like(root))

    def by_sequence(self, num_sequences: int) -> Iterator[Played]:
        """The rounds of each, on the CPU."""
        order = self.sequence.argsort(stable=True)
        sizes = torch.bincount(self.sequence, minlength=num_sequences).tolist()
        parts = (part[order].cpu().split(sizes) for part in self)
        return (Played(*of_one) for of_one in zip(*parts, strict=True))


def play_all(committed: CommittedRows, draft: Eagle3Draft, tree: TreeConfig, *, every_setting: bool = False) -> Played:
    """A round from every position."""
    sequence, root = committed.roots()
    found = look_ahead(committed, draft, tree, sequence, root, every_setting=every_setting)
    return Played.of(sequence, root, found)


def play_walk(committed: CommittedRows, draft: Eagle3Draft, tree: TreeConfig) -> Played:
    """From root to root, all sequences side by side; once they are few, all that they may still visit at once.

    A pass over a few rows costs nearly what one over many does, so looking ahead from roots that a walk may skip is
    then cheaper than waiting to know them.
    """
    sequence, root = committed.roots()
    begins = torch.ones_like(sequence, dtype=torch.bool)
    begins[1:] = sequence[1:] != sequence[:-1]
    sequence, root = sequence[begins], root[begins]
    rounds = []
    while len(sequence) * tree.topk > _few_rows(draft):
        found = look_ahead(committed, draft, tree, sequence, root, every_setting=False)
        rounds.append(Played.of(sequence, root, found))
        root = root + num_accepted(found.ranks, tree) + 1
        goes_on = root + 1 < committed.lengths[sequence]
        sequence, root = sequence[goes_on], root[goes_on]
    rounds.append(_play_rest(committed, draft, tree, sequence, root))
    return Played(*(torch.cat(parts) for parts in zip(*rounds, strict=True)))


def _play_rest(
    committed: CommittedRows, draft: Eagle3Draft, tree: TreeConfig, sequence: Tensor, root: Tensor
) -> Played:
    """The walks that are at these roots, int64 [n] each, to their ends."""
    all_sequences, all_roots = committed.roots()
    begin = torch.full_like(committed.lengths, committed.tokens.shape[1]).index_put_((sequence,), root)
    ahead = all_roots >= begin[all_sequences]
    of_sequence, roots = all_sequences[ahead], all_roots[ahead]
    found = look_ahead(committed, draft, tree, of_sequence, roots, every_setting=False)
    sizes = torch.bincount(of_sequence, minlength=len(committed.lengths)).tolist()
    accepted = num_accepted(found.ranks, tree).cpu().split(sizes)
    starts = torch.tensor([0, *sizes]).cumsum(0).tolist()
    visited = torch.cat([walk_positions(part) + start for part, start in zip(accepted, starts[:-1], strict=True)])
    visited = visited.to(roots.device)
    behind = torch.zeros_like(roots).index_fill_(0, visited, 1).cumsum(0) - 1  # the visited root at or before each
    num_rows = found.num_rows[visited]
    skipped = torch.zeros_like(visited).index_add_(0, behind, found.num_rows) - num_rows
    return Played(of_sequence[visited], roots[visited], found.ranks[visited], num_rows, skipped)


def _few_rows(draft: Eagle3Draft) -> float:
    """Below this many rows, twice as many cost much less than twice as much."""
    parameters = sum(weight.numel() for layer in draft.layers for weight in layer.parameters())
    return 2 * (_ROWS_OF_READING + _MULTIPLY_ADDS_OF_CALLS / (parameters + draft.lm_head.weight.numel()))
