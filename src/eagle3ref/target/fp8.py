"""K2-Instruct's FP8 weights: e4m3 with one fp32 scale for each 128 x 128 block."""

from __future__ import annotations

import torch
from torch import Tensor

FP8_BLOCK = 128


def dequantize_fp8(weight: Tensor, scale_inv: Tensor) -> Tensor:
    """``weight * scale`` in fp32, rounded to bf16.

    Rounded, because bf16 is what a copy of such a checkpoint for training or for older GPUs holds (DeepSeek's own
    conversion to bf16 does the same), and what SGLang makes of ``kv_b_proj`` for absorbed attention. On GPUs with FP8
    units SGLang and vLLM do not dequantize the other matrices: they also round the *activations* to FP8, in groups of
    128, which no reading of the weights can reproduce.

    Args:
        weight: float8_e4m3fn [out, in].
        scale_inv: float32 [ceil(out / 128), ceil(in / 128)], the factor of each block, despite its name. Blocks at the
            right and at the bottom may be cut short.

    Returns:
        bfloat16 [out, in].
    """
    result = torch.empty(weight.shape, dtype=torch.bfloat16, device=weight.device)
    columns = weight.shape[1]
    # One row of blocks at a time: the fp32 product of a whole matrix would be four times the weight itself.
    for row, scales in enumerate(scale_inv):
        rows = slice(row * FP8_BLOCK, (row + 1) * FP8_BLOCK)
        result[rows] = weight[rows].float() * scales.repeat_interleave(FP8_BLOCK)[:columns]
    return result
