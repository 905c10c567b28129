"""A round whose drafts were sampled from the draft: a chain, decided by rejection sampling or as a block.

The draft tokens of a real round are not recorded, and need not be. Given the emitted text, a draft that was kept *is*
the recorded token; so the draft is run along the record, and what is random is only how far the round came.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.draft import DraftLoop, Eagle3Draft
from eagle3ref.draft.model import DraftOutput
from eagle3ref.nn import Rows
from eagle3ref.nn.norm import at_least_float32
from eagle3ref.replay.batch import Batch, Outcome
from eagle3ref.replay.probabilities import RecordedProbabilities

Decision = Literal["rejection", "block", "match"]
"""Rejection sampling, block verification, or a draft is kept only if it is the token that the target draws."""


def play_sampled_drafts(
    batch: Batch,
    root: Tensor,
    active: Tensor,
    draft: Eagle3Draft,
    tree: TreeConfig,
    *,
    probabilities: RecordedProbabilities,
    coins: Tensor,
    decides: Decision,
    loop: DraftLoop,
) -> Outcome:
    """One round from each root; those that are not active idle.

    The recorded token was drafted and kept with probability ``min(1, draft / (weight * target))``, of its draft and
    target probabilities. For rejection sampling (arXiv 2211.17192, algorithm 1) the weight is 1. For block verification
    (arXiv 2403.10444, algorithm 2) it begins at 1 and goes on as ``min(1, weight * target / draft)``. Before the token
    is known, the same is ``sum of min(target, draft / weight)`` over the vocabulary. docs/rules.md has the proof.

    Args:
        coins: float64 [B, T], uniform in [0, 1); the one at t decides on a draft for token t.
        decides: how a drafted token is held against the target.
        loop: how the passes of the draft loop follow one another.
    """
    state, normed = (part[:, None] for part in batch.before(root))  # [B, 1, 1, C]
    own: list[Rows] | None = None
    alive, weight = active, torch.ones(len(root), dtype=torch.float64, device=root.device)
    accepted = torch.zeros_like(root)
    expected = torch.full((len(root), tree.num_steps), torch.nan, dtype=torch.float64, device=root.device)
    for step in range(tree.num_steps):
        position = root + step
        alive = alive & (position + 1 < batch.lengths)
        if not bool(alive.any()):
            break
        if step:
            state, normed, own = next_row(draft, batch, root, step, state, own, loop)
        rows = alive.nonzero()[:, 0]
        for some, at, target_probs in probabilities.after(rows, position[rows]):
            draft_probs = _draft_probs(draft, normed[some, 0, 0], probabilities.sampling.temperature, target_probs)
            odds_of = _matching_odds if decides == "match" else _odds
            odds = odds_of(target_probs, draft_probs, weight[some], batch.tokens[some, at + 1])
            expected[some, step] = odds.expected
            alive[some] = coins[some, at + 1] < odds.chance
            if decides == "block":
                weight[some] = odds.weight
        accepted += alive
    return Outcome(accepted, torch.ones_like(expected, dtype=torch.int64), expected)


class _Odds(NamedTuple):
    """Of n rounds at one depth, each float64 [n].

    Args:
        expected: the probability that the draft token is kept, before anything of it is known.
        chance: the same, given the token that was emitted.
        weight: of block verification at the next depth, if it is kept.
    """

    expected: Tensor
    chance: Tensor
    weight: Tensor


def _odds(target_probs: Tensor, draft_probs: Tensor, weight: Tensor, token: Tensor) -> _Odds:
    """target_probs and draft_probs [n, V], weight [n], the emitted token int64 [n]."""
    expected = torch.minimum(target_probs, draft_probs / weight[:, None]).sum(1)
    drafted = draft_probs.gather(1, token[:, None])[:, 0]
    wanted = weight * target_probs.gather(1, token[:, None])[:, 0]
    chance = torch.where(drafted < wanted, drafted / wanted, (drafted > 0).double())
    # Not zero, although rounding may deny a recorded token all probability.
    return _Odds(expected, chance, (wanted / drafted).clamp(torch.finfo(torch.float64).tiny, 1))


def _matching_odds(target_probs: Tensor, draft_probs: Tensor, weight: Tensor, token: Tensor) -> _Odds:
    """As ``_odds``, where draft and target are drawn apart and must agree, as vLLM's V2 runner had it (vLLM #40551)."""
    return _Odds((target_probs * draft_probs).sum(1), draft_probs.gather(1, token[:, None])[:, 0], weight)


def next_row(
    draft: Eagle3Draft,
    batch: Batch,
    root: Tensor,
    step: int,
    state: Tensor,
    own: list[Rows] | None,
    loop: DraftLoop,
) -> DraftOutput:
    """The draft row of the recorded token ``step`` after each root, behind the chain's own rows so far."""
    last = batch.tokens.shape[1] - 1
    token = batch.tokens.gather(1, (root[:, None] + step).clamp_max(last)).clamp_min(0)
    row: DraftOutput = draft(
        state,
        token[:, None],
        loop.positions(root, step - 1)[:, None, None],
        mask=loop.visible(torch.ones(1, 1, 1, step, dtype=torch.bool, device=root.device), 1),
        own=own,
        prefix=batch.prefixes(root),
    )
    return row


def _draft_probs(draft: Eagle3Draft, normed: Tensor, temperature: float, like: Tensor) -> Tensor:
    """Float64 [n, V] over the target vocabulary, as ``like``: what draft tokens are sampled from.

    The temperature is the target's; top-k and top-p do not apply to drafts (SGLang 0.5.23, spec_utils.py).
    """
    logits = draft.logits(normed)
    probs = (logits.to(at_least_float32(logits.dtype)) / temperature).softmax(-1).double()
    return torch.zeros_like(like).scatter_(1, draft.target_ids.expand(len(probs), -1), probs)
