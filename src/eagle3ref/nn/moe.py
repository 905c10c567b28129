"""Mixture of experts with sigmoid routing and a selection bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from eagle3ref.config import MoEConfig
from eagle3ref.nn.mlp import BLOCK_ROWS, GatedMLP
from eagle3ref.nn.norm import at_least_float32


class Router(nn.Module):
    """Chooses experts by ``sigmoid(logit) + bias`` and weighs them by ``sigmoid(logit)`` alone.

    DeepSeek-V3 (arXiv 2412.19437), eq. 16. The bias stays fp32: rounded to bf16 it chooses other experts.
    """

    def __init__(self, hidden_size: int, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.zeros(config.num_experts, hidden_size))
        self.e_score_correction_bias = nn.Parameter(
            torch.zeros(config.num_experts, dtype=torch.float32), requires_grad=False
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, C] -> weights [T, k] and expert indices [T, k], in fp32 (fp64 when x is fp64)."""
        wide = at_least_float32(x.dtype)
        scores = torch.sigmoid(x.to(wide) @ self.weight.to(wide).T)  # [T, E]
        chosen = torch.topk(scores + self.e_score_correction_bias, self.config.num_experts_per_token).indices
        weights = scores.gather(-1, chosen)
        if self.config.normalize_weights:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.config.routed_scaling_factor, chosen


Expert = Callable[[Tensor], Tensor]  # [n, C] -> [n, C]


class ExpertSource(Protocol):
    """Where routed experts come from: a module's own weights, packed ones, a file."""

    def visit(self, indices: Sequence[int], use: Callable[[int, Expert], None]) -> None:
        """Call ``use(index, expert)`` for these ascending indices in turn; no expert need outlive its call."""
        ...


class Experts(nn.ModuleList):
    """Routed experts with weights of their own."""

    def __init__(self, hidden_size: int, config: MoEConfig) -> None:
        super().__init__(GatedMLP(hidden_size, config.intermediate_size) for _ in range(config.num_experts))

    def visit(self, indices: Sequence[int], use: Callable[[int, Expert], None]) -> None:
        """See ``ExpertSource.visit``."""
        for index in indices:
            use(index, self[index])


class MoE(nn.Module):
    """Routed experts plus shared experts, which are added once and unscaled.

    Args:
        hidden_size: C.
        config: how many experts, how wide, how they are chosen.
        experts: the routed ones; modules of its own when None.
    """

    def __init__(self, hidden_size: int, config: MoEConfig, experts: ExpertSource | None = None) -> None:
        super().__init__()
        self.gate = Router(hidden_size, config)
        self.experts: ExpertSource = Experts(hidden_size, config) if experts is None else experts
        self.shared_experts = (
            GatedMLP(hidden_size, config.intermediate_size * config.num_shared_experts)
            if config.num_shared_experts
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        flat = x.reshape(-1, x.shape[-1])  # [T, C]
        total = self._routed(flat).to(x.dtype)
        if self.shared_experts is not None:
            for start in range(0, len(flat), BLOCK_ROWS):
                rows = slice(start, start + BLOCK_ROWS)
                total[rows] += self.shared_experts(flat[rows])
        return total.reshape(x.shape)

    def _routed(self, flat: Tensor) -> Tensor:
        """[T, C] -> [T, C] in fp32 (fp64): the experts in ascending order, wherever they come from."""
        routes = [self.gate(rows) for rows in flat.split(BLOCK_ROWS)]
        weights, chosen = (torch.cat(parts) for parts in zip(*routes, strict=True))  # [T, k]
        weights = weights.flatten()
        per_token = chosen.shape[-1]
        by_expert = chosen.flatten().argsort(stable=True)  # of each expert: its slots in the table, ascending
        counts = chosen.flatten().bincount(minlength=self.gate.config.num_experts).tolist()
        slots = by_expert.split(counts)
        routed = torch.zeros_like(flat, dtype=weights.dtype)

        def use(index: int, expert: Expert) -> None:
            for slot in slots[index].split(BLOCK_ROWS):
                token = slot // per_token
                routed.index_add_(0, token, expert(flat[token]) * weights[slot, None])

        self.experts.visit([index for index, count in enumerate(counts) if count], use)
        return routed
