"""What the sampling rules are given, checked, and the two ways in which they read it."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.sampling import sample
from eagle3ref.tree import DraftTree


def check_inputs(tree: DraftTree, target_probs: Tensor, uniforms: Tensor, final_uniforms: Tensor) -> None:
    """Refuse target_probs that are not [B, N, V] or no probabilities, uniforms that are not [B, N] and [B] in 0 to 1,
    and draft tokens that are outside the vocabulary or stand twice under one parent."""
    shapes = [list(part.shape) for part in (target_probs, uniforms, final_uniforms)]
    nodes = list(tree.tokens.shape)
    if target_probs.dim() != 3 or [shapes[0][:2], *shapes[1:]] != [nodes, nodes, nodes[:1]]:
        found = f"target_probs, uniforms and final_uniforms of shapes {shapes}"
        _refuse(found, f"{[*nodes, 'V']}, {nodes} and {nodes[:1]} for a tree of {nodes[1]} nodes")
    if not ((uniforms >= 0) & (uniforms <= 1)).all():
        _refuse("a uniform out of range or NaN", "0 <= u < 1")
    size = target_probs.shape[-1]
    drafts = tree.tokens[:, 1:]  # nobody asks how probable the root was
    if not ((drafts >= 0) & (drafts < size)).all():
        _refuse("a draft token outside the target vocabulary", f"ids 0 to {size - 1}")
    if not ((target_probs >= 0) & target_probs.isfinite()).all():
        _refuse("a target probability that is negative or not finite", "probabilities, not logits")
    places = (tree.parents * size + tree.tokens)[:, 1:].sort().values
    if (places[:, 1:] == places[:, :-1]).any():
        _refuse("two siblings with one token", "siblings that differ: the mass of a token counts once")


def chain_draft_probs(tree: DraftTree, target_probs: Tensor, draft_probs: Tensor | None) -> Tensor:
    """The draft's distributions [B, N-1, V] of a chain; one-hot at the drafted tokens when None.

    Raises:
        Eagle3RefError: a tree that is not a chain, or draft_probs of another shape.
    """
    batch, size = tree.parents.shape
    if not (tree.parents == torch.arange(-1, size - 1, device=tree.parents.device)).all():
        _refuse("a tree with branches", "a chain: rejection and block verification know no siblings")
    if draft_probs is None:
        return torch.nn.functional.one_hot(tree.tokens[:, 1:], target_probs.shape[-1]).to(target_probs.dtype)
    expected = [batch, size - 1, target_probs.shape[-1]]
    if list(draft_probs.shape) != expected:
        found = f"draft_probs of shape {list(draft_probs.shape)}"
        _refuse(found, f"{expected}, one distribution over the target vocabulary for each draft")
    return draft_probs


def masses_after_parents(tree: DraftTree, target_probs: Tensor) -> Tensor:
    """[B, N], the target's probability of each node's token after its parent. The root's entry means nothing."""
    batch = torch.arange(len(target_probs), device=target_probs.device)[:, None]
    tokens = torch.nn.functional.pad(tree.tokens[:, 1:], (1, 0))  # a root token may lie outside the vocabulary
    return target_probs[batch, tree.parents.clamp(min=0), tokens]


def without_children(tree: DraftTree, target_probs: Tensor, last: Tensor) -> Tensor:
    """[B, V], the target's distribution after node ``last`` [B] with the tokens of its children removed."""
    batch = torch.arange(len(last), device=last.device)
    left = target_probs[batch, last].clone()
    row, child = (tree.parents == last[:, None]).nonzero(as_tuple=True)
    left[row, tree.tokens[row, child]] = 0
    return left


def draw(masses: Tensor, final_uniforms: Tensor) -> Tensor:
    """A token [B] from unnormalised masses [B, V] by inverse CDF; the last of the vocabulary where no mass is left.

    No mass is left only by rounding, and there SGLang's kernels answer V - 1 too.
    """
    empty = ~(masses > 0).any(-1)
    last = torch.arange(masses.shape[-1], device=masses.device) == masses.shape[-1] - 1
    return sample(masses.where(~(empty[:, None] & last), 1.0), final_uniforms)


def _refuse(found: str, expected: str) -> NoReturn:
    action = "Run the target over all nodes of the tree, and draw one uniform for each node and one for the bonus."
    raise Eagle3RefError("verifying a draft tree by sampling", found=found, expected=expected, action=action)
