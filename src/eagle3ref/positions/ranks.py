"""Where the true continuation stands among the drafts of every position: one table answers every smaller tree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.positions.row_counts import RowCounts

BEYOND = 32767
"""In a table of ranks: no such candidate, or one that no tree of the table holds."""


@dataclass(frozen=True)
class SequenceRanks:
    """The ranks of one sequence at R roots, one after every generated token but the last.

    The true node of depth d below root L is the candidate whose path is the recorded tokens L + 1 .. L + d. Candidates
    do not depend on ``num_draft_tokens``, and those of depth <= s do not depend on ``num_steps``. So its place among
    the candidates of depth <= s, higher score first, then lower flat index, says in which trees it is: in those of
    ``num_steps`` s with more than ``rank`` nodes, the root counted. A parent ranks before its child.

    Args:
        id: of the sequence.
        prompt_length: of the sequence; root r is token index ``prompt_length + r``.
        num_tokens: T, of prompt and answer.
        tree: the largest settings that the table answers, S = ``num_steps`` and N = ``num_draft_tokens``.
        ranks: int16 [R, S, S], the place, from 1, of the true node of depth d among candidates of depth <= s, at
            ``[r, d - 1, s - 1]``. ``BEYOND`` where d > s, where there is no such candidate, and from place N on.
        off_argmax_tokens: generated tokens that are not the target's first choice; None when that was not recorded.
        recorded_tokens: generated tokens.
        rows: draft rows that this took.
    """

    id: str
    prompt_length: int
    num_tokens: int
    tree: TreeConfig
    ranks: Tensor
    off_argmax_tokens: int | None
    recorded_tokens: int
    rows: RowCounts

    def num_accepted(self, num_steps: int, num_draft_tokens: int) -> Tensor:
        """Drafts that a round from each root keeps at these settings, int64 [R].

        Raises:
            Eagle3RefError: no tree of these settings, or one that is not within ``tree``.
        """
        asked = TreeConfig(num_steps, self.tree.topk, num_draft_tokens, self.tree.tree_kv)
        if asked.num_steps > self.tree.num_steps or asked.num_draft_tokens > self.tree.num_draft_tokens:
            raise Eagle3RefError(
                "reading ranks",
                found=f"the tree {asked}",
                expected=f"one within {self.tree}, which was ranked",
                action="Rank the positions again with the largest settings that you need.",
            )
        return num_accepted(self.ranks, asked)

    def complete(self, num_steps: int) -> Tensor:
        """Whether ``num_steps`` recorded tokens follow each root, bool [R]. If not, its round is censored."""
        roots = torch.arange(len(self.ranks)) + self.prompt_length
        return roots + num_steps < self.num_tokens


def num_accepted(ranks: Tensor, tree: TreeConfig) -> Tensor:
    """Drafts that a round with this tree keeps, int64 [R], by ranks int16 [R, S, S] of at least its ``num_steps``."""
    return (ranks[:, : tree.num_steps, tree.num_steps - 1] < tree.num_draft_tokens).sum(1)
