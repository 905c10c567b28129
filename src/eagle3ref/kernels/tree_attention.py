"""Grouped-query tree attention in Triton: a program for each group, split, key-value head and tile of query rows.

The rows of a tile are the queries of a group times the heads that share a key-value head, so that a key is read once
for all of them. The twin of ``eager_attention.tree_attention``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3ref.kernels.attention_shapes import check_attention
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
def _tree_attention_kernel(
    query,  # [G, Q, H, D]
    query_strides,
    prefix_keys,  # [B, T, Hkv, D]; the last axis of keys and values has stride 1
    prefix_key_strides,
    prefix_values,  # [B, T, Hkv, Dv]
    prefix_value_strides,
    prefix_lengths,  # [G]
    prefix_of,  # [G] or None
    own_keys,  # [G, N, Hkv, D]
    own_key_strides,
    own_values,  # [G, N, Hkv, Dv]
    own_value_strides,
    ancestors,  # int32 [G, Q, W]
    ancestor_strides,
    outputs,  # fp32 [G, Q, H, S + 1, Dv]
    largests,  # fp32 [G, Q, H, S + 1]
    totals,  # fp32 [G, Q, H, S + 1]
    scale,  # of scores in log2
    num_queries,
    num_kv_heads,
    num_prefixes,
    num_tokens,
    num_own,
    num_splits,
    factor: tl.constexpr,
    heads_per_kv: tl.constexpr,
    key_size: tl.constexpr,
    value_size: tl.constexpr,
    block_rows: tl.constexpr,
    block_keys: tl.constexpr,
):
    # Neighbours read the same keys: the tiles of one head stand together.
    num_tiles = tl.cdiv(num_queries * heads_per_kv, block_rows)
    program = tl.program_id(0)
    tile, program = program % num_tiles, program // num_tiles
    kv_head, program = (program % num_kv_heads).to(tl.int64), program // num_kv_heads
    split, group = program % (num_splits + 1), (program // (num_splits + 1)).to(tl.int64)
    prefix, first, last, is_own = span_of(
        prefix_lengths, prefix_of, group, split, num_prefixes, num_tokens, num_own, num_splits, block_keys
    )
    if first >= last and not is_own:
        return

    row = tile * block_rows + tl.arange(0, block_rows)
    inside_row = row < num_queries * heads_per_kv
    node = (row // heads_per_kv).to(tl.int64)
    head = kv_head * heads_per_kv + row % heads_per_kv
    key_column = tl.arange(0, max(triton.next_power_of_2(key_size), 16))[None, :]
    value_column = tl.arange(0, max(triton.next_power_of_2(value_size), 16))[None, :]
    base = group * query_strides[0] + node * query_strides[1] + head * query_strides[2]
    query_rows = tl.load(
        query + base[:, None] + key_column * query_strides[3],
        mask=inside_row[:, None] & (key_column < key_size),
        other=0.0,
    ).to(factor)
    words = ancestors + group * ancestor_strides[0] + tl.where(inside_row, node, 0)[:, None] * ancestor_strides[1]

    # One loop for both kinds of rows: a second copy of it would cost the registers that the first needs.
    keys = tl.where(
        is_own,
        own_keys + group * own_key_strides[0] + kv_head * own_key_strides[2],
        prefix_keys + prefix * prefix_key_strides[0] + kv_head * prefix_key_strides[2],
    )
    values = tl.where(
        is_own,
        own_values + group * own_value_strides[0] + kv_head * own_value_strides[2],
        prefix_values + prefix * prefix_value_strides[0] + kv_head * prefix_value_strides[2],
    )
    key_stride = tl.where(is_own, own_key_strides[1], prefix_key_strides[1])
    value_stride = tl.where(is_own, own_value_strides[1], prefix_value_strides[1])
    largest = tl.full((block_rows,), float("-inf"), tl.float32)
    total = tl.zeros((block_rows,), tl.float32)
    output = tl.zeros((block_rows, value_column.shape[1]), tl.float32)
    for start in range(first, last, block_keys):
        token = start + tl.arange(0, block_keys)
        inside = token < last
        at = token.to(tl.int64)[:, None]
        key = tl.load(
            keys + at * key_stride + key_column, mask=inside[:, None] & (key_column < key_size), other=0.0
        ).to(factor)
        value = tl.load(
            values + at * value_stride + value_column, mask=inside[:, None] & (value_column < value_size), other=0.0
        ).to(factor)
        scores = tl.dot(query_rows, tl.trans(key), input_precision="ieee") * scale
        visible = is_visible(words, ancestor_strides[2], start, last, is_own, block_keys)
        scores = tl.where(visible, scores, float("-inf"))
        largest, total, output = attend_block(scores, value, largest, total, output)

    num_heads = num_kv_heads * heads_per_kv
    first_row, step = group * num_queries * num_heads, node * num_heads + head
    store_partial(
        outputs, largests, totals, first_row, step, inside_row, largest, total, output, num_splits, split, value_size
    )


def tree_attention(
    query: Tensor,
    prefix_keys: Tensor,
    prefix_values: Tensor,
    prefix_lengths: Tensor,
    own_keys: Tensor,
    own_values: Tensor,
    ancestors: Tensor,
    scale: float,
    *,
    prefix_of: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """``eager_attention.tree_attention``: the same arguments, the same answers, and no wait for the device.

    Everything is read where it lies; only rows whose numbers are no neighbours are copied first. Products are
    accumulated in fp32, and the softmax is fp32.

    Args:
        num_splits: of each prefix; None chooses by the shapes alone. The bits of a group depend on this and on what the
            group itself reads, so one who wants the same bits in every batch gives it.

    Raises:
        Eagle3RefError: shapes, dtypes or devices that do not fit, fp64, a gradient, or no device for Triton.
    """
    shape = check_attention(
        query, prefix_keys, prefix_values, prefix_lengths, own_keys, own_values, ancestors, prefix_of
    )
    require_triton(query, prefix_keys, prefix_values, own_keys, own_values, num_splits=num_splits)
    prefix_lengths = prefix_lengths.contiguous()
    prefix_of = None if prefix_of is None else prefix_of.contiguous()
    prefix_keys, prefix_values = rows_in_place(prefix_keys), rows_in_place(prefix_values)
    own_keys, own_values = rows_in_place(own_keys), rows_in_place(own_values)
    heads_per_kv = shape.num_heads // shape.num_kv_heads
    tile = best_tile(query.dtype, shape.num_queries * heads_per_kv, shape.key_size, shape.value_size)
    num_tiles = shape.num_kv_heads * triton.cdiv(shape.num_queries * heads_per_kv, tile.rows)
    bytes_per_key = (shape.key_size + shape.value_size) * query.element_size()
    num_splits = num_splits or choose_num_splits(shape, tile, num_tiles, bytes_per_key)
    partials = room_for_partials(shape, num_splits, query.device)
    with on_device(query):
        _tree_attention_kernel[(shape.num_groups * (num_splits + 1) * num_tiles,)](
            query,
            query.stride(),
            prefix_keys,
            prefix_keys.stride(),
            prefix_values,
            prefix_values.stride(),
            prefix_lengths,
            prefix_of,
            own_keys,
            own_keys.stride(),
            own_values,
            own_values.stride(),
            ancestors,
            ancestors.stride(),
            *partials,
            scale * LOG2_E,
            shape.num_queries,
            shape.num_kv_heads,
            shape.num_prefixes,
            shape.num_tokens,
            shape.num_own,
            num_splits,
            factor=factor_dtype(query.dtype),
            heads_per_kv=heads_per_kv,
            key_size=shape.key_size,
            value_size=shape.value_size,
            block_rows=tile.rows,
            block_keys=tile.keys,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    return merge_splits(partials, shape, prefix_lengths, prefix_of, block_keys=tile.keys, dtype=query.dtype)


def best_tile(dtype: torch.dtype, num_rows: int, key_size: int, value_size: int) -> Tile:
    """The tile of a program for ``num_rows`` query rows of a key-value head, such that two programs fit on an SM.

    ``tl.dot`` takes no fewer than 16 rows. fp32 products run on no tensor core, and small tiles keep them in registers.
    """
    if dtype == torch.float32:
        return Tile(rows=16, keys=16, num_warps=4, num_stages=2, per_multiprocessor=2)
    rows = max(16, min(64, 64 * 128 // triton.next_power_of_2(value_size), triton.next_power_of_2(num_rows)))
    keys, num_stages = 64 if key_size <= 128 else 32, 3 if rows < 64 else 2
    return Tile(rows, keys, num_warps=4, num_stages=num_stages, per_multiprocessor=2)
