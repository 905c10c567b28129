"""Choices made on some prompts and judged on others, so that a choice is not praised for the noise it was made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eagle3ref.statistics import Difference
from eagle3ref.statistics.best import linearized

_FOLDS = 10


def chosen_elsewhere(above: NDArray[np.float64], below: NDArray[np.float64], groups: Sequence[str]) -> NDArray[np.intp]:
    """For each prompt the setting that is best on the prompts of its group in the other nine of ten folds.

    The k-th prompt of a group is in fold k modulo 10. A prompt that is alone in its group gets what is best for all the
    others.

    Args:
        above: [P, K], numerators of the figure.
        below: [P, K], its denominators.
        groups: P names.

    Returns:
        int [P], indices into K.
    """
    folds = _folds(groups)
    members = np.array(groups)
    chosen = np.zeros(len(groups), np.intp)
    for group in dict.fromkeys(groups):
        for fold in range(min(_FOLDS, int((members == group).sum()))):
            judged = (members == group) & (folds == fold)
            others = (members == group) & (folds != fold)
            if not below[others].any():
                others = ~judged
            chosen[judged] = _largest_ratio(above[others], below[others])
    return chosen


def number_of_folds(groups: Sequence[str]) -> int:
    """k of the smallest group; at least 2."""
    return max(2, min(_FOLDS, *Counter(groups).values()))


def pick(values: NDArray[np.float64], chosen: NDArray[np.intp]) -> NDArray[np.float64]:
    """[P, K] -> [P], of each prompt the value of its chosen setting."""
    picked: NDArray[np.float64] = values[np.arange(len(chosen)), chosen]
    return picked


def gain(
    first: tuple[NDArray[np.float64], NDArray[np.float64]],
    second: tuple[NDArray[np.float64], NDArray[np.float64]],
    folds: int,
) -> Difference:
    """One ratio of sums minus another, paired by prompt, of choices that ``chosen_elsewhere`` made in k folds.

    The variance is that of ``paired_difference``, times ``1 + k / (k - 1)``: choices of different folds were made on
    mostly the same prompts, and what one prompt adds is not independent of the next (Nadeau and Bengio 2003, Machine
    Learning 52). Without that factor, categories that are all alike gain "significantly" in one case of ten.

    Args:
        first: numerators and denominators [P].
        second: likewise, of the same prompts.
        folds: k, of the group with the fewest.
    """
    above, below = (np.stack(pair, 1) for pair in zip(first, second, strict=True))
    ratios, residuals = linearized(above, below)
    moves = residuals[:, 0] - residuals[:, 1]
    n = len(moves)
    shared = 1 + folds / (folds - 1)
    variance = shared * n / (n - 1) * float(moves @ moves) if n > 1 else np.inf
    return Difference(float(ratios[0] - ratios[1]), variance, max(1, n - 1))


def _folds(groups: Sequence[str]) -> NDArray[np.intp]:
    seen: Counter[str] = Counter()
    folds = np.zeros(len(groups), np.intp)
    for i, group in enumerate(groups):
        folds[i] = seen[group] % _FOLDS
        seen[group] += 1
    return folds


def _largest_ratio(above: NDArray[np.float64], below: NDArray[np.float64]) -> int:
    totals = below.sum(0)
    ratios = np.divide(above.sum(0), totals, out=np.full(len(totals), -np.inf), where=totals > 0)
    return int(ratios.argmax())
