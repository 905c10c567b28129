"""How a round is played under a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from eagle3ref.config import AcceptanceRule, TreeConfig
from eagle3ref.draft import DraftLoop, Eagle3Draft
from eagle3ref.draft.propose import RIGHT_LOOP
from eagle3ref.replay.batch import Batch, Outcome
from eagle3ref.replay.probabilities import RecordedProbabilities
from eagle3ref.replay.sampled_drafts import Decision, play_sampled_drafts
from eagle3ref.replay.top_drafts import play_top_drafts

Play = Callable[[Batch, Tensor, Tensor, Eagle3Draft, TreeConfig], Outcome]
"""One round: batch, root [B], which of them are active [B], draft, tree."""


def choose_play(
    batch: Batch,
    rule: AcceptanceRule,
    probabilities: RecordedProbabilities | None,
    indices: Sequence[int],
    seed: int,
    loop: DraftLoop = RIGHT_LOOP,
    *,
    every_tree: bool = True,
    matches_draws: bool = False,
) -> Play:
    """The play of a rule.

    Args:
        batch: that will be walked.
        rule: decides which drafts are kept.
        probabilities: the target's; rules with sampled drafts need them.
        indices: of the batch's sequences in their trace.
        seed: of the coins; sequence i tosses its own stream (seed, i), whatever batch it is in.
        loop: how the passes of the draft loop follow one another.
        every_tree: as in ``play_top_drafts``.
        matches_draws: whatever the rule, drafts are sampled and kept if the target draws the same token.
    """
    if (matches_draws or rule.drafts == "sampled") and probabilities is not None:
        decides: Decision = "block" if rule.name == "block" else "rejection"
        return partial(
            play_sampled_drafts,
            coins=_coins(indices, batch.tokens, seed),
            probabilities=probabilities,
            decides="match" if matches_draws else decides,
            loop=loop,
        )
    return partial(play_top_drafts, probabilities=probabilities, loop=loop, every_tree=every_tree)


def _coins(indices: Sequence[int], tokens: Tensor, seed: int) -> Tensor:
    """float64 [B, T], one for each token; those of a sequence do not depend on the others."""
    coins = torch.zeros(tokens.shape, dtype=torch.float64)
    for row, index in enumerate(indices):
        coins[row] = torch.from_numpy(np.random.default_rng([seed, index]).random(tokens.shape[1]))
    return coins.to(tokens.device)
