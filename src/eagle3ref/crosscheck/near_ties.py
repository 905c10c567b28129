"""Could unequal rounds be nothing but near-ties that fall differently in other arithmetic?"""

from __future__ import annotations

import math

# Share of rounds that another dtype changes: docs/crosscheck.md has the measurement behind it.
NEAR_TIE_RATE = 0.01
# What a server that is right may show: above all that was measured, so that more rounds alone accuse nobody.
MOST_NEAR_TIES = 0.02
# Below this chance unequal requests are not put down to near-ties.
NEAR_TIES_UNLIKELY = 0.01


def near_tie_probability(flips: int, rounds: int, rate: float = NEAR_TIE_RATE) -> float:
    """The chance of so many flipped near-ties or more among so many rounds: ``P(Poisson(rate * rounds) >= flips)``.

    Draft tokens whose two best scores are all but equal come out differently on another device or in another dtype.
    One such flip changes a round, and through the next root some rounds behind it.

    Args:
        flips: as few as the inequality needs.
        rounds: that were compared.
        rate: flips per round.
    """
    mean = rate * rounds
    if mean <= 0:
        return float(flips <= 0)
    below = sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(flips))
    return max(0.0, 1.0 - below)
