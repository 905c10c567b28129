"""Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023): a prefix is cut into splits, and their softmaxes are merged.

Few queries read a long prefix, and one program a key-value head would leave most of the device idle. So each prefix is
cut into splits that run side by side, and the group's own rows are one split more. A split leaves the state of its
softmax: the largest score, the sum of ``2 ** (score - largest)``, and the values weighted by it. ``merge_splits``
brings the states to one largest score and adds them in a fixed order: no atomics, so the same bits come out every run.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels.attention_shapes import AttentionShape
from eagle3ref.kernels.launch import on_device, require_device, require_dtype, require_no_gradient, rounded

# Of an H100 or H200. A constant and not asked from the device: the cut decides the order of the sums, so it must not
# change from one device to the next.
_MULTIPROCESSORS = 132
_MAX_SPLITS = 1024
_MERGED_SPLITS, _MERGED_NUMBERS = 32, 4096  # that a program of the merge takes at a time, at most
# Of a launch; a kernel is compiled once for all values, 1 and multiples of 16 too.
COUNTS = ("num_queries", "num_heads", "num_kv_heads", "num_prefixes", "num_tokens", "num_own", "num_splits")
_DOING = "attending over a draft tree with Triton"


class Tile(NamedTuple):
    """How a program attends. Fixed before the launch: to tune inside a graph capture would break it.

    Args:
        rows: query rows of a program, a power of two.
        keys: rows of the prefix or of the group that it reads at a time, a power of two.
        num_warps, num_stages: of the program; stages are key blocks in flight from global to shared memory.
        per_multiprocessor: programs that fit on one, by their registers and shared memory.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    per_multiprocessor: int


def choose_num_splits(shape: AttentionShape, tile: Tile, num_tiles: int, bytes_per_key: int) -> int:
    """How many splits give every multiprocessor work, from the shapes alone: lengths would have to be waited for.

    As many as run at once beside the programs of the own rows: one more round of programs would leave most places
    empty. A split reads at least one block of keys, and no fewer bytes than it leaves behind for the merge.

    Args:
        shape: of the call.
        tile: of each program.
        num_tiles: programs of a group that attend to the same split.
        bytes_per_key: read for one key by one program.
    """
    left_behind = tile.rows * shape.value_size * torch.float32.itemsize
    smallest = max(tile.keys, left_behind // bytes_per_key)
    at_once = _MULTIPROCESSORS * tile.per_multiprocessor // max(1, shape.num_groups * num_tiles)
    return max(1, min(at_once - 1, -(-shape.num_tokens // smallest)))


def require_triton(query: Tensor, *rows: Tensor, num_splits: int | None) -> None:
    """Raises ``Eagle3RefError`` for a dtype that the kernels do not multiply in, no device for them, a tensor that
    requires a gradient, or no split."""
    require_device(_DOING, query)
    require_dtype(_DOING, query=query)
    require_no_gradient(_DOING, query, *rows)
    if num_splits is not None and not 1 <= num_splits <= _MAX_SPLITS:
        raise Eagle3RefError(
            _DOING,
            found=f"num_splits {num_splits}",
            expected=f"1 to {_MAX_SPLITS}",
            action="Leave it out to have it chosen by the shapes.",
        )


def rows_in_place(rows: Tensor) -> Tensor:
    """The rows where they lie; a copy only if the numbers of a row are not neighbours."""
    return rows if rows.stride(-1) == 1 else rows.contiguous()


class Partials(NamedTuple):
    """The states of all splits, fp32; split S, the last, is the group's own rows."""

    outputs: Tensor  # [G, Q, H, S + 1, Dv]
    largest: Tensor  # [G, Q, H, S + 1]
    totals: Tensor  # [G, Q, H, S + 1]


def room_for_partials(shape: AttentionShape, num_splits: int, device: torch.device) -> Partials:
    """Nothing is written here, and ``merge_splits`` reads only what the splits of a group's own length wrote."""
    rows = (shape.num_groups, shape.num_queries, shape.num_heads, num_splits + 1)
    outputs, largest, totals = (
        torch.empty(size, dtype=torch.float32, device=device) for size in ((*rows, shape.value_size), rows, rows)
    )
    return Partials(outputs, largest, totals)


@triton.jit
def prefix_of_group(prefix_lengths, prefix_of, group, num_prefixes, num_tokens, num_splits, block_keys: tl.constexpr):
    """(prefix row, its length, keys a split, whether the group asks for what is there) of one group, int64.

    A group that asks for more reads nothing, and gets NaN at the merge. The splits share the length, not the room: a
    cache that is nearly empty is still read by many.
    """
    length = tl.load(prefix_lengths + group).to(tl.int64)
    row = group.to(tl.int64)
    if prefix_of is not None:
        row = tl.load(prefix_of + group).to(tl.int64)
    valid = (row >= 0) & (row < num_prefixes) & (length >= 0) & (length <= num_tokens)
    length = tl.where(valid, length, 0)
    size = tl.cdiv(tl.cdiv(length, num_splits), block_keys) * block_keys
    return tl.where(valid, row, 0), length, size, valid


@triton.jit
def span_of(
    prefix_lengths, prefix_of, group, split, num_prefixes, num_tokens, num_own, num_splits, block_keys: tl.constexpr
):
    """(prefix row, first row, the row after the last, whether these are own rows) of one split of a group.

    A split of the prefix that begins past the length is empty.
    """
    prefix, length, size, _ = prefix_of_group(
        prefix_lengths, prefix_of, group, num_prefixes, num_tokens, num_splits, block_keys
    )
    is_own = split == num_splits
    first = tl.where(is_own, 0, split * size).to(tl.int32)
    last = tl.where(is_own, num_own, tl.minimum(split * size + size, length)).to(tl.int32)
    return prefix, first, last, is_own


@triton.jit
def store_partial(
    outputs, largests, totals, first, step, inside, largest, total, output, num_splits, split, value_size: tl.constexpr
):
    """Leave the state of a tile, whose rows are ``first + step`` [M] of G * Q * H.

    first is a scalar and step as narrow as it may be: an address for each row in 64 bits would not fit in the registers
    beside a wide output.
    """
    place = first * (num_splits + 1) + split
    step = step * (num_splits + 1)
    column = tl.arange(0, output.shape[1])[None, :]
    tl.store(largests + place + step, largest, mask=inside)
    tl.store(totals + place + step, total, mask=inside)
    at = outputs + place * value_size + (step[:, None] * value_size + column)
    tl.store(at, output, mask=inside[:, None] & (column < value_size))


@triton.jit(do_not_specialize=COUNTS)
def _merge_kernel(
    outputs,  # fp32 [G, Q, H, S + 1, Dv]
    largests,  # fp32 [G, Q, H, S + 1]
    totals,  # fp32 [G, Q, H, S + 1]
    prefix_lengths,
    prefix_of,
    out,  # [G, Q, H, Dv], contiguous
    num_queries,
    num_heads,
    num_prefixes,
    num_tokens,
    num_splits,
    value_size: tl.constexpr,
    block_keys: tl.constexpr,
    block_splits: tl.constexpr,
    block_columns: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    _, length, size, valid = prefix_of_group(
        prefix_lengths, prefix_of, row // (num_queries * num_heads), num_prefixes, num_tokens, num_splits, block_keys
    )
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    inside = column < value_size
    best = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    merged = tl.zeros(column.shape, tl.float32)
    num_used = tl.cdiv(length, tl.maximum(size, 1))  # of the prefix; the own rows are one more
    for start in range(0, num_used + 1, block_splits):  # many at a time: one by one, each would wait for its loads
        split = start + tl.arange(0, block_splits)
        state = row * (num_splits + 1) + tl.where(split == num_used, num_splits, split)
        is_used = split <= num_used
        largest = tl.load(largests + state, mask=is_used, other=float("-inf"))
        part = tl.load(totals + state, mask=is_used, other=0.0)
        at = outputs + state[:, None] * value_size + column[None, :]
        output = tl.load(at, mask=is_used[:, None] & inside[None, :], other=0.0)
        new_best = tl.maximum(best, tl.max(largest, 0))
        reference = tl.where(new_best == float("-inf"), 0.0, new_best)
        fade, weights = tl.exp2(best - reference), tl.exp2(largest - reference)
        total = total * fade + tl.sum(part * weights, 0)
        merged = merged * fade + tl.sum(output * weights[:, None], 0)
        best = new_best
    merged = merged / tl.where(total == 0.0, 1.0, total)  # a query that saw nothing keeps its zeros
    merged = tl.where(valid, merged, float("nan"))
    tl.store(out + row * value_size + column, rounded(merged, out.dtype.element_ty), mask=inside)


def merge_splits(
    partials: Partials,
    shape: AttentionShape,
    prefix_lengths: Tensor,
    prefix_of: Tensor | None,
    *,
    block_keys: int,
    dtype: torch.dtype,
) -> Tensor:
    """[G, Q, H, Dv] in ``dtype``: zeros for a query that saw nothing, NaN for a group that asked for what is not
    there."""
    out = torch.empty((*partials.largest.shape[:-1], shape.value_size), dtype=dtype, device=partials.outputs.device)
    num_splits = partials.largest.shape[-1] - 1
    # A program's block holds as many numbers whether splits are many or values wide.
    block_splits = min(_MERGED_SPLITS, triton.next_power_of_2(num_splits + 1))
    block_columns = min(_MERGED_NUMBERS // block_splits, triton.next_power_of_2(shape.value_size))
    grid = (partials.largest.shape[:-1].numel(), triton.cdiv(shape.value_size, block_columns))
    with on_device(out):
        _merge_kernel[grid](
            *partials,
            prefix_lengths,
            prefix_of,
            out,
            shape.num_queries,
            shape.num_heads,
            shape.num_prefixes,
            shape.num_tokens,
            num_splits,
            value_size=shape.value_size,
            block_keys=block_keys,
            block_splits=block_splits,
            block_columns=block_columns,
            num_warps=4,
        )
    return out
