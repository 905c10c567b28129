"""Times of several ways to score the same trace, taken in turn, so that all meet the same weather."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Arm:
    """One way to score trajectories.

    Args:
        name: as the tables have it.
        tokens: generated tokens that one run scores.
        run: one run; it returns the seconds that it took, by the wall clock and of processors. What another process
            does is timed there.
    """

    name: str
    tokens: int
    run: Callable[[], Seconds]


class Seconds(NamedTuple):
    """Of one run. Those of processors, all threads together, say more where other work disturbs."""

    wall: float
    cpu: float


def seconds(work: Callable[[], object]) -> Seconds:
    """Of one call; all work here ends with numbers on the host."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def interleaved(arms: Sequence[Arm], repeats: int) -> list[dict[str, Any]]:
    """A row for each arm: tokens a second, median of ``repeats`` rounds in which every arm runs once."""
    taken: dict[str, list[Seconds]] = {arm.name: [] for arm in arms}
    for _ in range(repeats):
        for arm in arms:
            taken[arm.name].append(arm.run())
    return [row(arm, taken[arm.name]) for arm in arms]


def row(arm: Arm, taken: list[Seconds]) -> dict[str, Any]:
    """What the results say of an arm."""
    wall = [each.wall for each in taken]
    return {
        "arm": arm.name,
        "tokens": arm.tokens,
        "tokens_per_s": arm.tokens / statistics.median(wall),
        "tokens_per_cpu_s": arm.tokens / statistics.median(each.cpu for each in taken),
        "slowest_over_fastest": max(wall) / min(wall),
    }
