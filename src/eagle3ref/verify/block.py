"""Block verification: rejection sampling of all drafts of a chain at once."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.tree import DraftTree
from eagle3ref.verify.inputs import chain_draft_probs, check_inputs, draw, masses_after_parents
from eagle3ref.verify.rejection import drafted_masses, remainder
from eagle3ref.verify.walk import Verification, conclude


def verify_block(
    tree: DraftTree,
    target_probs: Tensor,
    uniforms: Tensor,
    final_uniforms: Tensor,
    *,
    draft_probs: Tensor | None = None,
) -> Verification:
    """Accept the longest prefix that passes, whatever the shorter ones say (arXiv 2403.10444, algorithm 2).

    With ``ratio_0 = 1`` and ``ratio_i = min(ratio_{i-1} * target / draft, 1)`` of draft i, prefix i passes if its
    uniform is less than ``rest / (rest + 1 - ratio_i)``, where ``rest`` is the mass of
    ``max(ratio_i * target - draft, 0)`` after it; the whole chain passes by ``ratio`` itself. The bonus is drawn from
    that maximum. As SGLang 0.5.23 (reject_sampling.py), where the sums over the vocabulary are parallel in fp32 and
    may be fused multiply-adds: bit for bit but for them. vLLM 0.32.0's GPU runner has it in logarithms, by ``<=``.

    Args:
        tree: a chain of N nodes for each of B sequences.
        target_probs: [B, N, V], the target's distribution after each node.
        uniforms: [B, N], 0 <= u < 1; node i-1's decides on the prefix of i drafts.
        final_uniforms: [B], draw the bonus.
        draft_probs: as in ``verify_rejection``.

    Raises:
        Eagle3RefError: as ``verify_rejection``.
    """
    check_inputs(tree, target_probs, uniforms, final_uniforms)
    drafted = chain_draft_probs(tree, target_probs, draft_probs)
    ratios = _ratios(masses_after_parents(tree, target_probs)[:, 1:], drafted_masses(tree, drafted))  # [B, N]
    bounds = _bounds(target_probs, drafted, ratios)  # [B, N]
    length = torch.arange(tree.parents.shape[1], device=tree.parents.device)
    passed = torch.nn.functional.pad(uniforms[:, :-1], (1, 0)) < bounds
    last = length.where(passed, 0).amax(-1)  # [B], 0 when no prefix passes
    nodes = length[1:].where(length[1:] <= last[:, None], -1)
    scale = ratios.gather(1, last[:, None])[:, 0].where(last < length[-1], 1.0)
    return conclude(tree, nodes, draw(remainder(target_probs, drafted, last, scale), final_uniforms))


def _ratios(target: Tensor, draft: Tensor) -> Tensor:
    """[B, N-1] each -> [B, N], ratio_0 .. ratio_{N-1}. A draft probability that is none ends the chain."""
    ratios = [target.new_ones(len(target))]  # a root alone has no drafts
    for i in range(target.shape[1]):
        valid = (draft[:, i] > 0) & (draft[:, i] <= 1)
        ratios.append((ratios[-1] * target[:, i] / draft[:, i]).clamp(max=1).where(valid, 0.0))
    return torch.stack(ratios, 1)


def _bounds(target_probs: Tensor, draft_probs: Tensor, ratios: Tensor) -> Tensor:
    """[B, N], what the uniform of each prefix has to stay below. The empty prefix needs none and its 0 says nothing."""
    batch, size = ratios.shape
    bounds = [torch.zeros_like(ratios[:, 0])]
    for i in range(1, size - 1):
        after = torch.full((batch,), i, device=ratios.device)
        rest = remainder(target_probs, draft_probs, after, ratios[:, i]).sum(-1)
        bound = rest / (rest + 1 - ratios[:, i])
        inside = (ratios[:, i] > 0) & (ratios[:, i] < 1)
        # SGLang compares with ratio and bound; without rounding the bound is never the larger one.
        bounds.append(torch.minimum(bound, ratios[:, i]).where(inside, ratios[:, i]))
    return torch.stack([*bounds, ratios[:, -1]], 1)[:, :size]
