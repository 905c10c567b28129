"""Which device holds which layer, and whether routed experts are expanded there."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.checkpoint import Census, LayerCensus, StoredWeight

_CGROUP = Path("/sys/fs/cgroup")  # version 2, as a container sees its own
_USABLE = 0.9  # of a device's free memory; the rest is for activations


class Placement(NamedTuple):
    """Where a resident model lies.

    Args:
        first: of embedding, final norm and head.
        devices: of each layer, in blocks of consecutive layers.
        packed: routed experts stay as they are stored.
    """

    first: torch.device
    devices: tuple[torch.device, ...]
    packed: bool


def parse_devices(device: str | torch.device) -> tuple[torch.device, ...]:
    """``cuda:0,cuda:1`` -> the two devices.

    Raises:
        Eagle3RefError: a name that PyTorch does not know, or a device that is not there.
    """
    names = str(device).split(",")
    try:
        devices = tuple(torch.device(name.strip()) for name in names)
    except RuntimeError as error:
        raise _refused(device, f"{error}".splitlines()[0], "names such as cpu, cuda or cuda:0,cuda:1") from error
    for each in devices:
        if each.type not in ("cpu", "cuda", "meta"):
            raise _refused(device, f"a device of type {each.type}", "cpu or CUDA devices")
        if each.type == "cuda" and (each.index or 0) >= torch.cuda.device_count():
            found = f"{each}, with {torch.cuda.device_count()} CUDA devices there"
            raise _refused(device, found, "devices of this machine")
    return devices


def place(census: Census, device: str | torch.device, dtype: torch.dtype, packed: bool | None) -> Placement:
    """Spread the layers over the devices.

    Args:
        census: what the checkpoint holds.
        device: one, or several with commas in between.
        dtype: of the weights that are expanded.
        packed: whether routed experts stay as they are stored; None: only if the expanded ones do not fit.

    Raises:
        Eagle3RefError: a device that is not there, or a model that fits neither way.
    """
    devices = parse_devices(device)
    free = {each: free_memory(each) for each in devices}
    for keep_packed in (False, True) if packed is None else (packed,):
        sizes = [_layer_bytes(layer, dtype, keep_packed) for layer in census.layers]
        ends = sum(_bytes(weight, dtype) for weight in (census.embedding, census.norm, census.lm_head))
        blocks = spread(sizes, len(devices), ends)
        needed = dict.fromkeys(devices, 0)
        needed[devices[0]] += ends
        for size, block in zip(sizes, blocks, strict=True):
            needed[devices[block]] += size
        if packed is not None or all(needed[each] <= _USABLE * free[each] for each in needed):
            return Placement(devices[0], tuple(devices[block] for block in blocks), keep_packed)
    raise Eagle3RefError(
        f"loading {census.folder} onto {device}",
        found=", ".join(f"{free[each] / 1e9:.1f} GB free on {each}" for each in needed),
        expected=", ".join(f"{needed[each] / _USABLE / 1e9:.1f} GB on {each}" for each in needed),
        action="Give more devices, or stream the weights (--weights stream).",
    )


def spread(sizes: Sequence[int], num_blocks: int, first_has: int = 0) -> list[int]:
    """Cut a row of layers into consecutive blocks so that the largest block is as small as it can be.

    Args:
        sizes: bytes of each layer.
        num_blocks: at most so many blocks; some stay empty when there are few layers.
        first_has: bytes that block 0 holds besides.

    Returns:
        The block of each layer, ascending.
    """
    low, high = max([*sizes, first_has]), sum(sizes) + first_has
    while low < high:
        middle = (low + high) // 2
        if _filled(sizes, middle, first_has)[-1] < num_blocks:
            high = middle
        else:
            low = middle + 1
    return _filled(sizes, low, first_has)


def free_memory(device: torch.device) -> int:
    """Bytes that a process may still take there; on a CPU also within the limit of its container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    limit = _read_number(_CGROUP / "memory.max")
    if limit is None:
        return available
    statistics = (_CGROUP / "memory.stat").read_text(encoding="ascii").split()
    cached = int(statistics[statistics.index("inactive_file") + 1])  # files in the page cache, given up on demand
    return min(available, limit - (_read_number(_CGROUP / "memory.current") or 0) + cached)


def _read_number(path: Path) -> int | None:
    """None for a file that is not there, or says ``max``."""
    text = path.read_text(encoding="ascii").strip() if path.exists() else ""
    return int(text) if text.isdigit() else None


def _filled(sizes: Sequence[int], limit: int, first_has: int) -> list[int]:
    """Blocks filled one after the other up to the limit, which no layer exceeds."""
    block, used, blocks = 0, first_has, []
    for size in sizes:
        if used + size > limit:
            block, used = block + 1, 0
        used += size
        blocks.append(block)
    return blocks


def _layer_bytes(layer: LayerCensus, dtype: torch.dtype, packed: bool) -> int:
    others = sum(_bytes(weight, dtype) for weight in layer.weights.values())
    experts = [weight for expert in layer.experts for weight in expert.values()]
    return others + sum(weight.num_bytes if packed else _bytes(weight, dtype) for weight in experts)


def _bytes(weight: StoredWeight, dtype: torch.dtype) -> int:
    return prod(weight.shape) * dtype.itemsize


def _refused(device: str | torch.device, found: str, expected: str) -> Eagle3RefError:
    return Eagle3RefError(f"placing a model on {device!s}", found=found, expected=expected, action="Correct --device.")
