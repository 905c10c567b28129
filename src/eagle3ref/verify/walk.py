"""The accepted path of a tree, and what every rule returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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


def walk(tree: DraftTree, accepted: Tensor) -> tuple[Tensor, Tensor]:
    """Walk down from the root: at each node to its first accepted child, in ascending node index, until none is.

    Args:
        tree: N nodes for each of B sequences.
        accepted: bool [B, N], whether a node would be accepted if the walk came to its parent.

    Returns:
        nodes: int64 [B, N-1], the path without the root; -1 behind its end.
        last: int64 [B], the last node of the path; 0, the root, when it is empty.
    """
    last = torch.zeros_like(tree.parents[:, 0])  # [B]
    nodes = torch.full_like(tree.parents[:, 1:], -1)  # [B, N-1]
    for depth in range(nodes.shape[1]):
        hits = accepted & (tree.parents == last[:, None])  # [B, N]
        found = hits.any(-1)
        child = hits.byte().argmax(-1)
        nodes[:, depth] = child.where(found, -1)
        last = child.where(found, last)  # a walk that stopped stays, and finds nothing again
    return nodes, last


def conclude(tree: DraftTree, nodes: Tensor, bonus_token: Tensor) -> Verification:
    """What to say of a path ``nodes`` [B, N-1], padded with -1, and the token [B] after it."""
    return Verification(
        num_accepted=(nodes >= 0).sum(-1),
        accepted_nodes=nodes,
        accepted_tokens=tree.tokens.gather(1, nodes.clamp(min=0)).where(nodes >= 0, -1),
        bonus_token=bonus_token,
    )
