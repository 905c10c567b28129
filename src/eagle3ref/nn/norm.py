"""RMSNorm in Llama's rounding order."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype for variances, softmax and scores: fp32, or fp64 when the reference runs in fp64."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """``weight * cast(x / sqrt(mean(x^2) + eps))``: the norm in fp32, cast to the input's dtype, *then* the weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]."""
        wide = x.to(at_least_float32(x.dtype))
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)
