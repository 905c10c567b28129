"""RMSNorm folded into the product that reads it: root mean squares first, the rest in the product's registers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3ref.kernels.launch import on_device, rounded, triton_dtype


@triton.jit
def normed(x, inverse_rms, scale, dtype: tl.constexpr):
    """RMSNorm of x in ``dtype``, rounded where the reference rounds: after the division, and again after the weight."""
    divided = rounded(x.to(tl.float32) * inverse_rms, dtype)
    return rounded(divided.to(tl.float32) * scale.to(tl.float32), dtype)


@triton.jit(do_not_specialize=["num_rows"])
def _inverse_rms_kernel(
    chunks,  # A pointers to [M, chunk_size]
    row_strides,
    input_norm,  # [A * chunk_size], or None
    inverse_rms,  # fp32 [A + 1, M]: of each chunk, after the input norm if there is one; then of the concatenation
    num_rows,
    eps,
    num_chunks: tl.constexpr,
    chunk_size: tl.constexpr,
    dtype: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    whole = 1.0
    if input_norm is not None:
        total = 0.0
        for chunk in tl.static_range(num_chunks):
            for begin in range(0, chunk_size, block):
                at = begin + column
                x = tl.load(chunks[chunk] + row * row_strides[chunk] + at, mask=at < chunk_size, other=0.0)
                x = rounded(x.to(tl.float32), dtype).to(tl.float32)
                total += tl.sum(x * x)
        whole = tl.div_rn(1.0, tl.sqrt_rn(total / (num_chunks * chunk_size) + eps))
        tl.store(inverse_rms + num_chunks * num_rows.to(tl.int64) + row, whole)
    for chunk in tl.static_range(num_chunks):
        total = 0.0
        for begin in range(0, chunk_size, block):
            at = begin + column
            x = tl.load(chunks[chunk] + row * row_strides[chunk] + at, mask=at < chunk_size, other=0.0)
            x = rounded(x.to(tl.float32), dtype)
            if input_norm is not None:
                x = normed(x, whole, tl.load(input_norm + chunk * chunk_size + at, mask=at < chunk_size), dtype)
            squared = x.to(tl.float32) * x.to(tl.float32)
            total += tl.sum(tl.where(at < chunk_size, squared, 0.0))
        inverse = tl.div_rn(1.0, tl.sqrt_rn(total / chunk_size + eps))
        tl.store(inverse_rms + chunk * num_rows.to(tl.int64) + row, inverse)


def inverse_root_mean_squares(
    chunks: Sequence[Tensor], input_norm_weight: Tensor | None, dtype: torch.dtype, eps: float
) -> Tensor:
    """fp32 [A + 1, M]: one over the root mean square of every row of each chunk, then of the concatenation."""
    num_rows, chunk_size = chunks[0].shape
    inverse_rms = torch.empty((len(chunks) + 1, num_rows), dtype=torch.float32, device=chunks[0].device)
    with on_device(inverse_rms):
        _inverse_rms_kernel[(num_rows,)](
            tuple(chunks),
            tuple(chunk.stride(0) for chunk in chunks),
            input_norm_weight,
            inverse_rms,
            num_rows,
            eps,
            num_chunks=len(chunks),
            chunk_size=chunk_size,
            dtype=triton_dtype(dtype),
            block=min(2048, triton.next_power_of_2(chunk_size)),
            num_warps=8,
        )
    return inverse_rms
