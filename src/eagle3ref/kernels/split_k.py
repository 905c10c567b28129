"""How a matrix product is cut into tiles and its sum over K into splits, and the second stage that adds the splits.

A product of few rows is a single pass over the weight, and has too few output tiles to keep a whole GPU reading. So
the sum over K is cut too. Each split writes its fp32 partial sums to a place of its own, and ``add_splits`` adds them
in their order: no atomics, so the same bits come out every run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels.launch import on_device, rounded

# Of an H100 or H200. A constant and not asked from the device: the split decides the order of the sum, so it must not
# change from one device to the next.
_MULTIPROCESSORS = 132
_MAX_SPLITS = 16
_MIN_BLOCKS_PER_SPLIT = 4


@dataclass(frozen=True)
class TileConfig:
    """How one product is run. All of it is fixed before the launch: to tune inside a graph capture would break it.

    Args:
        block_m, block_n, block_k: the tile; powers of two, at least 16, which is what ``tl.dot`` takes.
        num_splits: of the sum over K.
        num_warps, num_stages: of a program; stages are tiles in flight from global to shared memory.
    """

    block_m: int
    block_n: int
    block_k: int
    num_splits: int
    num_warps: int
    num_stages: int

    def __post_init__(self) -> None:
        """Raises: Eagle3RefError, for a tile or a split that no kernel can run."""
        blocks = (self.block_m, self.block_n, self.block_k)
        if any(size < 16 or size & (size - 1) for size in blocks) or min(self.num_splits, self.num_stages) < 1:
            raise Eagle3RefError(
                "cutting a matrix product into tiles",
                found=str(self),
                expected="blocks that are powers of two and at least 16, one split and one stage or more",
                action="Take one of the configurations that the kernel's module lists.",
            )


@lru_cache(maxsize=1024)
def best_num_splits(num_tiles: int, num_blocks: int, max_splits: int, resident: int) -> int:
    """The smallest split of K that leaves no more than a twentieth more places idle than the best one does.

    ``num_tiles * splits`` programs run in rounds of ``resident * 132``, and the last round is rarely full. The fc of
    Kimi-K2.5 at M <= 16 has 56 tiles of 128 columns: 7 splits make 392 programs for 396 places; 8 would send 52 of
    theirs into a second round.

    Args:
        num_tiles: of the output.
        num_blocks: of K, for one tile.
        max_splits: what the partial sums may cost (``affordable_splits``); exceeded where multiprocessors would have
            nothing to do at all.
        resident: programs that fit on a multiprocessor at a time.
    """
    places = _MULTIPROCESSORS * resident

    def idle_share(splits: int) -> float:
        rounds = -(-num_tiles * splits // places)
        longest = -(-num_blocks // splits)  # the other splits of a tile wait for this one
        return 1 - num_tiles * num_blocks / (rounds * places * longest)

    most = min(max(max_splits, _MULTIPROCESSORS // num_tiles), _MAX_SPLITS, num_blocks // _MIN_BLOCKS_PER_SPLIT)
    idle = {splits: idle_share(splits) for splits in range(1, max(most, 1) + 1)}
    return next(splits for splits, share in idle.items() if share <= min(idle.values()) + 0.05)


def affordable_splits(num_rows: int, num_inputs: int, bytes_per_weight: float) -> int:
    """The most splits whose partial sums, written and read in fp32, stay below an eighth of the weight's bytes."""
    return int(num_inputs * bytes_per_weight / (8 * 8 * max(num_rows, 1)))


@triton.jit
def neighboring_tile(row_tiles, column_tiles):
    """(row tile, column tile) of a program: eight row tiles are walked together, so that both factors stay in L2."""
    together = 8 * column_tiles
    first = tl.program_id(0) // together * 8
    rows = tl.minimum(row_tiles - first, 8)
    inside = tl.program_id(0) % together
    return first + inside % rows, inside // rows


@triton.jit(do_not_specialize=["num_elements"])
def _add_splits_kernel(
    partials,  # fp32 [num_splits, M, N]
    bias,  # [N], or None
    out,  # [M, N]
    num_elements,  # M * N
    num_columns: tl.constexpr,
    num_splits: tl.constexpr,
    block: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < num_elements
    total = tl.zeros((block,), tl.float32)
    for split in tl.static_range(num_splits):
        total += tl.load(partials + split * num_elements.to(tl.int64) + at, mask=inside, other=0.0)
    if bias is not None:
        total += tl.load(bias + at % num_columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, rounded(total, out.dtype.element_ty), mask=inside)


def add_splits(partials: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out [M, N] = the sum of the fp32 partials [splits, M, N] in their order, plus the bias [N], rounded once."""
    block = 512
    with on_device(out):
        _add_splits_kernel[(triton.cdiv(out.numel(), block),)](
            partials,
            bias,
            out,
            out.numel(),
            num_columns=out.shape[1],
            num_splits=len(partials),
            block=block,
            num_warps=4,
        )


def partial_sums(out: Tensor, num_splits: int) -> Tensor:
    """Room for the first stage: fp32 [splits, M, N]; with a single split the result itself, [1, M, N]."""
    if num_splits == 1:
        return out[None]
    return torch.empty((num_splits, *out.shape), dtype=torch.float32, device=out.device)
