"""Some sequences side by side: their tokens, and the draft rows that target states give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from eagle3ref.draft import Eagle3Draft
from eagle3ref.nn import KVCache, Prefix, Rows
from eagle3ref.replay.feed import Feed

_BLOCK_ROWS = 256  # query rows of a sequence per prefix forward; bounds the attention scores of long sequences


class Outcome(NamedTuple):
    """One round of B sequences, whatever the rule.

    Args:
        num_accepted: int64 [B], drafts kept.
        proposed: int64 [B, S], drafts offered at each depth.
        expected: float64 [B, S], as ``SequenceRounds.expected_at``; all nan without the target's probabilities.
    """

    num_accepted: Tensor
    proposed: Tensor
    expected: Tensor


@dataclass(frozen=True)
class Batch:
    """B recorded sequences with their draft rows.

    Args:
        feed: of the rows; it holds the tokens.
        lengths: int64 [B].
        cache: draft rows 0 .. T-2 of every sequence.
        state: [B, T-1, C], the recurrent state of these rows.
        normed: [B, T-1, C], the same after the final norm, for the head.
    """

    feed: Feed
    lengths: Tensor
    cache: KVCache
    state: Tensor
    normed: Tensor

    @classmethod
    def of(cls, feed: Feed, draft: Eagle3Draft) -> Batch:
        """Run the draft over every committed row. Row L-1 leads to the drafts of root L."""
        batch, longest = feed.tokens.shape
        cache = KVCache(len(draft.layers), batch, feed.device)
        states, normed = [], []
        for start in range(0, longest - 1, _BLOCK_ROWS):
            rows = torch.arange(start, min(start + _BLOCK_ROWS, longest - 1), device=feed.device)
            output = draft(
                draft.fuse(feed.states(start, start + len(rows))).unsqueeze(1),
                feed.following(rows)[:, None],
                rows.expand(batch, 1, -1),
                mask=feed.sees(rows, rows).unsqueeze(-3),
                prefix=_seen(cache.prefixes(), feed, rows),
            )
            cache.offer(output.rows)
            cache.keep((rows - start).expand(batch, -1), torch.full((batch,), len(rows), device=feed.device))
            states.append(output.state[:, 0])
            normed.append(output.normed[:, 0])
        lengths = torch.tensor([len(sequence.tokens) for sequence in feed.sequences], device=feed.device)
        return cls(feed, lengths, cache, torch.cat(states, 1), torch.cat(normed, 1))

    @property
    def tokens(self) -> Tensor:
        """int64 [B, T], prompts and answers; -1 past the end."""
        return self.feed.tokens

    def recorded(self, positions: Tensor, some: Tensor | None = None) -> Tensor:
        """int64 [n, ...], the tokens at these indices of all sequences, or of ``some``; -1, no token, past the end."""
        tokens = self.tokens if some is None else self.tokens[some]
        found = tokens.gather(1, positions.clamp_max(tokens.shape[1] - 1))
        return torch.where(positions < tokens.shape[1], found, -1)

    def before(self, root: Tensor) -> tuple[Tensor, Tensor]:
        """state and normed [B, 1, C] of the last draft row before each root [B]."""
        sequence = torch.arange(len(root), device=root.device)
        return self.state[sequence, root - 1, None], self.normed[sequence, root - 1, None]

    def prefixes(self, root: Tensor, some: Tensor | None = None) -> list[Prefix] | None:
        """Per layer, the rows that the drafts of each root [B] see: those that the row before it sees.

        Args:
            root: int64 [B].
            some: int64 [n], the sequences to give them of; all when None.
        """
        prefixes = _seen(self.cache.prefixes(root), self.feed, root[:, None] - 1)
        if some is None or prefixes is None or len(some) == len(root):
            return prefixes
        return [Prefix(Rows(*(part[some] for part in rows)), mask[some]) for rows, mask in prefixes]


def _seen(prefixes: list[Prefix] | None, feed: Feed, rows: Tensor) -> list[Prefix] | None:
    """The prefixes without the rows that the feed hides from ``rows`` [n] or [B, n]."""
    if not prefixes:
        return None
    keys = torch.arange(prefixes[0].rows.first.shape[1], device=feed.device)
    seen = feed.sees(rows, keys).unsqueeze(-3)
    return [Prefix(prefix.rows, prefix.mask & seen) for prefix in prefixes]
