"""Which of several ratios, all of the same prompts, may be the largest: a set that holds the true best one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eagle3ref.errors import Eagle3RefError
from eagle3ref.statistics.equivalence import DEFAULT_CONFIDENCE
from eagle3ref.statistics.intervals import Interval, student_t_critical

_DRAWS = (2_000, 10_000)  # the 95 % quantile of 2000 has half a per cent of error in its coverage
_COMPARISONS = (
    4e8  # draws times pairs of ratios, a second; the least draws of 3,000 ratios all alike take half a minute
)
_MANY = 10_000  # degrees of freedom from which on Student's t is the normal distribution to four digits
_MOST_DRAWN = 3_000  # settings
_EQUAL = 1e-7  # a standard error below this share of a ratio's own is rounding: the two ratios are one


@dataclass(frozen=True, eq=False)
class BestOf:
    """K ratios compared with the best of them.

    Args:
        values: float64 [K], the ratios.
        best: index of the largest; the first of equal ones.
        may_be_best: bool [K], the set: it holds the truly largest ratio with the given confidence.
        at_most_behind: float64 [K], how far each may lie behind the largest of the others; all K hold at once. ``inf``
            of a single prompt.
        confidence: of both.
        clusters: prompts that were compared.
    """

    values: NDArray[np.float64]
    best: int
    may_be_best: NDArray[np.bool_]
    at_most_behind: NDArray[np.float64]
    confidence: float
    clusters: int

    @property
    def behind(self) -> NDArray[np.float64]:
        """float64 [K], the largest ratio minus each, as estimated."""
        behind: NDArray[np.float64] = self.values[self.best] - self.values
        return behind


def best_of(
    numerators: ArrayLike, denominators: ArrayLike, confidence: float = DEFAULT_CONFIDENCE, *, seed: int = 0
) -> BestOf:
    """Multiple comparisons with the best, for ratios of sums that are paired by prompt.

    Setting k is in the set unless another one beats it by more than ``d_k`` standard errors of their difference; that
    is the linearized one of ``paired_difference``. ``d_k`` is the one-sided max-t quantile over all K - 1 comparisons
    with k: of a multivariate t with n - 1 degrees of freedom and the correlations of the prompts' residuals, by
    2,000 to 10,000 draws (Hothorn, Bretz and Westfall 2008). So the truly best setting is in the set with the given
    confidence, however many there are, and although the data chose the one that looks best; settings that differ little
    cost little. Beyond 3,000 settings, where the draws would take minutes, Bonferroni's quantile stands in, which only
    makes the set larger. The bounds are Hsu's of the same event (Hsu 1996, Multiple Comparisons, §4.2, for unequal
    variances).

    Args:
        numerators: [P, K], a sum for each prompt and setting.
        denominators: [P, K], positive somewhere for every setting.
        confidence: that the set holds the best.
        seed: of the draws.

    Raises:
        Eagle3RefError: other shapes, a setting without a denominator, or a confidence outside (0.5, 1).
    """
    values, residuals = _checked(numerators, denominators, confidence)
    count, best = len(values), int(values.argmax())
    if len(residuals) < 2:
        everything = np.ones(count, dtype=bool)
        return BestOf(values, best, everything, np.full(count, math.inf), confidence, len(residuals))
    draws = _draws(residuals, seed) if count <= _MOST_DRAWN else None
    bonferroni = _bonferroni(confidence, residuals)
    is_in, at_most = np.zeros(count, dtype=bool), np.zeros(count)
    behind_best = _over(values[best] - values, _difference_errors(residuals, best))
    # No quantile is above Bonferroni's: what the best beats by more is out, and needs no draws.
    for k in np.flatnonzero(behind_best <= bonferroni):
        errors = _difference_errors(residuals, int(k))
        critical = bonferroni if draws is None else _critical(draws, errors, int(k), confidence)
        if _over(values - values[k], errors).max() <= critical:
            is_in[k] = True
            bound = values[k] - values + critical * errors
            bound[k] = 0.0
            at_most = np.maximum(at_most, bound)
    return BestOf(values, best, is_in, at_most, confidence, len(residuals))


def over_the_best(
    numerators: ArrayLike, denominators: ArrayLike, confidence: float = DEFAULT_CONFIDENCE, *, seed: int = 0
) -> Interval:
    """The first ratio minus the largest of the others, whichever that truly is.

    The differences to all others hold at once within the two-sided max-t quantile of ``best_of``'s law, and so does
    the least of them. Its estimate is low rather than high: the others' largest was chosen by looking.

    Args:
        numerators: [P, K], K at least 2.
        denominators: [P, K].
        confidence: of the interval.
        seed: of the draws.

    Raises:
        Eagle3RefError: as ``best_of``.
    """
    values, residuals = _checked(numerators, denominators, confidence)
    ahead = values[0] - values[1:]
    if len(residuals) < 2:
        return Interval(float(ahead.min()), -math.inf, math.inf, confidence, "linearized", len(residuals))
    errors, draws = _difference_errors(residuals, 0)[1:], _draws(residuals, seed)
    differs = errors > 0
    largest = np.abs((draws[:, [0]] - draws[:, 1:])[:, differs] / errors[differs]).max(1, initial=0.0)
    half = float(np.quantile(largest, confidence, method="higher")) * errors
    low, high = float((ahead - half).min()), float((ahead + half).min())
    return Interval(float(ahead.min()), low, high, confidence, "linearized", len(residuals))


def linearized(numerators: ArrayLike, denominators: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ratios of sums and what each prompt moves them by.

    ``sum over prompts of residuals**2 * n / (n - 1)`` is the variance of ``ratio_interval``.

    Args:
        numerators: [P, K].
        denominators: [P, K].

    Returns:
        ratios: float64 [K].
        residuals: float64 [n, K] of the n prompts that have a denominator anywhere.

    Raises:
        Eagle3RefError: other shapes, values that are not finite, or a column without any denominator.
    """
    above, below = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    if above.ndim != 2 or above.shape != below.shape or not above.size:
        raise _refusal(
            f"shapes {above.shape} and {below.shape}", "two of [prompts, settings]", "Pass one sum for each."
        )
    if not (np.isfinite(above).all() and np.isfinite(below).all()) or (below < 0).any() or not below.any(0).all():
        action = "Leave out settings without a complete round."
        raise _refusal("a setting without a denominator, or sums that are no counts", "positive sums", action)
    totals = below.sum(0)
    ratios = above.sum(0) / totals
    return ratios, ((above - ratios * below) / totals)[below.any(1)]


def _checked(
    numerators: ArrayLike, denominators: ArrayLike, confidence: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if not 0.5 < confidence < 1:
        raise _refusal(f"confidence {confidence}", "a number between 0.5 and 1, exclusive", "Write 95 % as 0.95.")
    return linearized(numerators, denominators)


def _difference_errors(residuals: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """[K], the standard error of each ratio's difference to number k; exactly 0 where two columns are one."""
    n = len(residuals)
    moves = residuals - residuals[:, [k]]
    variance = n / (n - 1) * np.einsum("pk,pk->k", moves, moves)
    scale = n / (n - 1) * float(residuals[:, k] @ residuals[:, k])
    errors: NDArray[np.float64] = np.where(variance > _EQUAL**2 * scale, np.sqrt(variance), 0.0)
    return errors


def _draws(residuals: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """[draws, K], deviations of the K ratios as the prompts would have them, with the doubt about their variance."""
    generator, n = np.random.default_rng(seed), len(residuals)
    root = np.linalg.qr(residuals, mode="r")  # of their covariance, with at most K rows however many prompts there are
    count = int(np.clip(_COMPARISONS / residuals.shape[1] ** 2, *_DRAWS))
    normal = generator.standard_normal((count, len(root))) @ root * math.sqrt(n / (n - 1))
    drawn: NDArray[np.float64] = normal / np.sqrt(generator.chisquare(n - 1, (count, 1)) / (n - 1))
    return drawn


def _critical(draws: NDArray[np.float64], errors: NDArray[np.float64], k: int, confidence: float) -> float:
    """The quantile of the largest t with which any other ratio beats number k by chance."""
    shares = np.divide(1.0, errors, out=np.zeros(len(errors)), where=errors > 0)
    largest = ((draws - draws[:, k, None]) * shares).max(1)  # at least 0: that of k with itself
    return float(np.quantile(largest, confidence, method="higher"))


def _bonferroni(confidence: float, residuals: NDArray[np.float64]) -> float:
    """The one-sided t quantile that K - 1 comparisons need at most, however they are correlated."""
    prompts, count = residuals.shape
    if count == 1:
        return 0.0
    return student_t_critical(1 - 2 * (1 - confidence) / (count - 1), min(prompts - 1, _MANY))


def _over(differences: NDArray[np.float64], errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Differences in standard errors; without any error, 0 for the same value and beyond all bounds otherwise."""
    certain = np.where(differences > _EQUAL, math.inf, np.where(differences < -_EQUAL, -math.inf, 0.0))
    return np.divide(differences, errors, out=certain, where=errors > 0)


def _refusal(found: str, expected: str, action: str) -> Eagle3RefError:
    return Eagle3RefError("comparing settings with the best", found=found, expected=expected, action=action)
