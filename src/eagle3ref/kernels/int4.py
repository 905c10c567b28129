"""Products with Moonshot's INT4 weights (``target/int4.py``) that never write the weight out: one weight, or experts.

A word holds eight neighboring inputs of one output. The kernel does not spread them into a row of eight: it multiplies
the lowest nibbles of all words by inputs 0, 8, 16, ..., the next ones by inputs 1, 9, 17, ..., eight small products in
all. So a nibble stays in the thread that read its word, and only x, which is small, changes places.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels.eager import check_int4
from eagle3ref.kernels.launch import (
    factor_dtype,
    on_device,
    require_device,
    require_dtype,
    require_no_gradient,
    rounded,
)
from eagle3ref.kernels.nibbles import EVEN, ODD, by_nibble, with_nibble
from eagle3ref.kernels.split_k import (
    TileConfig,
    add_splits,
    affordable_splits,
    best_num_splits,
    neighboring_tile,
    partial_sums,
)

_BYTES_PER_WEIGHT = 1 / 2 + 2 / 32  # a nibble, and a 32nd of a scale


@triton.jit
def _rows_of_tile(tile, offsets, num_experts: tl.constexpr, padded_experts: tl.constexpr, block_m: tl.constexpr):
    """(expert, first row, end of the expert's rows) of a row tile; expert >= num_experts behind the last tile.

    Found on the device from the offsets alone, so that the host need not wait for the routing.
    """
    expert = tl.arange(0, padded_experts)
    is_expert = expert < num_experts
    begin = tl.load(offsets + expert, mask=is_expert, other=0).to(tl.int32)
    end = tl.load(offsets + expert + 1, mask=is_expert, other=0).to(tl.int32)
    tiles = tl.cumsum((end - begin + block_m - 1) // block_m)  # of an expert and of those before it
    earlier = tiles <= tile
    before = tl.max(tl.where(earlier, tiles, 0))
    mine = tl.sum(earlier.to(tl.int32))
    is_mine = expert == mine
    first = tl.sum(tl.where(is_mine, begin, 0)) + (tile - before) * block_m
    return mine, first, tl.sum(tl.where(is_mine, end, 0))


@triton.jit(do_not_specialize=["num_rows", "row_tiles"])
def _int4_kernel(
    x,  # [M, num_inputs]
    x_stride,
    packed,  # int32 [E, num_columns, num_inputs / 8]
    scale,  # [E, num_columns, num_inputs / 32]
    offsets,  # [E + 1], or None with a single weight
    out,  # [num_splits, M, num_columns]
    num_rows,
    row_tiles,
    num_experts: tl.constexpr,
    padded_experts: tl.constexpr,
    num_columns: tl.constexpr,
    num_inputs: tl.constexpr,
    num_splits: tl.constexpr,
    factor: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
):
    row_tile, column_tile = neighboring_tile(row_tiles, tl.cdiv(num_columns, block_n))
    expert, first_row, end_row = 0, row_tile * block_m, num_rows
    if offsets is not None:
        expert, first_row, end_row = _rows_of_tile(row_tile, offsets, num_experts, padded_experts, block_m)
        if expert >= num_experts:
            return
    row = first_row + tl.arange(0, block_m)
    column = column_tile * block_n + tl.arange(0, block_n)
    # Nobody has looked at the offsets: wrong ones may give wrong rows, but none outside of x.
    row_inside = (row >= 0) & (row < tl.minimum(end_row, num_rows))
    column_inside = column < num_columns
    wide_row = row.to(tl.int64)
    weight_row = tl.cast(expert, tl.int64) * num_columns + column
    k, word, group = tl.arange(0, block_k), tl.arange(0, block_k // 8), tl.arange(0, block_k // 32)
    x_rows = x + wide_row[:, None] * x_stride
    packed_rows = packed + weight_row[None, :] * (num_inputs // 8)
    scale_rows = scale + weight_row[None, :] * (num_inputs // 32)

    split = tl.program_id(1)
    num_blocks: tl.constexpr = (num_inputs + block_k - 1) // block_k
    per_split: tl.constexpr = (num_blocks + num_splits - 1) // num_splits
    total = tl.zeros((block_m, block_n), tl.float32)
    for block in range(split * per_split, tl.minimum((split + 1) * per_split, num_blocks)):
        at, word_at, group_at = block * block_k + k, block * (block_k // 8) + word, block * (block_k // 32) + group
        inputs = tl.load(x_rows + at[None, :], mask=row_inside[:, None] & (at < num_inputs)[None, :], other=0.0)
        words_inside = column_inside[None, :] & (word_at < num_inputs // 8)[:, None]
        words = tl.load(packed_rows + word_at[:, None], mask=words_inside, other=0)
        groups_inside = column_inside[None, :] & (group_at < num_inputs // 32)[:, None]
        scales = tl.load(scale_rows + group_at[:, None], mask=groups_inside, other=0.0).to(tl.float32)
        scales = tl.broadcast_to(scales[:, None, :], (block_k // 32, 4, block_n)).reshape((block_k // 8, block_n))
        even_offset, odd_offset = scales * (EVEN + 8), scales * (ODD + 8)
        parts = by_nibble(inputs, block_m, block_k // 8)
        for nibble in tl.static_range(8):
            offset = odd_offset if nibble % 2 else even_offset
            weight = rounded(with_nibble(words, nibble) * scales - offset, scale.dtype.element_ty)
            if weight.dtype != x.dtype.element_ty:
                weight = rounded(weight.to(tl.float32), x.dtype.element_ty)
            total = tl.dot(parts[nibble].to(factor), weight.to(factor), total, input_precision="ieee")

    place = out + (split.to(tl.int64) * num_rows + wide_row[:, None]) * num_columns + column[None, :]
    tl.store(place, rounded(total, out.dtype.element_ty), mask=row_inside[:, None] & column_inside[None, :])


def int4_matmul(x: Tensor, packed: Tensor, scale: Tensor, *, config: TileConfig | None = None) -> Tensor:
    """``eager.int4_matmul`` without the dequantized weight: same rounding of it, fp32 sums.

    Args:
        x: [M, in], fp32, fp16 or bf16; rows may be strided.
        packed: int32 [out, in / 8].
        scale: [out, in / 32], fp16 or bf16.
        config: tiles; the first of ``int4_configs`` when None.

    Returns:
        [M, out], in x's dtype; the same bits every run.

    Raises:
        Eagle3RefError: shapes, dtypes or devices that do not fit, or a gradient that is asked for.
    """
    doing = "multiplying by an INT4 weight with Triton"
    check_int4(doing, x, packed, scale)
    return _multiply(doing, x, None, packed[None], scale[None], config)


def int4_grouped_matmul(
    x: Tensor, offsets: Tensor, packed: Tensor, scale: Tensor, *, config: TileConfig | None = None
) -> Tensor:
    """``eager.int4_grouped_matmul`` in one launch for all experts, without waiting for the routing.

    Args:
        x: [M, in], rows sorted by expert.
        offsets: int32 or int64 [E + 1] on the device, rising from 0 to M. They are not read by the host: rows that no
            expert has are left as they are, uninitialized.
        packed: int32 [E, out, in / 8].
        scale: [E, out, in / 32], fp16 or bf16.
        config: tiles; the first of ``int4_configs`` when None.

    Returns:
        [M, out], in x's dtype; the same bits every run.

    Raises:
        Eagle3RefError: shapes, dtypes or devices that do not fit, or a gradient that is asked for.
    """
    doing = "multiplying by INT4 experts with Triton"
    check_int4(doing, x, packed, scale, offsets)
    return _multiply(doing, x, offsets, packed, scale, config)


def int4_configs(num_rows: int, num_columns: int, num_inputs: int, *, num_experts: int = 1) -> list[TileConfig]:
    """Tiles for ``num_rows`` rows of all experts together: the default first, then its rivals for a device check.

    Chosen for an H100 or H200 by the arithmetic in ``docs/kernels.md``, not yet timed on one.
    """
    experts_in_use = min(num_experts, num_rows)
    rows_each = triton.cdiv(num_rows, max(experts_in_use, 1))
    block_m = min(64, max(16, triton.next_power_of_2(rows_each)))
    if block_m == 16:
        shapes = [(128, 128, 4, 4, 4), (128, 256, 4, 3, 2), (64, 256, 4, 4, 3)]
    else:
        shapes = [(128, 128, 4, 4, 2), (64, 256, 4, 4, 1)]
    configs = []
    for block_n, block_k, num_warps, num_stages, resident in shapes:
        row_tiles = max(1, experts_in_use) * triton.cdiv(rows_each, block_m)
        tiles = row_tiles * triton.cdiv(num_columns, block_n)
        most = affordable_splits(rows_each, num_inputs, _BYTES_PER_WEIGHT)
        splits = best_num_splits(tiles, triton.cdiv(num_inputs, block_k), most, resident)
        configs.append(TileConfig(block_m, block_n, block_k, splits, num_warps, num_stages))
    return configs


def _multiply(
    doing: str, x: Tensor, offsets: Tensor | None, packed: Tensor, scale: Tensor, config: TileConfig | None
) -> Tensor:
    """x [M, in], packed [E, out, in / 8], scale [E, out, in / 32] -> [M, out]; E is 1 without offsets."""
    _check(doing, x, offsets, packed, scale)
    x = x if x.stride(1) == 1 else x.contiguous()
    offsets = None if offsets is None else offsets.contiguous()
    (num_experts, num_columns, _), (num_rows, num_inputs) = packed.shape, x.shape
    out = x.new_empty((num_rows, num_columns))
    if out.numel() == 0:
        return out
    config = config or int4_configs(num_rows, num_columns, num_inputs, num_experts=num_experts)[0]
    row_tiles = triton.cdiv(num_rows, config.block_m)
    if offsets is not None:
        # Every expert's last tile may be a partial one; more tiles than that, or than rows, there cannot be.
        row_tiles = min(num_rows, row_tiles + num_experts - 1)
    partials = partial_sums(out, config.num_splits)
    with on_device(x):
        _int4_kernel[(row_tiles * triton.cdiv(num_columns, config.block_n), config.num_splits)](
            x,
            x.stride(0),
            packed,
            scale,
            offsets,
            partials,
            num_rows,
            row_tiles,
            num_experts=num_experts,
            padded_experts=triton.next_power_of_2(num_experts),
            num_columns=num_columns,
            num_inputs=num_inputs,
            num_splits=config.num_splits,
            factor=factor_dtype(x.dtype),
            block_m=config.block_m,
            block_n=config.block_n,
            block_k=config.block_k,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
    if config.num_splits > 1:
        add_splits(partials, None, out)
    return out


def _check(doing: str, x: Tensor, offsets: Tensor | None, packed: Tensor, scale: Tensor) -> None:
    require_device(doing, x, offsets, packed, scale)
    require_no_gradient(doing, x, scale)
    require_dtype(doing, x=x)
    if scale.dtype not in (torch.float16, torch.bfloat16) or not (packed.is_contiguous() and scale.is_contiguous()):
        layouts = ["contiguous" if tensor.is_contiguous() else "strided" for tensor in (packed, scale)]
        raise Eagle3RefError(
            doing,
            found=f"a {layouts[0]} packed weight and {layouts[1]} scales in {scale.dtype}",
            expected="both contiguous, the scales in torch.bfloat16 or torch.float16 as checkpoints have them",
            action="Lay them out so once, before the first call.",
        )
