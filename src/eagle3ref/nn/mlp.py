"""The SiLU-gated feed-forward layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

BLOCK_ROWS = 1024  # rows that go through a matrix at a time: enough for full speed, few enough for little memory


class GatedMLP(nn.Module):
    """``down(silu(gate(x)) * up(x))``."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        down: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


@dataclass(frozen=True)
class GatedMatrices:
    """The weights of a ``GatedMLP`` without bias, each [out, in], that belong to no module; the same result."""

    gate: Tensor
    up: Tensor
    down: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        gated = functional.silu(functional.linear(x, self.gate)) * functional.linear(x, self.up)
        return functional.linear(gated, self.down)


def in_blocks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``function`` of ``BLOCK_ROWS`` rows of x [T, C] at a time, so that what it makes inside is bounded."""
    if len(x) <= BLOCK_ROWS:
        return function(x)
    return torch.cat([function(rows) for rows in x.split(BLOCK_ROWS)])
