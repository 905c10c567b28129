"""Are two acceptance lengths the same, within a margin stated before? And if nobody can tell: how many more rounds?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eagle3ref.errors import Eagle3RefError
from eagle3ref.statistics.intervals import RatioOfSums, student_t_critical

Verdict = Literal["agrees", "differs", "cannot tell"]
DEFAULT_MARGIN = 0.05  # tokens per round
DEFAULT_CONFIDENCE = 0.95
_MANY = 10_000


class Criterion(NamedTuple):
    """What counts as the same, and how sure one has to be; ``difference.verdict(*criterion)``.

    Args:
        margin: in tokens per round.
        confidence: of each one-sided test.
    """

    margin: float = DEFAULT_MARGIN
    confidence: float = DEFAULT_CONFIDENCE


@dataclass(frozen=True)
class Difference:
    """One number minus another: what chance makes of it, and what rounding leaves open.

    Args:
        estimate: first minus second, e.g. server minus reference, in tokens per round.
        variance: of the estimate, from both sides; ``inf`` where nothing is known of it, 0 where nothing was drawn.
        degrees_of_freedom: of that variance, at least 1; not looked at where the variance is 0 or ``inf``.
        below: how far rounding, or a bound in place of a number, lets the difference lie below the estimate.
        above: how far above it.
    """

    estimate: float
    variance: float
    degrees_of_freedom: int = 1
    below: float = 0.0
    above: float = 0.0

    def ends(self, confidence: float) -> tuple[float, float]:
        """The two-sided interval: Student's t on the variance, and all of the rounding beside it.

        Raises:
            Eagle3RefError: ``confidence`` is outside (0, 1).
        """
        half = self._half_width(confidence)
        return self.estimate - self.below - half, self.estimate + self.above + half

    def verdict(self, margin: float = DEFAULT_MARGIN, confidence: float = DEFAULT_CONFIDENCE) -> Verdict:
        """Two one-sided tests (Schuirmann 1987), both ways, by the interval at ``2 * confidence - 1`` (0.90 for 0.95).

        ``agrees``: it lies within ± margin, so that both "the difference is the margin or more" and "minus the margin
        or less" are rejected at 1 - confidence. ``differs``: it lies outside ± margin, so that "the difference is
        within the margin" is. Where the interval is much wider than the margin, the two ways to lie outside add up to
        twice that error; so the interval at ``confidence`` has to be without 0 as well. Neither: ``cannot tell``, also
        where a difference is surely there and perhaps smaller than the margin.

        Raises:
            Eagle3RefError: a margin that is not positive, or ``confidence`` outside (0.5, 1).
        """
        check_criterion(margin, confidence)
        low, high = self.ends(2 * confidence - 1)
        if -margin <= low and high <= margin:
            return "agrees"
        return "differs" if (low > margin or high < -margin) and self.is_there(confidence) else "cannot tell"

    def is_there(self, confidence: float = DEFAULT_CONFIDENCE) -> bool:
        """Whether the two-sided interval is without 0.

        Raises:
            Eagle3RefError: as ``ends``.
        """
        low, high = self.ends(confidence)
        return low > 0 or high < 0

    def factor_to_tell(self, margin: float = DEFAULT_MARGIN, confidence: float = DEFAULT_CONFIDENCE) -> float:
        """What the variance must be divided by before this estimate, if it stays, gives ``agrees`` or ``differs``.

        1 if it does already; ``inf`` if no amount of data does, because rounding alone leaves it open.

        Raises:
            Eagle3RefError: as ``verdict``.
        """
        if self.verdict(margin, confidence) != "cannot tell":
            return 1.0
        rooms = self._rooms(margin, confidence)
        if min(room for _, room in rooms) <= 0 or math.isinf(self.variance):
            return math.inf

        def needed(factor: float) -> float:
            """With that much more data there are more degrees of freedom, too, and the quantile is smaller."""
            freedom = max(1, math.floor(self.degrees_of_freedom * factor))
            return self.variance * max(_quantile(level, freedom) / room for level, room in rooms) ** 2

        low, high = 1.0, max(1.0, needed(1.0))
        for _ in range(50):  # what is needed falls with what there is: they meet once
            middle = (low + high) / 2
            low, high = (low, middle) if needed(middle) <= middle else (middle, high)
        return high

    def with_rounding(self, below: float, above: float) -> Difference:
        """The same difference with more of it left open."""
        return replace(self, below=self.below + below, above=self.above + above)

    def _rooms(self, margin: float, confidence: float) -> list[tuple[float, float]]:
        """How wide half of each interval that has a say may be for a verdict: (its confidence, that width)."""
        if abs(self.estimate) > margin:
            to_zero = abs(self.estimate) - (self.below if self.estimate > 0 else self.above)
            return [(2 * confidence - 1, to_zero - margin), (confidence, to_zero)]
        return [(2 * confidence - 1, margin - max(self.estimate + self.above, self.below - self.estimate))]

    def _half_width(self, confidence: float) -> float:
        if self.variance == 0 or math.isinf(self.variance):
            return math.sqrt(self.variance)
        return _quantile(confidence, self.degrees_of_freedom) * math.sqrt(self.variance)


def variance_of(ratio: RatioOfSums) -> tuple[float, int]:
    """The linearized variance of a ratio over its prompts, and its degrees of freedom; ``inf`` of one prompt.

    The formula of ``ratio_interval``.
    """
    residuals = _residuals(ratio)[ratio.denominators > 0]
    n = len(residuals)
    return (n / (n - 1) * float(residuals @ residuals), n - 1) if n > 1 else (math.inf, 1)


def paired_difference(first: RatioOfSums, second: RatioOfSums) -> Difference:
    """``first - second`` of the same prompts, in the same order: what both find hard cancels.

    The residuals of the two linearized ratios are subtracted prompt by prompt before they are squared:
    ``var = n / (n - 1) * sum((e_i - f_i)**2)`` with ``e_i = (x_i - R y_i) / sum(y)``, n - 1 degrees of freedom.

    Raises:
        Eagle3RefError: other numbers of prompts, or sides without any denominator.
    """
    if len(first.denominators) != len(second.denominators) or not first.denominators.any():
        found = f"{len(first.denominators)} and {len(second.denominators)} prompts"
        raise Eagle3RefError(
            "comparing prompt by prompt", found=found, expected="the same ones", action="Pair them up first."
        )
    residuals = _residuals(first) - _residuals(second)
    residuals = residuals[(first.denominators > 0) | (second.denominators > 0)]
    n = len(residuals)
    variance = n / (n - 1) * float(residuals @ residuals) if n > 1 else math.inf
    return Difference(first.value - second.value, variance, max(1, n - 1))


def independent_difference(
    first: float, first_variance: tuple[float, int], second: float, second_variance: tuple[float, int]
) -> Difference:
    """``first - second`` of different prompts: variances add, with Welch and Satterthwaite's degrees of freedom."""
    (a, a_freedom), (b, b_freedom) = first_variance, second_variance
    total = a + b
    if not 0 < total < math.inf:
        return Difference(first - second, total)
    freedom = total**2 / (a**2 / a_freedom + b**2 / b_freedom)
    return Difference(first - second, total, max(1, math.floor(freedom)))


def mean_over_prompts(ratio: RatioOfSums) -> tuple[float, float, int]:
    """The mean of each prompt's own ratio (macro), its variance and degrees of freedom."""
    own = ratio.per_prompt[ratio.denominators > 0]
    n = len(own)
    return float(own.mean()), float(own.var(ddof=1) / n) if n > 1 else math.inf, max(1, n - 1)


def rounds_to_tell(
    true_difference: float,
    round_variance: float,
    margin: float = DEFAULT_MARGIN,
    *,
    confidence: float = DEFAULT_CONFIDENCE,
    power: float = 0.8,
) -> int:
    """Rounds of the server after which a true difference is told in ``power`` of all cases; for planning.

    The reference is taken as known: replay more prompts than the server answers. Normal approximation.

    Args:
        true_difference: 0, or anything within the margin, plans for ``agrees``; beyond it for ``differs``.
        round_variance: of the number of accepted drafts in one round, times the design effect of the prompts.
        margin: in tokens per round.
        confidence: as in ``Difference.verdict``.
        power: the share of cases.

    Raises:
        Eagle3RefError: a true difference of exactly the margin, or settings out of their range.
    """
    check_criterion(margin, confidence)
    if not (0.5 <= power < 1 and round_variance >= 0) or abs(true_difference) == margin:
        raise Eagle3RefError(
            "planning a comparison",
            found=f"power {power}, variance {round_variance}, a true difference of {true_difference}",
            expected=f"0.5 <= power < 1, a variance of 0 or more, and a difference that is not the margin {margin}",
            action="Correct the settings.",
        )
    level, away = 2 * confidence - 1, abs(margin - abs(true_difference))
    if true_difference == 0:  # both one-sided tests have to reject
        needed = (_normal(level) + _normal(power)) / margin
    else:
        needed = (_normal(level) + _normal(2 * power - 1)) / away
    if abs(true_difference) > margin:  # and 0 has to be excluded
        needed = max(needed, (_normal(confidence) + _normal(2 * power - 1)) / abs(true_difference))
    return max(1, math.ceil(round_variance * needed**2))


def _normal(two_sided: float) -> float:
    """The z with ``P(|Z| <= z) = two_sided``."""
    return _quantile(two_sided, _MANY) if two_sided > 0 else 0.0


def _quantile(confidence: float, degrees_of_freedom: int) -> float:
    """Student's t; beyond so many degrees of freedom it is the normal quantile to four digits, and takes long."""
    return student_t_critical(confidence, min(degrees_of_freedom, _MANY))


def _residuals(ratio: RatioOfSums) -> NDArray[np.float64]:
    residuals: NDArray[np.float64] = ratio.numerators - ratio.value * ratio.denominators
    return residuals / float(ratio.denominators.sum())


def check_criterion(margin: float, confidence: float) -> None:
    """Refuse a margin that is not positive, and a confidence outside (0.5, 1)."""
    if not (0 < margin < math.inf and 0.5 < confidence < 1):
        raise Eagle3RefError(
            "testing for equivalence",
            found=f"margin {margin}, confidence {confidence}",
            expected="a margin above 0 in tokens per round, and a confidence between 0.5 and 1, exclusive",
            action="Write 95 % as 0.95.",
        )
