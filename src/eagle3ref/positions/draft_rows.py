"""The rows of a real draft, behind committed rows: what the searches and chains run."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.draft import DraftOutput, Eagle3Draft
from eagle3ref.nn import Rows
from eagle3ref.positions.branches import Branches, take
from eagle3ref.positions.committed import CommittedRows, rows_at_once
from eagle3ref.positions.head import best_next, is_first


class DraftRows:
    """The rows of a draft behind the committed rows of some sequences.

    Args:
        committed: of the sequences.
        draft: the same.
        sequence: int64 [n], of each root; best sorted.
        root: int64 [n], token index of each.
        topk: K.
    """

    def __init__(self, committed: CommittedRows, draft: Eagle3Draft, sequence: Tensor, root: Tensor, topk: int) -> None:
        self._committed, self._draft, self._topk = committed, draft, topk
        self._sequence, self._root = sequence, root
        is_draftable = torch.zeros(draft.config.vocab_size + 1, dtype=torch.bool, device=root.device)
        self._is_draftable = is_draftable.index_fill_(0, draft.target_ids, True)  # the last one stands for -1

    def first(self, which: Tensor) -> Branches:
        """As in ``BranchRows``."""
        parts = []
        for some in which.split(rows_at_once(self._draft)):
            state, normed = self._committed.first_rows(self._sequence[some], self._root[some])
            parts.append(Branches(state, *best_next(self._draft, normed, self._topk), []))
        return Branches.join(parts)

    def run(self, which: Tensor, step: int, state: Tensor, tokens: Tensor, own: list[Rows]) -> Branches:
        """As in ``BranchRows``."""
        parts = []
        for rows in torch.arange(len(which), device=which.device).split(rows_at_once(self._draft)):
            output = self.forward(which[rows], step, state[rows], tokens[rows], take(own, rows))
            probs, best = best_next(self._draft, output.normed[0, :, 0], self._topk)
            parts.append(Branches(output.state[0, :, 0], probs, best, output.rows))
        return Branches.join(parts)

    def wanted(self, which: Tensor, depth: int) -> Tensor:
        """As in ``BranchRows``."""
        token = self._committed.recorded(self._sequence[which], self._root[which] + depth)
        return token.where(self._is_draftable[token], -1)

    def forward(self, which: Tensor, step: int, state: Tensor, tokens: Tensor, own: list[Rows]) -> DraftOutput:
        """``run`` without the head: every row is a group of its own, [1, P, 1, ...]."""
        sequence, root = self._sequence[which], self._root[which]
        output: DraftOutput = self._draft(
            state[None, :, None],
            tokens[None, :, None],
            (root + step)[None, :, None],
            mask=torch.ones(1, 1, 1, step + 1, dtype=torch.bool, device=root.device),
            own=own or None,
            prefix=self._committed.prefixes(sequence, root),
        )
        return output

    def chain(self, num_steps: int) -> tuple[Tensor, Tensor]:
        """Rounds of a chain: accepted drafts int64 [n] and rows that were run int64 [n].

        A draft is accepted while the first choice is the recorded token, so a root's last row is that of its last
        accepted draft, and probabilities are never needed.
        """
        which = torch.arange(len(self._root), device=self._root.device)
        accepted, num_rows = torch.zeros_like(which), torch.zeros_like(which)
        own: list[Rows] = []
        state, normed = self._committed.first_rows(self._sequence, self._root)
        for depth in range(1, num_steps + 1):
            token = self.wanted(which, depth)
            hits = is_first(self._draft, normed, token)
            which, token, own = which[hits], token[hits], take(own, hits.nonzero()[:, 0])
            accepted[which] += 1
            if depth == num_steps or not len(which):
                break
            num_rows[which] += 1
            output = self.forward(which, depth - 1, state[hits], token, own)
            state, normed, own = output.state[0, :, 0], output.normed[0, :, 0], output.rows
        return accepted, num_rows
