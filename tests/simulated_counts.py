"""Counts of servers that exist in numbers only: prompts that differ, and what would be printed of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import eagle3ref as e3
from eagle3ref.diagnose.observation import Figures
from eagle3ref.servers import Rounded

TREE = e3.TreeConfig(3, 1, 4)


def counts_of(histogram: NDArray[np.int64]) -> e3.AcceptanceCounts:
    """[P, 4] rounds by accepted drafts."""
    rounds, none = histogram.sum(1), np.zeros(len(histogram), np.int64)
    return e3.AcceptanceCounts(
        tree=TREE,
        prompt_ids=tuple(map(str, range(len(histogram)))),
        histogram=histogram,
        proposed_at=np.repeat(rounds[:, None], 3, 1),
        censored_rounds=none,
        off_argmax_tokens=none,
        recorded_tokens=none,
        kind="exact",
    )


def simulated(prompts: int, rounds: int, seed: int) -> NDArray[np.int64]:
    """Histograms of prompts that differ: each has its own conditional rate."""
    random = np.random.default_rng(seed)
    rates = random.beta(6, 4, size=prompts)
    steps = np.stack([(1 - rates), rates * (1 - rates), rates**2 * (1 - rates), rates**3], 1)
    return np.stack([random.multinomial(rounds, share) for share in steps])


def printed(histogram: NDArray[np.int64], *, rates: bool) -> Figures:
    """What a server prints of these rounds."""
    pooled = histogram.sum(0)
    at_least = pooled[::-1].cumsum()[::-1]
    length = Rounded.printed(f"{at_least.sum() / at_least[0]:.2f}")
    joint = tuple(Rounded.printed(f"{n / at_least[0]:.3f}") for n in at_least[1:]) if rates else ()
    return Figures(float(at_least[0]), "counted", length, None, joint, None)
