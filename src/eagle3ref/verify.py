"""Which drafts of a tree the target accepts. Pure functions, batched."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.tree import DraftTree


@dataclass(frozen=True)
class Verification:
    """The accepted path of each sequence. A round emits the accepted tokens, then the bonus token.

    Args:
        num_accepted: int64 [B], accepted drafts, without root and bonus.
        accepted_nodes: int64 [B, N-1], nodes of the path in order, without the root; -1 behind its end.
        accepted_tokens: int64 [B, N-1], their tokens; -1 behind the end.
        bonus_token: int64 [B], the target's own token after the last accepted node, or after the root.
    """

    num_accepted: Tensor
    accepted_nodes: Tensor
    accepted_tokens: Tensor
    bonus_token: Tensor


def verify_greedy(tree: DraftTree, target_tokens: Tensor) -> Verification:
    """Walk down from the root while a child holds the target's token (SGLang 0.5.23, eagle.cuh).

    Children are tried in ascending node index and the first match is taken.

    Args:
        tree: N nodes for each of B sequences.
        target_tokens: int64 [B, N], the target's argmax after each node.

    Raises:
        Eagle3RefError: target tokens that are not [B, N].
    """
    if target_tokens.shape != tree.tokens.shape:
        raise Eagle3RefError(
            "verifying a draft tree",
            found=f"target_tokens of shape {list(target_tokens.shape)}",
            expected=f"{list(tree.tokens.shape)}, one token after each node of the tree",
            action="Run the target over all nodes of the tree and take the argmax of each.",
        )
    # A node is a match when it holds what the target says after its parent; the walk only visits matches.
    matches = tree.tokens == target_tokens.gather(1, tree.parents.clamp(min=0))
    current = torch.zeros_like(tree.parents[:, 0])  # [B]
    nodes = torch.full_like(tree.parents[:, 1:], -1)  # [B, N-1]
    for depth in range(nodes.shape[1]):
        hits = matches & (tree.parents == current[:, None])  # [B, N]
        accepted = hits.any(-1)
        child = hits.byte().argmax(-1)
        nodes[:, depth] = child.where(accepted, -1)
        current = child.where(accepted, current)  # a walk that stopped stays, and finds nothing again
    return Verification(
        num_accepted=(nodes >= 0).sum(-1),
        accepted_nodes=nodes,
        accepted_tokens=tree.tokens.gather(1, nodes.clamp(min=0)).where(nodes >= 0, -1),
        bonus_token=target_tokens.gather(1, current[:, None])[:, 0],
    )
