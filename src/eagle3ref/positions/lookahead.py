"""From any roots of some sequences: what the drafts of a round have of the recorded continuation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.draft import Eagle3Draft
from eagle3ref.positions.committed import CommittedRows, rows_at_once
from eagle3ref.positions.draft_rows import DraftRows
from eagle3ref.positions.ranks import BEYOND
from eagle3ref.positions.search import TreeSearch


class Found(NamedTuple):
    """Of n roots.

    Args:
        ranks: int16 [n, S, S], as ``SequenceRanks.ranks``; of a single tree only the column s = S means anything.
        num_rows: int64 [n], draft rows that were run.
    """

    ranks: Tensor
    num_rows: Tensor

    @classmethod
    def none(cls, tree: TreeConfig, device: torch.device) -> Found:
        """Of no root."""
        ranks = torch.zeros(0, tree.num_steps, tree.num_steps, dtype=torch.int16, device=device)
        return cls(ranks, torch.zeros(0, dtype=torch.int64, device=device))


def look_ahead(
    committed: CommittedRows,
    draft: Eagle3Draft,
    tree: TreeConfig,
    sequence: Tensor,
    root: Tensor,
    *,
    every_setting: bool,
) -> Found:
    """The ranks of the true continuation of each root, some roots at a time.

    Args:
        committed: the sequences.
        draft: the same.
        tree: the tree's settings.
        sequence: int64 [n], of each root; best sorted.
        root: int64 [n], token index of each.
        every_setting: whether all smaller trees are asked for, or this one only, which takes fewer rows.
    """
    found = [Found.none(tree, root.device)]
    for some in torch.arange(len(root), device=root.device).split(rows_at_once(draft)):
        rows = DraftRows(committed, draft, sequence[some], root[some], tree.topk)
        if tree.topk == 1:
            accepted, num_rows = rows.chain(tree.num_steps)
            found.append(Found(_chain_ranks(accepted, tree.num_steps), num_rows))
        else:
            search = TreeSearch(rows, len(some), tree, every_setting=every_setting, device=root.device)
            search.run()
            found.append(Found(search.ranks, search.num_rows))
    return Found(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _chain_ranks(accepted: Tensor, num_steps: int) -> Tensor:
    """A chain's only candidate of depth d has place d in every chain that is as long; int64 [n] -> int16 [n, S, S]."""
    depth = torch.arange(1, num_steps + 1, device=accepted.device)
    there = (depth <= accepted[:, None])[:, :, None] & (depth[:, None] <= depth)
    return depth[:, None].where(there, BEYOND).short()
