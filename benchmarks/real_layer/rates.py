"""What the machine can do, in the run that is judged by it: read a file, dequantize, multiply."""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3ref.kernels import native
from eagle3ref.kernels.native_library import NativeDevice, why_not
from eagle3ref.target import int4

_BLOCK = 8 << 20  # bytes of one read, as `dd bs=8M` would
_PROBES = 256  # places of a file that are asked whether they are in memory
_MATRICES = 6  # of an expert's size
_GEMM_SECONDS = 0.5


def drop_cache(folder: Path) -> None:
    """Make the next reads of these files come from the disk: what was written is flushed, what was read forgotten."""
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def share_in_memory(folder: Path) -> float:
    """Share of the folder's weights that a read would find in the page cache, by a sample."""
    found, asked = 0, 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            # Else a question would have the pages behind it read, which later ones ask for.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            size = path.stat().st_size
            for offset in range(0, size, max(mmap.PAGESIZE, size // _PROBES)):
                asked += 1
                with contextlib.suppress(BlockingIOError):
                    found += os.preadv(file.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT)
    return found / asked


def raw_read(path: Path, *, direct: bool) -> float:
    """Bytes per second of reading a file from end to end, one block after the other, with nothing else to do.

    Args:
        path: whose pages are dropped first.
        direct: past the page cache (``dd iflag=direct``).
    """
    drop_cache(path.parent)
    memory = torch.empty(_BLOCK + mmap.PAGESIZE, dtype=torch.uint8)
    start = -memory.data_ptr() % mmap.PAGESIZE
    view = memoryview(memory.numpy())[start : start + _BLOCK]
    descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    try:
        begun, offset = time.perf_counter(), 0
        while got := os.preadv(descriptor, [view], offset):
            offset += got
            if got % mmap.PAGESIZE:  # the end of the file; a direct read could not go on from here
                break
            if not direct:
                os.posix_fadvise(descriptor, 0, offset, os.POSIX_FADV_DONTNEED)
        return offset / (time.perf_counter() - begun)
    finally:
        os.close(descriptor)


def dequantize_with_shifts(packed: Tensor, scale: Tensor, shape: Tensor, _name: str) -> Tensor:
    """The eager form that first comes to mind: eight shifts of every int32 word."""
    nibbles = (packed.unsqueeze(-1) >> torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)) & 15
    groups = (nibbles - 8).to(scale.dtype).view(*scale.shape, int4.GROUP_SIZE)
    return (groups * scale.unsqueeze(-1)).view(shape.tolist())


def dequantizers(device: str) -> dict[str, Callable[..., Tensor]]:
    """The arms that are compared; the compiled one where it has been built for the device."""
    arms = {"int32 shifts": dequantize_with_shifts, "byte view": int4.dequantize_int4}
    kind: NativeDevice = "cuda" if device.startswith("cuda") else "cpu"
    return {**arms, "native": native.dequantize_int4} if why_not(kind) is None else arms


def dequantization(rows: int, columns: int, device: str, repeats: int = 7) -> dict[str, Any]:
    """Weights per second of each arm, bf16 out, best of interleaved repeats; and how many times the shifts' rate."""
    # More words than a cache holds, as when they come from a disk.
    words = torch.randint(-(2**31), 2**31, (_MATRICES, rows, columns // 8)).to(torch.int32).to(device)
    scale = torch.rand(rows, columns // int4.GROUP_SIZE).bfloat16().to(device)
    given, arms = (scale, torch.tensor([rows, columns]), "of the benchmark"), dequantizers(device)
    expected = dequantize_with_shifts(words[0], *given)
    wrong = [name for name, arm in arms.items() if not torch.equal(arm(words[0], *given), expected)]
    if wrong:
        raise SystemExit(f"dequantizers that give other bits than {next(iter(arms))}: {', '.join(wrong)}")
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name, arm in arms.items():
            seconds[name].append(_seconds(lambda arm=arm: [arm(matrix, *given) for matrix in words], device))
    rates = {name: words.numel() * 8 / min(found) for name, found in seconds.items()}
    slowest = rates["int32 shifts"]
    return {"weights_per_s": rates, "times_int32_shifts": {name: rate / slowest for name, rate in rates.items()}}


def matrix_rates(counts: Iterable[int], rows: int, columns: int, dtype: torch.dtype, device: str) -> dict[int, float]:
    """FLOP per second of ``count`` rows times a weight [rows, columns], in calls that find the weight out of cache."""
    weights = [torch.randn(rows, columns, device=device).to(dtype) for _ in range(_MATRICES)]
    found = {}
    for count in counts:
        x = torch.randn(count, columns, device=device).to(dtype)

        def work(x: Tensor = x) -> None:
            for weight in weights:
                torch.nn.functional.linear(x, weight)

        work()
        times = [_seconds(work, device)]
        while sum(times) < _GEMM_SECONDS:
            times.append(_seconds(work, device))
        found[count] = 2 * count * rows * columns * len(weights) / min(times)
    return found


def _seconds(work: Callable[[], object], device: str) -> float:
    _wait(device)
    begun = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - begun


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
