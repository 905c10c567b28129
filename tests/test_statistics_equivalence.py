"""Agrees, differs, cannot tell: how often each is said when the truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ref.errors import Eagle3RefError
from eagle3ref.statistics import (
    Difference,
    RatioOfSums,
    independent_difference,
    mean_over_prompts,
    paired_difference,
    rounds_to_tell,
    variance_of,
)

MARGIN = 0.05


def ratio(x, y) -> RatioOfSums:
    return RatioOfSums("length", "tokens", "rounds", np.asarray(x, np.int64), np.asarray(y, np.int64))


def arm(rng: np.random.Generator, rates: np.ndarray, rounds: int, shift: float = 0.0) -> RatioOfSums:
    """Prompts of so many rounds at 3/1/4; ``shift`` is added to the mean tokens of a round."""
    c = rng.binomial(3, rates[:, None], (len(rates), rounds)) + rng.binomial(1, shift, (len(rates), rounds))
    return ratio(c.sum(1) + rounds, np.full(len(rates), rounds))


@pytest.mark.parametrize(
    ("estimate", "half", "expected"),
    [
        (0.00, 0.04, "agrees"),
        (0.03, 0.01, "agrees"),  # surely not 0, surely within the margin
        (0.03, 0.03, "cannot tell"),
        (0.20, 0.14, "differs"),
        (-0.20, 0.14, "differs"),
        (0.20, 0.16, "cannot tell"),  # surely not 0, and perhaps within the margin
        (-0.20, 0.16, "cannot tell"),
        (0.20, 0.25, "cannot tell"),
        (0.00, 1.00, "cannot tell"),  # "p > 0.05" would have said: no difference
    ],
)
def test_verdict_of_an_interval(estimate: float, half: float, expected: str) -> None:
    """Catches an absence of evidence taken as evidence of absence, and a sure but tiny difference called one."""
    many = 10_000
    error = half / 1.645
    assert Difference(estimate, error**2, many).verdict(MARGIN) == expected


def test_rounding_widens_both_ends() -> None:
    """Catches 2.50 taken as 2.500000: half a digit of 0.1 is the whole margin."""
    exact = Difference(0.0, 1e-6, 1000)
    assert exact.verdict(MARGIN) == "agrees"
    assert exact.with_rounding(0.005, 0.005).verdict(MARGIN) == "agrees"
    assert exact.with_rounding(0.05, 0.05).verdict(MARGIN) == "cannot tell"
    assert Difference(0.2, 1e-6, 1000).with_rounding(0.25, 0.0).verdict(MARGIN) == "cannot tell"
    assert Difference(0.2, 1e-6, 1000).with_rounding(0.16, 0.0).verdict(MARGIN) == "cannot tell"
    assert Difference(0.2, 1e-6, 1000).with_rounding(0.0, 0.25).verdict(MARGIN) == "differs"


def test_nothing_drawn_and_nothing_known() -> None:
    """Catches a division by a variance of 0, and a verdict from an unknown one."""
    assert Difference(0.01, 0.0).verdict(MARGIN) == "agrees"
    assert Difference(0.06, 0.0).verdict(MARGIN) == "differs"
    assert Difference(0.0, math.inf).verdict(MARGIN) == Difference(9.0, math.inf).verdict(MARGIN) == "cannot tell"
    assert Difference(0.0, math.inf).factor_to_tell(MARGIN) == math.inf


def test_identical_arms_show_no_difference() -> None:
    """Two legs of one server and one draft (speculators PR 793 saw them 0.073 and 0.118 apart).

    Catches an interval that takes rounds as independent: prompts differ much here, and the legs have other prompts.
    """
    rng, said = np.random.default_rng(8), []
    for _ in range(400):
        legs = [arm(rng, rng.beta(1.2, 1.2, 40), 25) for _ in range(2)]
        sides = [(leg.value, variance_of(leg)) for leg in legs]
        difference = independent_difference(*sides[0], *sides[1])
        said.append(difference.verdict(MARGIN))
    assert said.count("differs") <= 0.05 * 400 + 2 * math.sqrt(400 * 0.05 * 0.95)
    assert said.count("agrees") == 0  # 40 prompts cannot show that, whatever the legs happen to be


@pytest.mark.parametrize("shift", [MARGIN, 0.07])
def test_a_difference_of_the_margin_seldom_agrees(shift: float) -> None:
    """Catches one-sided tests at the wrong level: at most 5 % of differences as large as the margin may pass."""
    rng, said = np.random.default_rng(2), []
    for _ in range(400):
        rates = rng.beta(2, 2, 60)
        said.append(paired_difference(arm(rng, rates, 800, shift), arm(rng, rates, 800)).verdict(MARGIN))
    assert said.count("agrees") <= 0.05 * 400 + 2 * math.sqrt(400 * 0.05 * 0.95)


@pytest.mark.parametrize("truth", [0.0, 0.049, 0.05])
@pytest.mark.parametrize("error", [0.0005, 0.02, 0.16, 0.2, 1.0])
def test_a_true_difference_within_the_margin_is_seldom_accused(truth: float, error: float) -> None:
    """Catches ``differs`` tested against 0 alone: a difference of 0.049, which does not matter, is accused in 48 %.

    And the two sides of the interval that add up to 10 % where the error is much larger than the margin. On the margin
    itself ``agrees`` is as seldom. In theory the worst is 6 %.
    """
    rng, freedom, times = np.random.default_rng(7), 40, 3000
    errors = error**2 * rng.chisquare(freedom, times) / freedom
    draws = rng.normal(truth, error, times)
    said = [Difference(d, v, freedom).verdict(MARGIN) for d, v in zip(draws, errors, strict=True)]
    assert said.count("differs") <= 0.061 * times + 2 * math.sqrt(times * 0.06 * 0.94)
    if truth == MARGIN:
        assert said.count("agrees") <= 0.05 * times + 2 * math.sqrt(times * 0.05 * 0.95)


def test_pairs_cancel_what_prompts_share() -> None:
    """Catches pairs that are treated as independent: then nothing could be told with 60 prompts."""
    rng = np.random.default_rng(3)
    rates = rng.beta(1, 1, 60)
    one, other = arm(rng, rates, 1500), arm(rng, rates, 1500)
    paired = paired_difference(one, other)
    independent = independent_difference(one.value, variance_of(one), other.value, variance_of(other))
    assert paired.estimate == pytest.approx(independent.estimate)
    assert paired.variance < independent.variance / 50
    assert (paired.verdict(MARGIN), independent.verdict(MARGIN)) == ("agrees", "cannot tell")


def test_paired_variance_is_that_of_repeated_draws() -> None:
    """Catches a wrong linearization: the spread of 500 estimates, against what each draw says of itself."""
    rng, estimates, variances = np.random.default_rng(4), [], []
    for _ in range(500):
        rates, rounds = rng.beta(2, 2, 50), rng.integers(5, 60, 50)
        sides = []
        for more in (0.1, 0.0):
            c = rng.binomial(3 * rounds, rates) + rng.binomial(rounds, more)
            sides.append(ratio(c + rounds, rounds))
        found = paired_difference(*sides)
        estimates.append(found.estimate)
        variances.append(found.variance)
    assert np.mean(estimates) == pytest.approx(0.1, abs=0.01)
    assert np.mean(variances) == pytest.approx(np.var(estimates), rel=0.15)


def test_welch_against_scipy() -> None:
    """Catches pooled variances or wrong degrees of freedom: with equal rounds a ratio is a mean of prompts."""
    rng = np.random.default_rng(5)
    x, y = rng.integers(10, 40, 12), rng.integers(10, 40, 31)
    first, second = ratio(x, np.full(12, 10)), ratio(y, np.full(31, 10))
    found = independent_difference(first.value, variance_of(first), second.value, variance_of(second))
    theirs = scipy.stats.ttest_ind(x / 10, y / 10, equal_var=False)
    assert found.estimate / math.sqrt(found.variance) == pytest.approx(theirs.statistic)
    assert found.degrees_of_freedom == math.floor(theirs.df)
    low, high = theirs.confidence_interval(0.9)
    assert found.ends(0.9) == pytest.approx((low, high), rel=0.02)


def test_mean_over_prompts_is_not_the_pooled_one() -> None:
    """Catches micro taken for macro: two requests, 3.0 over 10 rounds and 1.0 over 30."""
    terms = ratio([30, 30], [10, 30])
    assert terms.value == 1.5
    assert mean_over_prompts(terms)[0] == 2.0
    assert mean_over_prompts(terms)[1:] == (pytest.approx(np.var([3, 1], ddof=1) / 2), 1)


@settings(max_examples=60, deadline=None)
@given(st.floats(-0.3, 0.3), st.floats(1e-4, 0.5), st.integers(1, 200), st.floats(0, 0.02))
def test_factor_to_tell_tells(estimate: float, variance: float, freedom: int, rounding: float) -> None:
    """Catches a promise of more data that would not tell, and one that asks for twice as much as needed."""
    now = Difference(estimate, variance, freedom, rounding, rounding)
    factor = now.factor_to_tell(MARGIN)
    if math.isinf(factor) or factor > 1e7:
        return

    def after(times: float) -> str:
        return Difference(estimate, variance / times, max(1, math.floor(freedom * times)), rounding, rounding).verdict(
            MARGIN
        )

    assert after(1.1 * factor + 1) != "cannot tell"
    if factor > 4:
        assert after(factor / 2) == "cannot tell"


@pytest.mark.parametrize("truth", [0.0, 0.10])
def test_planned_rounds_tell_in_four_of_five_cases(truth: float) -> None:
    """Catches a sample size without the power in it. 0.10 tokens at 3/1/4 need some 1,900 rounds, and 0 some 2,600."""
    rng, variance = np.random.default_rng(6), 3 * 0.5 * 0.5
    rounds = rounds_to_tell(truth, variance, MARGIN)
    draws = rng.normal(truth, math.sqrt(variance / rounds), 2000)
    said = [Difference(draw, variance / rounds, rounds).verdict(MARGIN) for draw in draws]
    wanted = "differs" if truth > MARGIN else "agrees"
    assert said.count(wanted) / 2000 == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Difference(0.0, 1.0).verdict(0.0),
        lambda: Difference(0.0, 1.0).verdict(0.05, 0.5),
        lambda: rounds_to_tell(0.05, 1.0, 0.05),
        lambda: rounds_to_tell(0.1, 1.0, 0.05, power=1.0),
        lambda: paired_difference(ratio([1], [1]), ratio([1, 2], [1, 1])),
    ],
)
def test_bad_settings_are_refused(call) -> None:
    """Catches a margin of 0 that nothing ever meets, and sides of different prompts."""
    with pytest.raises(Eagle3RefError):
        call()
