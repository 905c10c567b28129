"""Whether the acceptance length changes with time, batch size or the cache: a slope that outliers do not move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eagle3ref.servers.reading import Reading

TrendBy = Literal["time", "running_requests", "cached_tokens", "prompt_tokens"]
UNITS: dict[TrendBy, str] = {
    "time": "hour",
    "running_requests": "running request",
    "cached_tokens": "share of cached prompt tokens, from none to all",
    "prompt_tokens": "1,000 prompt tokens",
}
CACHED_SHARE = "cached share of prefills"  # in ``other`` of a window: of the prefills since the window before
_FEWEST_POINTS = 6
_MOST_POINTS = 300  # more are averaged in this many groups: slopes of all pairs are taken


@dataclass(frozen=True)
class Trend:
    """Change of the acceptance length, in tokens per ``unit``.

    Args:
        by: what it changes with.
        slope: the median of the slopes of all pairs (Theil 1950, Sen 1968).
        low: lower end of its interval, from the variance of Kendall's statistic.
        high: upper end.
        unit: of ``by``.
        points: readings that it stands on.
        span: from the least to the largest of ``by``, in units.
    """

    by: TrendBy
    slope: float
    low: float
    high: float
    unit: str
    points: int
    span: float

    @property
    def direction(self) -> Literal["falls", "rises", "none shown"]:
        """Which way, where the interval leaves 0 out."""
        return "falls" if self.high < 0 else "rises" if self.low > 0 else "none shown"

    @property
    def change(self) -> float:
        """Tokens over the whole span."""
        return self.slope * self.span


def trend(readings: Sequence[Reading], by: TrendBy, confidence: float = 0.95) -> Trend | None:
    """The trend of the readings' lengths; None with fewer than 6 that tell, or if ``by`` never changes.

    Readings in a row resemble each other, which the interval does not know of: near its ends it is too narrow.
    """
    pairs = [
        (x, y) for reading in readings if (x := _place(reading, by)) is not None and (y := _length(reading)) is not None
    ]
    points = len(pairs)
    if points < _FEWEST_POINTS:
        return None
    values = np.array(sorted(pairs), np.float64)
    values[:, 0] -= values[0, 0]
    span = float(values[-1, 0])
    if span == 0:
        return None
    groups = np.array_split(values, min(points, _MOST_POINTS))
    x, y = np.array([group.mean(axis=0) for group in groups]).T
    slopes = _slopes(x, y)
    if not len(slopes):
        return None
    n = len(x)
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    ends = [int((len(slopes) - reach) / 2), math.ceil((len(slopes) + reach) / 2)]
    low, high = slopes[max(ends[0], 0)], slopes[min(ends[1], len(slopes) - 1)]
    return Trend(by, float(np.median(slopes)), float(low), float(high), UNITS[by], points, span)


def _slopes(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of all pairs with different x, sorted."""
    first, second = np.triu_indices(len(x), 1)
    apart = x[first] != x[second]
    first, second = first[apart], second[apart]
    return np.sort((y[second] - y[first]) / (x[second] - x[first]))


def _place(reading: Reading, by: TrendBy) -> float | None:
    if by == "time":
        return None if reading.time is None else reading.time.timestamp() / 3600
    if by == "running_requests":
        return reading.running_requests
    if by == "prompt_tokens":
        return None if reading.prompt_tokens is None else reading.prompt_tokens / 1000
    if reading.scope == "request":
        cached, prompt = reading.cached_tokens, reading.prompt_tokens
        return cached / prompt if cached is not None and prompt else None
    share = reading.other.get(CACHED_SHARE)
    return share if isinstance(share, float) else None


def _length(reading: Reading) -> float | None:
    length = reading.length_with_bonus
    if length is not None:
        return length.value
    tokens, rounds = reading.completion_tokens, reading.rounds
    return (tokens - 1) / rounds if tokens and rounds else None
