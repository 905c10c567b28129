"""The k most probable of many logits in Triton: softmax and selection in one.

A draft's vocabulary has 32000 to 163840 tokens, of which a pass wants a handful. PyTorch writes the softmax and 64-bit
keys of all of them, and selects from those; here the logits are read twice, and nothing else is large. Three kernels:
the largest logit and the sum of each stretch of columns; the best k of each stretch, by probability; the best of those.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3ref.kernels.eager_selection import check_k
from eagle3ref.kernels.launch import on_device, require_device, require_dtype, require_no_gradient

_DOING = "taking the most probable tokens with Triton"
_COLUMNS = 4096  # that one program reads
_NAN = tl.constexpr(-1.0)  # ranks below every probability
_OUTSIDE = tl.constexpr(-2.0)  # and this below a NaN
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN2_HIGH = tl.constexpr(0.693145751953125)  # its product with a small integer is exact
_LN2_LOW = tl.constexpr(1.4286068203094172e-06)


@triton.jit
def _power_of_two(exponent):
    """2^exponent as fp32, -126 to 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _exp(x):
    """e^x of x <= 0 within a unit in the last place; ``tl.exp`` is off by 2e-6 where x is -30."""
    x = tl.where(x < -120.0, -120.0, x)  # NaN stays
    whole = tl.floor(x * _LOG2_E + 0.5)
    rest = tl.fma(whole, -_LN2_LOW, tl.fma(whole, -_LN2_HIGH, x))  # within ln 2 / 2 of 0
    power = tl.full(x.shape, 1 / 5040, tl.float32)
    power = tl.fma(power, rest, 1 / 720)
    power = tl.fma(power, rest, 1 / 120)
    power = tl.fma(power, rest, 1 / 24)
    power = tl.fma(power, rest, 1 / 6)
    power = tl.fma(power, rest, 0.5)
    power = tl.fma(power, rest, 1.0)
    power = tl.fma(power, rest, 1.0)
    exponent = tl.where(whole == whole, whole, 0.0).to(tl.int32)
    half = exponent // 2
    return power * _power_of_two(half) * _power_of_two(exponent - half)  # two steps, so that the result may be tiny


@triton.jit
def _take_best(keys, columns, values, indices, k: tl.constexpr):
    """Write the k largest keys, of equal ones the lowest column first, and their columns."""
    for place in range(k):
        best = tl.max(keys, 0)
        column = tl.min(tl.where(keys == best, columns, 0x7FFFFFFF), 0)
        tl.store(values + place, best)
        tl.store(indices + place, column)
        keys = tl.where(columns == column, _OUTSIDE, keys)


@triton.jit(do_not_specialize=["num_columns"])
def _sums_kernel(logits, row_stride, largest, sums, num_columns, block: tl.constexpr):
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = stretch * block + tl.arange(0, block)
    x = tl.load(logits + row * row_stride + column, mask=column < num_columns, other=float("-inf")).to(tl.float32)
    top = tl.max(x, 0)
    place = row * tl.num_programs(1) + stretch
    tl.store(largest + place, top)
    reference = tl.where(top == float("-inf"), 0.0, top)  # a stretch that is masked out sums to 0, not to NaN
    tl.store(sums + place, tl.sum(tl.where(column < num_columns, _exp(x - reference), 0.0), 0))


@triton.jit(do_not_specialize=["num_columns"])
def _stretches_kernel(
    logits,
    row_stride,
    largest,  # fp32 [R, stretches]
    sums,  # likewise
    values,  # fp32 [R, stretches, k]
    indices,  # int32 [R, stretches, k]
    num_columns,
    k: tl.constexpr,
    block: tl.constexpr,
    padded_stretches: tl.constexpr,
):
    row, stretch, stretches = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    each = tl.arange(0, padded_stretches)
    tops = tl.load(largest + row * stretches + each, mask=each < stretches, other=float("-inf"))
    top = tl.max(tops, 0)
    parts = tl.load(sums + row * stretches + each, mask=each < stretches, other=0.0)
    total = tl.sum(tl.where(each < stretches, parts * _exp(tops - top), 0.0), 0)
    column = stretch * block + tl.arange(0, block)
    inside = column < num_columns
    x = tl.load(logits + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    probs = tl.div_rn(_exp(x - top), tl.zeros((block,), tl.float32) + total)
    keys = tl.where(inside, tl.where(probs == probs, probs, _NAN), _OUTSIDE)
    place = (row * stretches + stretch) * k
    _take_best(keys, column, values + place, indices + place, k)


@triton.jit(do_not_specialize=["num_kept"])
def _best_kernel(
    values,  # fp32 [R, num_kept], of all stretches
    indices,  # int32 [R, num_kept]
    out_probs,  # fp32 [R, k]
    out_indices,  # int64 [R, k]
    num_kept,
    k: tl.constexpr,
    block: tl.constexpr,
):
    row, each = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    keys = tl.load(values + row * num_kept + each, mask=each < num_kept, other=_OUTSIDE)
    columns = tl.load(indices + row * num_kept + each, mask=each < num_kept, other=0x7FFFFFFF)
    _take_best(keys, columns, out_probs + row * k, out_indices + row * k, k)


def topk_probs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``eager_selection.topk_probs`` in Triton, without a host sync.

    Probabilities within a few units in the last place of PyTorch's, and the same tokens wherever two probabilities are
    farther apart than that; equal logits go to the lower index.

    Args:
        logits: fp32, fp16 or bf16 [..., V].
        k: 1 <= k <= V.

    Returns:
        Probabilities fp32 [..., k] and indices int64 [..., k].

    Raises:
        Eagle3RefError: k out of range, a gradient, or a dtype or device that Triton does not take.
    """
    check_k(logits, k)
    require_device(_DOING, logits)
    require_dtype(_DOING, logits=logits)
    require_no_gradient(_DOING, logits)
    rows = logits.reshape(-1, logits.shape[-1])
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    num_rows, num_columns = rows.shape
    probs = torch.empty((num_rows, k), dtype=torch.float32, device=logits.device)
    chosen = torch.empty((num_rows, k), dtype=torch.int64, device=logits.device)
    block = min(_COLUMNS, triton.next_power_of_2(num_columns))
    block = max(block, triton.next_power_of_2(k))  # a stretch must hold k
    stretches = triton.cdiv(num_columns, block)
    largest, sums = probs.new_empty(2, num_rows, stretches)
    values = probs.new_empty(num_rows, stretches, k)
    indices = torch.empty_like(values, dtype=torch.int32)
    if num_rows:
        with on_device(logits):
            grid = (num_rows, stretches)
            _sums_kernel[grid](rows, rows.stride(0), largest, sums, num_columns, block=block)
            _stretches_kernel[grid](
                rows,
                rows.stride(0),
                largest,
                sums,
                values,
                indices,
                num_columns,
                k=k,
                block=block,
                padded_stretches=triton.next_power_of_2(stretches),
            )
            kept = stretches * k
            _best_kernel[(num_rows,)](values, indices, probs, chosen, kept, k=k, block=triton.next_power_of_2(kept))
    shape = (*logits.shape[:-1], k)
    return probs.where(probs >= 0, float("nan")).view(shape), chosen.view(shape)
