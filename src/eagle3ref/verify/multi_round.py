"""EAGLE's recursive rejection: siblings are tried one after the other, each rejected one taken out of the target."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.tree import DraftTree
from eagle3ref.verify.inputs import check_inputs, draw, masses_after_parents, without_children
from eagle3ref.verify.walk import Verification, conclude, walk


def verify_multi_round(tree: DraftTree, target_probs: Tensor, uniforms: Tensor, final_uniforms: Tensor) -> Verification:
    """Rejection with draft probability 1, sibling after sibling (SafeAILab's EAGLE, ``evaluate_posterior``).

    A child is accepted if its own uniform is less than its share of the target without the siblings rejected before
    it. When all are rejected, the bonus is drawn from what is left. SafeAILab compares by ``<=`` and renormalises the
    whole row after each rejection; here mass and share are compared, which is the same up to rounding.

    Args:
        tree: N nodes for each of B sequences.
        target_probs: [B, N, V], the target's distribution after each node.
        uniforms: [B, N], 0 <= u < 1; a node's decides on the node itself, and the root's is not used.
        final_uniforms: [B], draw the bonus.

    Raises:
        Eagle3RefError: as ``verify_target_only``.
    """
    check_inputs(tree, target_probs, uniforms, final_uniforms)
    mass = masses_after_parents(tree, target_probs)  # [B, N]
    left = target_probs.sum(-1)  # [B, N], after each node
    accepted = [torch.zeros_like(mass[:, :1], dtype=torch.bool)]
    for node in range(1, mass.shape[1]):
        parent, own = tree.parents[:, node : node + 1], mass[:, node : node + 1]
        share = left.gather(1, parent)
        accepted.append((own > 0) & (uniforms[:, node : node + 1] * share < own))
        left = left.scatter(1, parent, share - own)
    nodes, last = walk(tree, torch.cat(accepted, 1))
    return conclude(tree, nodes, draw(without_children(tree, target_probs, last), final_uniforms))
