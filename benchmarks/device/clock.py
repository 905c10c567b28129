"""Times on the device with cold caches: events, medians, and other numbers read before each repeat."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from device.setting import Setting

_WARM_UPS = 3
_SECONDS_A_MEASUREMENT = 0.15
_REPEATS = (7, 50)  # at least and at most
# Read and not written: an L2 full of written lines would have to put them away in the time of the work. Many times any
# L2, so that the device is busy for half a millisecond, in which the host lines up a call of a few kernels.
_OTHER_BYTES = 2**31


def cold_ms(setting: Setting, work: Callable[[], object]) -> float | None:
    """Median milliseconds of one call that finds nothing of its inputs in the L2 cache; None, after one call, where no
    times are taken.

    The time is the device's, between two events. What the host has not lined up by the first one counts as well: an
    eager loop of many small operations is as slow as it is.
    """
    if setting.rehearsed or not setting.timing:
        work()
        return None
    for _ in range(_WARM_UPS):
        work()
    others = torch.zeros(_OTHER_BYTES // 4, device=setting.device)
    first = _timed(work, others)
    fewest, most = _REPEATS
    repeats = max(fewest, min(most, int(_SECONDS_A_MEASUREMENT * 1e3 / max(first, 1e-3))))
    return statistics.median(_timed(work, others) for _ in range(repeats))


def _timed(work: Callable[[], object], others: torch.Tensor) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    others.sum()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def kernels_ms(setting: Setting, work: Callable[[], object], repeats: int = 5) -> float:
    """Median over repeats of the sum of the times of a call's kernels, as PyTorch's profiler sees them; 0 if it sees
    none. Kernels that run at the same time count twice; here none do."""
    kind = torch.autograd.DeviceType.CPU if setting.rehearsed else torch.autograd.DeviceType.CUDA
    activity = torch.profiler.ProfilerActivity.CPU if setting.rehearsed else torch.profiler.ProfilerActivity.CUDA
    sums = []
    for _ in range(1 if setting.rehearsed else repeats):
        with torch.profiler.profile(activities=[activity]) as profile:
            work()
            if not setting.rehearsed:
                torch.cuda.synchronize()
        spans = [event.time_range.elapsed_us() for event in profile.events() if event.device_type == kind]
        sums.append(sum(spans) / 1e3)
    return statistics.median(sums)
