"""Can near-ties be why a request is not equal? Replays in slightly other arithmetic show which requests can move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from eagle3ref.crosscheck.predict import PredictedRequest
from eagle3ref.diagnose.hypothesis import Hypothesis
from eagle3ref.servers import Reading

REPLAYS = 12  # of each request: of a request that arithmetic can move, one of so many moves (docs/diagnose.md)
MOST_REQUESTS = 4  # are looked at
_MOST_UNEXPLAINED = 0.25  # of those: several near-ties in one long request may hide one another


@dataclass(frozen=True)
class NearTies:
    """Unequal requests that were replayed in other arithmetic.

    Args:
        looked_at: of them.
        unexplained: which no replay made equal to what the server says.
    """

    looked_at: int = 0
    unexplained: int = 0

    @property
    def explain(self) -> bool:
        """Whether near-ties may be all there is."""
        return self.unexplained <= _MOST_UNEXPLAINED * self.looked_at


def in_other_arithmetic(hypothesis: Hypothesis, seed: int) -> Hypothesis:
    """The same wiring, as a device or dtype runs it that rounds otherwise; ``seed`` from 1."""
    return replace(hypothesis, wiring=replace(hypothesis.wiring, noise=seed))


def distance(request: Reading, predicted: PredictedRequest) -> float:
    """Rounds that are another number of accepted drafts than predicted; 0 where all integers are equal."""
    if not predicted.unequal(request):
        return 0.0
    if not request.histogram:
        return 1.0 + abs((request.rounds or 0) - predicted.rounds)
    return 1.0 + min(_apart(request.histogram, histogram) for histogram in predicted.histograms())


def _apart(one: Sequence[int], other: Sequence[int]) -> float:
    width = max(len(one), len(other))
    padded = [np.pad(np.asarray(each, float), (0, width - len(each))) for each in (one, other)]
    return float(np.abs(padded[0] - padded[1]).sum())
