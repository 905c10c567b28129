"""Rejection sampling of a chain: each draft is kept with probability target / draft."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.tree import DraftTree
from eagle3ref.verify.inputs import chain_draft_probs, check_inputs, draw, masses_after_parents
from eagle3ref.verify.walk import Verification, conclude, walk


def verify_rejection(
    tree: DraftTree,
    target_probs: Tensor,
    uniforms: Tensor,
    final_uniforms: Tensor,
    *,
    draft_probs: Tensor | None = None,
) -> Verification:
    """Accept while ``u * draft < target``; then draw from what the target has more than the draft.

    arXiv 2211.17192, algorithm 1, as in SGLang 0.5.23's reject_sampling.py. A draft probability that is none (NaN,
    0, more than 1) rejects, and counts as 0 in the remainder. vLLM 0.32.0 accepts if ``target / draft >= u`` with a
    fp64 u (rejection_sampler.py; its newer GPU runner compares logarithms), and draws the remainder by an exponential
    race: same distribution, other random numbers. At u = 0 it may accept a token that the target forbids.

    Args:
        tree: a chain of N nodes for each of B sequences.
        target_probs: [B, N, V], the target's distribution after each node.
        uniforms: [B, N], 0 <= u < 1; a node's decides on its child.
        final_uniforms: [B], draw the bonus.
        draft_probs: [B, N-1, V], the distributions that the drafts were drawn from; None for drafts that were not
            drawn but are the draft's first choice, which count as certain.

    Raises:
        Eagle3RefError: as ``verify_target_only``, a tree that is no chain, or draft_probs of another shape.
    """
    check_inputs(tree, target_probs, uniforms, final_uniforms)
    drafted = chain_draft_probs(tree, target_probs, draft_probs)
    coins, target = uniforms[:, :-1], masses_after_parents(tree, target_probs)[:, 1:]  # [B, N-1]
    draft = drafted_masses(tree, drafted)
    accepted = (draft > 0) & (draft <= 1) & (coins * draft < target)
    nodes, last = walk(tree, torch.nn.functional.pad(accepted, (1, 0)))
    return conclude(tree, nodes, draw(remainder(target_probs, drafted, last), final_uniforms))


def drafted_masses(tree: DraftTree, draft_probs: Tensor) -> Tensor:
    """[B, N-1], the draft's own probability of each drafted token of a chain."""
    return draft_probs.gather(2, tree.tokens[:, 1:, None])[..., 0]


def remainder(target_probs: Tensor, draft_probs: Tensor, last: Tensor, scale: Tensor | None = None) -> Tensor:
    """[B, V], ``max(scale * target - draft, 0)`` after node ``last`` [B]; the target itself after the last draft.

    Args:
        target_probs: [B, N, V].
        draft_probs: [B, N-1, V]; what is no probability counts as 0.
        last: int64 [B], nodes of a chain.
        scale: [B], 1 when None.
    """
    batch = torch.arange(len(last), device=last.device)
    ends = torch.nn.functional.pad(draft_probs, (0, 0, 0, 1))[batch, last]  # [B, V]
    drafted = ends.where((ends >= 0) & (ends <= 1), 0.0)
    target = target_probs[batch, last]
    return ((target if scale is None else scale[:, None] * target) - drafted).clamp(min=0)
