"""Multi-head latent tree attention in Triton: all heads of all queries of a group read one latent.

A latent is key and value at once, so that it is loaded once for both products. The twin of
``eager_attention.tree_attention_mla``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3ref.kernels.attention_shapes import check_attention_mla
from eagle3ref.kernels.launch import factor_dtype, on_device
from eagle3ref.kernels.online_softmax import LOG2_E, attend_block, is_visible
from eagle3ref.kernels.prefix_splits import (
    COUNTS,
    Tile,
    choose_num_splits,
    merge_splits,
    require_triton,
    room_for_partials,
    rows_in_place,
    span_of,
    store_partial,
)


@triton.jit(do_not_specialize=COUNTS)
def _tree_attention_mla_kernel(
    query_latent,  # [G, Q, H, R]
    query_latent_strides,
    query_rope,  # [G, Q, H, Dr]
    query_rope_strides,
    prefix_latent,  # [B, T, R]; the last axis of latents and roped keys has stride 1
    prefix_latent_strides,
    prefix_rope,  # [B, T, Dr]
    prefix_rope_strides,
    prefix_lengths,  # [G]
    prefix_of,  # [G] or None
    own_latent,  # [G, N, R]
    own_latent_strides,
    own_rope,  # [G, N, Dr]
    own_rope_strides,
    ancestors,  # int32 [G, Q, W]
    ancestor_strides,
    outputs,  # fp32 [G, Q, H, S + 1, R]
    largests,  # fp32 [G, Q, H, S + 1]
    totals,  # fp32 [G, Q, H, S + 1]
    scale,  # of scores in log2
    num_queries,
    num_heads,
    num_prefixes,
    num_tokens,
    num_own,
    num_splits,
    factor: tl.constexpr,
    latent_size: tl.constexpr,
    rope_size: tl.constexpr,
    block_rows: tl.constexpr,
    block_keys: tl.constexpr,
):
    # Neighbours read the same latents: the tiles of one split stand together.
    num_rows = num_queries * num_heads
    num_tiles = tl.cdiv(num_rows, block_rows)
    program = tl.program_id(0)
    tile, program = program % num_tiles, program // num_tiles
    split, group = program % (num_splits + 1), (program // (num_splits + 1)).to(tl.int64)
    prefix, first, last, is_own = span_of(
        prefix_lengths, prefix_of, group, split, num_prefixes, num_tokens, num_own, num_splits, block_keys
    )
    if first >= last and not is_own:
        return

    row = tile * block_rows + tl.arange(0, block_rows)
    inside_row = row < num_rows
    node, head = (row // num_heads).to(tl.int64), (row % num_heads).to(tl.int64)
    latent_column = tl.arange(0, max(triton.next_power_of_2(latent_size), 16))[None, :]
    rope_column = tl.arange(0, max(triton.next_power_of_2(rope_size), 16))[None, :]
    base = group * query_latent_strides[0] + node * query_latent_strides[1] + head * query_latent_strides[2]
    latent_rows = tl.load(
        query_latent + base[:, None] + latent_column * query_latent_strides[3],
        mask=inside_row[:, None] & (latent_column < latent_size),
        other=0.0,
    ).to(factor)
    base = group * query_rope_strides[0] + node * query_rope_strides[1] + head * query_rope_strides[2]
    rope_rows = tl.load(
        query_rope + base[:, None] + rope_column * query_rope_strides[3],
        mask=inside_row[:, None] & (rope_column < rope_size),
        other=0.0,
    ).to(factor)
    words = ancestors + group * ancestor_strides[0] + tl.where(inside_row, node, 0)[:, None] * ancestor_strides[1]

    # One loop for both kinds of rows: a second copy of it would cost the registers that the first needs.
    latents = tl.where(
        is_own, own_latent + group * own_latent_strides[0], prefix_latent + prefix * prefix_latent_strides[0]
    )
    ropes = tl.where(is_own, own_rope + group * own_rope_strides[0], prefix_rope + prefix * prefix_rope_strides[0])
    latent_stride = tl.where(is_own, own_latent_strides[1], prefix_latent_strides[1])
    rope_stride = tl.where(is_own, own_rope_strides[1], prefix_rope_strides[1])
    largest = tl.full((block_rows,), float("-inf"), tl.float32)
    total = tl.zeros((block_rows,), tl.float32)
    output = tl.zeros(latent_rows.shape, tl.float32)
    for start in range(first, last, block_keys):
        token = start + tl.arange(0, block_keys)
        inside = token < last
        at = token.to(tl.int64)[:, None]
        latent = tl.load(
            latents + at * latent_stride + latent_column,
            mask=inside[:, None] & (latent_column < latent_size),
            other=0.0,
        ).to(factor)
        rope = tl.load(
            ropes + at * rope_stride + rope_column, mask=inside[:, None] & (rope_column < rope_size), other=0.0
        ).to(factor)
        scores = tl.dot(rope_rows, tl.trans(rope), input_precision="ieee")
        scores = tl.dot(latent_rows, tl.trans(latent), acc=scores, input_precision="ieee") * scale
        visible = is_visible(words, ancestor_strides[2], start, last, is_own, block_keys)
        scores = tl.where(visible, scores, float("-inf"))
        largest, total, output = attend_block(scores, latent, largest, total, output)

    first_row, step = group * num_rows + tile * block_rows, tl.arange(0, block_rows)
    store_partial(
        outputs, largests, totals, first_row, step, inside_row, largest, total, output, num_splits, split, latent_size
    )


def tree_attention_mla(
    query_latent: Tensor,
    query_rope: Tensor,
    prefix_latent: Tensor,
    prefix_rope: Tensor,
    prefix_lengths: Tensor,
    own_latent: Tensor,
    own_rope: Tensor,
    ancestors: Tensor,
    scale: float,
    *,
    prefix_of: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """``eager_attention.tree_attention_mla``: the same arguments, the same answers, and no wait for the device.

    Everything is read where it lies; only rows whose numbers are no neighbours are copied first. Products are
    accumulated in fp32, and the softmax is fp32.

    Args:
        num_splits: as in ``tree_attention.tree_attention``.

    Raises:
        Eagle3RefError: shapes, dtypes or devices that do not fit, fp64, a gradient, or no device for Triton.
    """
    shape = check_attention_mla(
        query_latent,
        query_rope,
        prefix_latent,
        prefix_rope,
        prefix_lengths,
        own_latent,
        own_rope,
        ancestors,
        prefix_of,
    )
    require_triton(query_latent, query_rope, prefix_latent, prefix_rope, own_latent, own_rope, num_splits=num_splits)
    prefix_lengths = prefix_lengths.contiguous()
    prefix_of = None if prefix_of is None else prefix_of.contiguous()
    prefix_latent, prefix_rope = rows_in_place(prefix_latent), rows_in_place(prefix_rope)
    own_latent, own_rope = rows_in_place(own_latent), rows_in_place(own_rope)
    num_rows = shape.num_queries * shape.num_heads
    tile = best_tile(query_latent.dtype, num_rows, shape.key_size)
    num_tiles = triton.cdiv(num_rows, tile.rows)
    bytes_per_key = (shape.key_size + query_rope.shape[-1]) * query_latent.element_size()
    num_splits = num_splits or choose_num_splits(shape, tile, num_tiles, bytes_per_key)
    partials = room_for_partials(shape, num_splits, query_latent.device)
    with on_device(query_latent):
        _tree_attention_mla_kernel[(shape.num_groups * (num_splits + 1) * num_tiles,)](
            query_latent,
            query_latent.stride(),
            query_rope,
            query_rope.stride(),
            prefix_latent,
            prefix_latent.stride(),
            prefix_rope,
            prefix_rope.stride(),
            prefix_lengths,
            prefix_of,
            own_latent,
            own_latent.stride(),
            own_rope,
            own_rope.stride(),
            ancestors,
            ancestors.stride(),
            *partials,
            scale * LOG2_E,
            shape.num_queries,
            shape.num_heads,
            shape.num_prefixes,
            shape.num_tokens,
            shape.num_own,
            num_splits,
            factor=factor_dtype(query_latent.dtype),
            latent_size=shape.key_size,
            rope_size=query_rope.shape[-1],
            block_rows=tile.rows,
            block_keys=tile.keys,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    return merge_splits(partials, shape, prefix_lengths, prefix_of, block_keys=tile.keys, dtype=query_latent.dtype)


def best_tile(dtype: torch.dtype, num_rows: int, latent_size: int) -> Tile:
    """The tile of a program for ``num_rows`` query rows of a group.

    As many rows as the registers hold beside an output as wide as the latent: each tile reads all latents again. That
    leaves a multiprocessor no place for a second program, so this one may have all shared memory for its stages. fp32
    products run on no tensor core, and small tiles keep them in registers.
    """
    if dtype == torch.float32:
        return Tile(rows=16, keys=16, num_warps=8, num_stages=2, per_multiprocessor=1)
    width = triton.next_power_of_2(latent_size)
    rows = max(16, min(64, 64 * 512 // width, triton.next_power_of_2(num_rows)))
    keys, num_warps, num_stages = 32 if rows == 64 else 64, 8 if rows > 16 else 4, 3 if width <= 512 else 2
    return Tile(rows, keys, num_warps, num_stages, per_multiprocessor=1)
