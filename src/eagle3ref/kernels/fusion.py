"""The first recurrent state without the concatenation: A separate aux hidden states times ``fc``, norms folded in.

The fc of Kimi-K2.5's draft is [7168, 21504], 308 MB in bf16, and a round of decoding multiplies it by one to a few
dozen rows: an operation per byte and row, so up to some 180 rows it takes as long as to read the weight once. The
kernel is laid out for that. By Little's law 4.3 TB/s (an H200's copy rate) times some 0.8 us from request to arrival
are 3.4 MB on their way at any time, 26 KB for each multiprocessor; three programs with three tiles of 128 x 64 ahead
make 144 KB. 56 column tiles times 7 splits of K are 392 programs for the 396 places. Each weight row is read once, in
whole cache lines. The rows of x are read for every column tile, from the L2 cache: the wider the tile, the less of
that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels.eager import check_fusion
from eagle3ref.kernels.folded_norm import inverse_root_mean_squares, normed
from eagle3ref.kernels.launch import (
    factor_dtype,
    on_device,
    require_device,
    require_dtype,
    require_no_gradient,
    rounded,
)
from eagle3ref.kernels.split_k import (
    TileConfig,
    add_splits,
    affordable_splits,
    best_num_splits,
    neighboring_tile,
    partial_sums,
)

_DOING = "fusing aux hidden states with Triton"


@triton.jit(do_not_specialize=["num_rows"])
def _fuse_kernel(
    chunks,  # A pointers to [M, chunk_size]
    row_strides,
    input_norm,  # [A * chunk_size], or None
    chunk_norms,  # A pointers to [chunk_size], or None
    inverse_rms,  # fp32 [A + 1, M], as the kernel above leaves it; unused without norms
    weight,  # [N, A * chunk_size]
    weight_stride,
    bias,  # [N], or None; added here only when there is one split
    out,  # [num_splits, M, N]
    num_rows,
    num_columns: tl.constexpr,
    chunk_size: tl.constexpr,
    num_chunks: tl.constexpr,
    num_splits: tl.constexpr,
    factor: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
):
    row_tile, column_tile = neighboring_tile(tl.cdiv(num_rows, block_m), tl.cdiv(num_columns, block_n))
    row = row_tile * block_m + tl.arange(0, block_m)
    column = column_tile * block_n + tl.arange(0, block_n)
    split = tl.program_id(1)
    k = tl.arange(0, block_k)
    row_inside, column_inside = row < num_rows, column < num_columns
    wide_row, wide_column = row.to(tl.int64), column.to(tl.int64)  # 7168 x 21504 fits 31 bits; other sizes do not
    dtype = weight.dtype.element_ty

    # Every chunk is cut into the same number of blocks, so that none reaches into the next chunk.
    blocks_per_chunk: tl.constexpr = (chunk_size + block_k - 1) // block_k
    per_split: tl.constexpr = (num_chunks * blocks_per_chunk + num_splits - 1) // num_splits
    total = tl.zeros((block_m, block_n), tl.float32)
    if input_norm is not None:
        whole = tl.load(inverse_rms + num_chunks * num_rows.to(tl.int64) + row, mask=row_inside, other=0.0)
    weight_rows = weight + wide_column[None, :] * weight_stride
    for chunk in tl.static_range(num_chunks):
        first = tl.maximum(split * per_split - chunk * blocks_per_chunk, 0)
        last = tl.minimum((split + 1) * per_split - chunk * blocks_per_chunk, blocks_per_chunk)
        x_rows = chunks[chunk] + wide_row[:, None] * row_strides[chunk]
        if chunk_norms is not None:
            own = tl.load(inverse_rms + chunk * num_rows.to(tl.int64) + row, mask=row_inside, other=0.0)
        for block in range(first, last):
            at = block * block_k + k
            inside = at < chunk_size
            x = tl.load(x_rows + at[None, :], mask=row_inside[:, None] & inside[None, :], other=0.0)
            if x.dtype != dtype:
                x = rounded(x.to(tl.float32), dtype)
            if input_norm is not None:
                scale = tl.load(input_norm + chunk * chunk_size + at, mask=inside, other=0.0)
                x = normed(x, whole[:, None], scale[None, :], dtype)
            if chunk_norms is not None:
                scale = tl.load(chunk_norms[chunk] + at, mask=inside, other=0.0)
                x = normed(x, own[:, None], scale[None, :], dtype)
            w = tl.load(
                weight_rows + (chunk * chunk_size + at)[:, None],
                mask=column_inside[None, :] & inside[:, None],
                other=0.0,
            )
            total = tl.dot(x.to(factor), w.to(factor), total, input_precision="ieee")

    if bias is not None and num_splits == 1:
        total += tl.load(bias + column, mask=column_inside, other=0.0).to(tl.float32)[None, :]
    place = out + (split.to(tl.int64) * num_rows + wide_row[:, None]) * num_columns + wide_column[None, :]
    tl.store(place, rounded(total, out.dtype.element_ty), mask=row_inside[:, None] & column_inside[None, :])


def fuse(
    chunks: Sequence[Tensor],
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    norm_weights: Sequence[Tensor] | None = None,
    input_norm_weight: Tensor | None = None,
    eps: float = 1e-5,
    config: TileConfig | None = None,
) -> Tensor:
    """``eager.fuse`` as one pass over the weight: same arguments, same result up to the order of the fp32 sums.

    Args:
        chunks: A of [M, Ct], one a capture point; rows may be strided, as in a slice of a wider tensor.
        weight: [C, A * Ct], fp32, fp16 or bf16; fp32 is multiplied as such, not as TF32.
        bias: [C].
        norm_weights: A of [Ct], one RMSNorm a chunk (``fc_norm``).
        input_norm_weight: [A * Ct], one RMSNorm over the concatenation (``norm_before_fc``), before those.
        eps: of the norms.
        config: tiles; ``fusion_config`` of the sizes when None.

    Returns:
        [M, C], in the weight's dtype. The same bits every run, and on every device that adds a tile in the same order.

    Raises:
        Eagle3RefError: shapes, dtypes or devices that do not fit, or a gradient that is asked for.
    """
    check_fusion(_DOING, chunks, weight, bias, norm_weights, input_norm_weight)
    others = (*chunks, bias, input_norm_weight, *(norm_weights or ()))
    require_device(_DOING, weight, *others)
    require_no_gradient(_DOING, weight, *others)
    require_dtype(_DOING, weight=weight)
    if weight.stride(1) != 1:
        raise Eagle3RefError(
            _DOING,
            found="a weight whose rows are not contiguous",
            expected="[C, A * Ct] as nn.Linear keeps it",
            action="Lay it out so once, before the first call.",
        )
    chunks = [chunk if chunk.stride(1) == 1 else chunk.contiguous() for chunk in chunks]
    bias, input_norm_weight = _in_a_row(bias), _in_a_row(input_norm_weight)
    norms = None if norm_weights is None else tuple(norm.contiguous() for norm in norm_weights)
    num_rows, num_columns = len(chunks[0]), len(weight)
    out = torch.empty((num_rows, num_columns), dtype=weight.dtype, device=weight.device)
    if num_rows == 0:
        return out
    config = config or fusion_config(num_rows, num_columns, chunks[0].shape[1], len(chunks), weight.dtype)
    has_norm = norms is not None or input_norm_weight is not None
    inverse_rms = inverse_root_mean_squares(chunks, input_norm_weight, weight.dtype, eps) if has_norm else None
    partials = partial_sums(out, config.num_splits)
    tiles = triton.cdiv(num_rows, config.block_m) * triton.cdiv(num_columns, config.block_n)
    with on_device(weight):
        _fuse_kernel[(tiles, config.num_splits)](
            tuple(chunks),
            tuple(chunk.stride(0) for chunk in chunks),
            input_norm_weight,
            norms,
            inverse_rms,
            weight,
            weight.stride(0),
            bias,
            partials,
            num_rows,
            num_columns=num_columns,
            chunk_size=chunks[0].shape[1],
            num_chunks=len(chunks),
            num_splits=config.num_splits,
            factor=factor_dtype(weight.dtype),
            block_m=config.block_m,
            block_n=config.block_n,
            block_k=config.block_k,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
    if config.num_splits > 1:
        add_splits(partials, bias, out)
    return out


def _in_a_row(vector: Tensor | None) -> Tensor | None:
    """The kernels step through vectors one by one; those that lie otherwise are copied."""
    return None if vector is None else vector.contiguous()


def fusion_config(num_rows: int, num_columns: int, chunk_size: int, num_chunks: int, dtype: torch.dtype) -> TileConfig:
    """The tiles for M rows: chosen for an H100 or H200 from the numbers above, not yet timed on one."""
    return fusion_configs(num_rows, num_columns, chunk_size, num_chunks, dtype)[0]


def fusion_configs(
    num_rows: int, num_columns: int, chunk_size: int, num_chunks: int, dtype: torch.dtype
) -> list[TileConfig]:
    """``fusion_config`` first, then its rivals: what a device check times."""
    block_m = max(16, triton.next_power_of_2(num_rows))
    if dtype == torch.float32:  # without the tensor cores: not a path to be fast on
        shapes = [(min(block_m, 32), 64, 32, 4, 4, 2)]
    elif block_m == 16:
        shapes = [(16, 128, 64, 4, 5, 3), (16, 64, 128, 4, 4, 3), (16, 128, 128, 4, 4, 2)]
    elif block_m == 32:
        shapes = [(32, 128, 64, 4, 5, 2), (32, 64, 128, 4, 4, 2)]
    elif block_m == 64:
        shapes = [(64, 128, 64, 4, 4, 2), (64, 256, 64, 8, 4, 1), (64, 64, 128, 4, 3, 2)]
    else:
        shapes = [(128, 128, 64, 8, 3, 2), (128, 256, 64, 8, 3, 1), (64, 128, 64, 4, 4, 2)]
    configs = []
    for block_m, block_n, block_k, num_warps, num_stages, resident in shapes:
        tiles = triton.cdiv(num_rows, block_m) * triton.cdiv(num_columns, block_n)
        blocks = num_chunks * triton.cdiv(chunk_size, block_k)
        most = affordable_splits(num_rows, num_chunks * chunk_size, dtype.itemsize)
        splits = best_num_splits(tiles, blocks, most, resident)
        configs.append(TileConfig(block_m, block_n, block_k, splits, num_warps, num_stages))
    return configs
