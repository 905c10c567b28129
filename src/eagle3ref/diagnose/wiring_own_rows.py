"""Rounds of an engine that does not rebuild the rows of accepted drafts from target states (vLLM #14649)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.diagnose.wiring_feed import WiredFeed
from eagle3ref.draft import DraftLoop, Eagle3Draft, best_next
from eagle3ref.nn import KVCache, Rows
from eagle3ref.replay.batch import Batch, Outcome
from eagle3ref.replay.sampled_drafts import next_row


class OwnRows:
    """Plays the rounds of a chain on rows that evolve; of one batch, from its first round to its last.

    Of c accepted drafts the draft loop has run min(c, num_steps - 1), on its own states. Their rows stay; those of the
    tokens behind them, of which the bonus token is one, are made from target states.

    Args:
        batch: with the rows that target states give.
        feed: of the batch.
        draft: of these rows.
        loop: how the passes of the draft loop follow one another.
    """

    def __init__(self, batch: Batch, feed: WiredFeed, draft: Eagle3Draft, loop: DraftLoop) -> None:
        self._feed, self._loop = feed, loop
        self._state, self._normed = batch.before(feed.prompt_lengths)
        self._cache = KVCache(len(draft.layers), len(batch.lengths), feed.device)
        self._cache.offer(
            [Rows(*(part.unsqueeze(1) for part in prefix.rows)) for prefix in batch.cache.prefixes() or []]
        )
        rows = torch.arange(batch.state.shape[1], device=feed.device)
        self._cache.keep(rows.expand(len(batch.lengths), -1), feed.prompt_lengths)
        self._batch = replace(batch, cache=self._cache)

    def __call__(self, batch: Batch, root: Tensor, active: Tensor, draft: Eagle3Draft, tree: TreeConfig) -> Outcome:
        """As ``play_top_drafts``, on rows of its own. Along a chain, a draft that is kept is the recorded token."""
        state, normed, own = self._state[:, None], self._normed[:, None], None
        alive, accepted = active, torch.zeros_like(root)
        for step in range(tree.num_steps):
            if step:
                state, normed, own = next_row(draft, self._batch, root, step, state, own, self._loop)
            drafted = best_next(draft, normed[:, 0, 0], 1)[1][:, 0]
            alive = alive & (drafted == batch.recorded((root + step + 1)[:, None])[:, 0])
            accepted += alive
        self._commit(root, accepted, active, draft, own)
        proposed = torch.ones(len(root), tree.num_steps, dtype=torch.int64, device=root.device)
        return Outcome(accepted, proposed, torch.full_like(proposed, torch.nan, dtype=torch.float64))

    def _commit(
        self, root: Tensor, accepted: Tensor, active: Tensor, draft: Eagle3Draft, own: list[Rows] | None
    ) -> None:
        """Keep the loop's rows of accepted drafts, then make the one or two rows behind them."""
        kept = torch.zeros_like(accepted)
        if own is not None:
            steps = own[0].first.shape[2]
            kept = accepted.clamp_max(steps)
            self._cache.offer(own)
            self._cache.keep(torch.arange(steps, device=root.device).expand(len(root), -1), kept)
        made = torch.arange(2, device=root.device)
        rows = ((root + kept)[:, None] + made).clamp_max(self._batch.state.shape[1] - 1)  # [B, 2]
        output = draft(
            draft.fuse(self._feed.states_at(rows))[:, None],
            self._feed.following(rows)[:, None],
            rows[:, None],
            mask=made[:, None] >= made,
            prefix=self._batch.prefixes(root + kept),
        )
        count = accepted + 1 - kept
        self._cache.offer(output.rows)
        self._cache.keep(made.expand(len(root), -1), count.where(active, 0))
        sequence = torch.arange(len(root), device=root.device)
        self._state, self._normed = (part[sequence, 0, count - 1, None] for part in (output.state, output.normed))
