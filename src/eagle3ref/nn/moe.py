"""Mixture of experts with sigmoid routing and a selection bias."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from eagle3ref.config import MoEConfig
from eagle3ref.nn.mlp import GatedMLP
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


class MoE(nn.Module):
    """Routed experts plus shared experts, which are added once and unscaled."""

    def __init__(self, hidden_size: int, config: MoEConfig) -> None:
        super().__init__()
        self.gate = Router(hidden_size, config)
        self.experts = nn.ModuleList(GatedMLP(hidden_size, config.intermediate_size) for _ in range(config.num_experts))
        self.shared_experts = (
            GatedMLP(hidden_size, config.intermediate_size * config.num_shared_experts)
            if config.num_shared_experts
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        flat = x.reshape(-1, x.shape[-1])  # [T, C]
        weights, chosen = self.gate(flat)
        routed = torch.zeros_like(flat, dtype=weights.dtype)
        for expert in chosen.unique().tolist():
            token, slot = torch.where(chosen == expert)
            output = self.experts[expert](flat[token]) * weights[token, slot, None]
            routed = routed.index_add(0, token, output)
        total = routed.to(x.dtype).reshape(x.shape)
        return total if self.shared_experts is None else total + self.shared_experts(x)
