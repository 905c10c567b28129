"""Walking a batch of sequences from root to root until every record ends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from eagle3ref.config import AcceptanceRule, TreeConfig
from eagle3ref.draft import Eagle3Draft
from eagle3ref.replay.batch import Batch, Outcome
from eagle3ref.replay.probabilities import RecordedProbabilities, TargetHead
from eagle3ref.replay.rounds import SequenceRounds
from eagle3ref.replay.sampled_drafts import play_sampled_drafts
from eagle3ref.replay.top_drafts import play_top_drafts
from eagle3ref.trace import RecordedSequence, Trace


@torch.inference_mode()
def walk_batch(
    trace: Trace,
    indices: Sequence[int],
    *,
    draft: Eagle3Draft,
    tree: TreeConfig,
    rule: AcceptanceRule,
    head: TargetHead | None,
    seed: int,
) -> list[SequenceRounds]:
    """The rounds of the sequences at these indices of the trace.

    Args:
        head: of the target, for probabilities; None without. Rules with sampled drafts need it.
        seed: of the coins; sequence i tosses its own stream (seed, i), whatever batch it is in.
    """
    sequences = [trace[i] for i in indices]
    for sequence in sequences:
        sequence.check_finite()
    batch = Batch.of(sequences, draft)
    probabilities = None if head is None else RecordedProbabilities(sequences, head, trace.header)
    if rule.drafts == "sampled" and probabilities is not None:
        coins = _coins(indices, batch.tokens, seed)
        play = partial(play_sampled_drafts, coins=coins, probabilities=probabilities, as_block=rule.name == "block")
    else:
        play = partial(play_top_drafts, probabilities=probabilities)
    root = torch.tensor([sequence.prompt_length for sequence in sequences], device=batch.tokens.device)
    roots, outcomes = [root.new_zeros(len(root), 0)], [_no_round(root, tree.num_steps)]
    while bool((active := root + 1 < batch.lengths).any()):
        # A finished sequence idles at its last root, and its rounds there are dropped.
        outcome = play(batch, root.clamp_max(batch.tokens.shape[1] - 1), active, draft, tree)
        roots.append(root.where(active, -1)[:, None])
        outcomes.append(Outcome(*(part[:, None] for part in outcome)))
        root = (root + outcome.num_accepted + 1).where(active, root)
    all_roots = torch.cat(roots, 1).cpu()
    all_outcomes = Outcome(*(torch.cat(parts, 1).cpu() for parts in zip(*outcomes, strict=True)))
    max_new_tokens = trace.header.sampling.max_new_tokens or 0
    return [
        _collect(sequence, all_roots[i], Outcome(*(part[i] for part in all_outcomes)), max_new_tokens, head is not None)
        for i, sequence in enumerate(sequences)
    ]


def _no_round(root: Tensor, num_steps: int) -> Outcome:
    """What the columns of rounds begin with: sequences of a single generated token have no round at all."""
    none = root.new_zeros(len(root), 0)
    by_depth = none.new_zeros(len(root), 0, num_steps)
    return Outcome(none, by_depth, by_depth.double())


def _coins(indices: Sequence[int], tokens: Tensor, seed: int) -> Tensor:
    """float64 [B, T], one for each token; those of a sequence do not depend on the others."""
    coins = torch.zeros(tokens.shape, dtype=torch.float64)
    for row, index in enumerate(indices):
        coins[row] = torch.from_numpy(np.random.default_rng([seed, index]).random(tokens.shape[1]))
    return coins.to(tokens.device)


def _collect(
    sequence: RecordedSequence, roots: Tensor, outcome: Outcome, max_new_tokens: int, with_probabilities: bool
) -> SequenceRounds:
    real, length = roots >= 0, len(sequence.tokens)
    ahead = roots[real] + outcome.expected.shape[-1]
    return SequenceRounds(
        id=sequence.id,
        roots=roots[real],
        num_accepted=outcome.num_accepted[real],
        complete=ahead < length,
        proposed_at=outcome.proposed[real],
        off_argmax_tokens=sequence.off_argmax_tokens,
        recorded_tokens=len(sequence.answer),
        in_limit=ahead < max(length, sequence.prompt_length + max_new_tokens),
        expected_at=outcome.expected[real] if with_probabilities else None,
    )
