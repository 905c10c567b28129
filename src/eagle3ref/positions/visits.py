"""Which positions a server visits, once it is known what a round from each of them accepts: integers only."""

from __future__ import annotations

import torch
from torch import Tensor


def walk_positions(num_accepted: Tensor) -> Tensor:
    """The roots of a walk over one sequence: the first, then ``root + accepted + 1`` while there are any.

    Args:
        num_accepted: int64 [R], drafts that a round from each root keeps.

    Returns:
        int64 [n], indices into R, ascending.
    """
    accepted, visited, root = num_accepted.tolist(), [], 0
    while root < len(accepted):
        visited.append(root)
        root += accepted[root] + 1
    return torch.tensor(visited, dtype=torch.int64, device=num_accepted.device)


def visited_positions(num_accepted: Tensor) -> Tensor:
    """``walk_positions`` of many sequences or settings side by side, in R steps however many there are.

    Args:
        num_accepted: int64 [..., R]. Shorter sequences are padded at their end, with anything.

    Returns:
        Bool [..., R], whether the walk visits that root; of padding, anything.
    """
    steps = num_accepted.movedim(-1, 0).contiguous()  # [R, ...]
    visited = torch.zeros(steps.shape, dtype=torch.bool, device=steps.device)
    root = torch.zeros(steps.shape[1:], dtype=torch.int64, device=steps.device)
    for position, accepted in enumerate(steps):
        torch.eq(root, position, out=visited[position])
        root += (accepted + 1) * visited[position]
    return visited.movedim(0, -1)
