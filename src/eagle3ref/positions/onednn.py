"""Matrix products on a CPU through oneDNN."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_ROWS_STEP = 64


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` for rows x [..., in] and weight [out, in], in fp32 or bf16.

    PyTorch multiplies fp32 matrices with MKL. On an AMD EPYC (family 26, torch 2.13, one thread) oneDNN is 2.2 times as
    fast. But oneDNN compiles code for every shape, which takes as long as a small product; rows are padded, so that the
    shapes are few.
    """
    rows = x.flatten(0, -2)
    padding = -len(rows) % (_ROWS_STEP if len(rows) > _ROWS_STEP // 2 else _ROWS_STEP // 8)
    if padding:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, padding))
    products: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    real: Tensor = products[: len(rows) - padding].unflatten(0, x.shape[:-1])
    return real


class OneDnnLinear(nn.Linear):
    """``nn.Linear`` by ``product``."""

    def __init__(self, linear: nn.Linear) -> None:
        """The twin of ``linear``; it has the same parameters, not copies."""
        super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, input: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        return product(input, self.weight, self.bias)
