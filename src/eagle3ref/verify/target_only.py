"""Target-only sampling: the next token is drawn from the target, and accepted if it is among the drafts."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.config import AcceptanceRule
from eagle3ref.tree import DraftTree
from eagle3ref.verify.inputs import check_inputs, draw, masses_after_parents, without_children
from eagle3ref.verify.walk import Verification, conclude, walk

SMALLEST_THRESHOLD = 1e-9  # SGLang 0.5.23 divides by no less
TARGET_ONLY = AcceptanceRule("target_only")


def verify_target_only(
    tree: DraftTree,
    target_probs: Tensor,
    uniforms: Tensor,
    final_uniforms: Tensor,
    *,
    rule: AcceptanceRule = TARGET_ONLY,
) -> Verification:
    """SGLang's default for temperature > 0 (0.5.23, sampling.cuh).

    The children of a node share the node's uniform. A child is accepted if that is less than the probability of it
    and of the siblings tried before it, added up and divided by ``threshold_acc``, or if its own probability reaches
    ``threshold_single``. When all are rejected, the bonus is drawn from the target without them.

    Sums and quotients are those of the kernel, in the dtype of ``target_probs``. The bonus is not bit for bit: the
    kernel adds up a vocabulary in parallel in fp32, in no defined order, and here the sums are fp64.

    Args:
        tree: N nodes for each of B sequences.
        target_probs: [B, N, V], the target's distribution after each node.
        uniforms: [B, N], 0 <= u < 1; a node's decides among its children.
        final_uniforms: [B], draw the bonus.
        rule: a ``target_only`` one: thresholds and comparison.

    Raises:
        Eagle3RefError: shapes that do not fit, a uniform out of range, a draft token outside the vocabulary.
    """
    check_inputs(tree, target_probs, uniforms, final_uniforms)
    parents = tree.parents.clamp(min=0)
    mass = masses_after_parents(tree, target_probs)  # [B, N]
    # A tensor: CUDA would multiply by the reciprocal of a plain number, which rounds otherwise.
    reached = _with_earlier_siblings(parents, mass) / mass.new_tensor(max(rule.threshold_acc, SMALLEST_THRESHOLD))
    coin = uniforms.gather(1, parents)
    if rule.inclusive:
        accepted = (coin <= reached) | (mass >= rule.threshold_single)
    else:
        accepted = (mass > 0) & ((coin < reached) | (mass >= rule.threshold_single))
    nodes, last = walk(tree, accepted)
    return conclude(tree, nodes, draw(without_children(tree, target_probs, last), final_uniforms))


def _with_earlier_siblings(parents: Tensor, mass: Tensor) -> Tensor:
    """[B, N], each node's mass plus that of its earlier siblings, added one after the other as the kernel does."""
    so_far, sums = torch.zeros_like(mass), [torch.zeros_like(mass[:, :1])]  # so_far is by parent
    for node in range(1, mass.shape[1]):
        parent = parents[:, node : node + 1]
        sums.append(so_far.gather(1, parent) + mass[:, node : node + 1])
        so_far = so_far.scatter(1, parent, sums[-1])
    return torch.cat(sums, 1)
