"""The set of settings that may be the best, against scipy's multivariate t and against simulated truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from eagle3ref.errors import Eagle3RefError
from eagle3ref.statistics import RatioOfSums, best_of, over_the_best, paired_difference, ratio_interval
from eagle3ref.statistics.best import linearized


def world(prompts: int, gaps: list[float], seed: int, noise: float = 0.3) -> tuple[NDArray, NDArray]:
    """Prompts that differ a lot, and settings that lie ``gaps`` below the best and share most of the prompt's luck."""
    generator = np.random.default_rng(seed)
    rounds = generator.integers(20, 60, (prompts, len(gaps))).astype(float)
    level = 2.5 + generator.normal(0, 0.5, (prompts, 1)) + generator.normal(0, noise, (prompts, len(gaps)))
    return rounds * (level - np.array(gaps)), rounds


def test_residuals_are_those_of_the_interval_and_of_the_pair() -> None:
    """Would catch residuals over the wrong sum, or a correction for n that is not the other formulas'."""
    above, below = world(9, [0.0, 0.2, 0.5], seed=1)
    ratios, residuals = linearized(above, below)
    critical = stats.t.ppf(0.975, 8)
    for k in range(3):
        interval = ratio_interval(above[:, k], below[:, k])
        half = critical * math.sqrt(9 / 8 * (residuals[:, k] ** 2).sum())
        assert ratios[k] == pytest.approx(interval.estimate)
        assert half == pytest.approx(interval.high - interval.estimate)
    pair = [RatioOfSums("", "", "", above[:, k], below[:, k].astype(np.int64)) for k in (0, 2)]
    variance = 9 / 8 * ((residuals[:, 0] - residuals[:, 2]) ** 2).sum()
    assert variance == pytest.approx(paired_difference(*pair).variance)


def test_two_settings_are_a_one_sided_t_test() -> None:
    """Would catch a two-sided quantile, or the wrong degrees of freedom: the loser's statistic stands at the border."""
    for prompts in (4, 12, 40):
        above, below = world(prompts, [0.0, 0.0], seed=prompts)
        ratios, residuals = linearized(above, below)
        error = math.sqrt(prompts / (prompts - 1) * ((residuals[:, 0] - residuals[:, 1]) ** 2).sum())
        border = stats.t.ppf(0.95, prompts - 1) * error
        for share, is_in in ((0.9, True), (1.1, False)):
            moved = above.copy()
            moved[:, 0] += (share * border - (ratios[0] - ratios[1])) * below[:, 0]
            assert best_of(moved, below).may_be_best.tolist() == [True, is_in]


def test_the_critical_value_is_that_of_the_multivariate_t() -> None:
    """Would catch draws with the wrong correlation: at the border of k, all others stay below with 95 %."""
    above, below = world(15, [0.0, 0.1, 0.3, 0.35], seed=3)
    ratios, residuals = linearized(above, below)
    found = best_of(above, below)
    k, others = found.best, [j for j in range(4) if j != found.best]
    moves = residuals[:, others] - residuals[:, [k]]
    covariance = 15 / 14 * moves.T @ moves
    errors = np.sqrt(covariance.diagonal())
    # The best one bounds every other from above: at most behind = estimate + critical * error.
    critical = (found.at_most_behind[others] - (ratios[k] - ratios[others])) / errors
    if found.may_be_best.sum() == 1:
        assert critical == pytest.approx(critical[0])
    law = stats.multivariate_t(shape=covariance / np.outer(errors, errors), df=14, seed=1)
    assert law.cdf(np.full(3, critical.min())) == pytest.approx(0.95, abs=0.012)


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [[0.0] * 12, [0.0, 0.02, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8]], ids=["equal", "staggered"])
def test_the_true_best_is_in_the_set_as_often_as_is_claimed(gaps: list[float]) -> None:
    """Would catch a set that ignores how many settings were compared, or one that holds everything."""
    runs, held, bounded, size = 200, 0, 0, 0
    for seed in range(runs):
        above, below = world(24, gaps, seed)
        found = best_of(above, below, seed=seed)
        held += bool(found.may_be_best[0])
        size += int(found.may_be_best.sum())
        bounded += bool((np.array(gaps) <= found.at_most_behind + 1e-12).all())
    # The binomial error of 95 % in 200 runs is 1.5 %.
    assert held / runs >= 0.91
    assert bounded / runs >= 0.91
    if any(gaps):
        assert size / runs < 7
    else:
        assert held / runs <= 0.99


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(2, 12))
def test_the_best_estimate_is_in_the_set_and_bounds_are_bounds(seed: int, count: int, prompts: int) -> None:
    """Would catch an empty set, a bound below the estimate, or an order of the settings that decides."""
    above, below = world(prompts, [0.1 * k for k in range(count)], seed)
    found = best_of(above, below)
    assert found.may_be_best[found.best]
    assert found.best == int((above.sum(0) / below.sum(0)).argmax())
    assert (found.at_most_behind >= found.behind - 1e-12).all()
    turned = best_of(above[:, ::-1], below[:, ::-1], seed=1)
    assert turned.best == count - 1 - found.best


def test_equal_columns_and_exact_differences() -> None:
    """Would catch a division by a zero error: the same setting twice ties, one that is always behind is out."""
    above, below = world(8, [0.0], seed=2)
    same, lower = np.repeat(above, 2, axis=1), above - 0.25 * below
    found = best_of(np.hstack([same, lower]), np.repeat(below, 3, axis=1))
    assert found.may_be_best.tolist() == [True, True, False]
    assert found.at_most_behind == pytest.approx([0, 0, 0.25])


def test_one_prompt_tells_nothing() -> None:
    """Would catch a winner declared without any idea of the noise."""
    found = best_of([[3.0, 2.0]], [[1.0, 1.0]])
    assert found.may_be_best.all()
    assert np.isinf(found.at_most_behind).all()


@pytest.mark.parametrize(
    ("above", "below", "confidence"),
    [
        ([[1.0, 2.0]], [[1.0]], 0.95),
        ([[1.0, 2.0]], [[1.0, 0.0]], 0.95),
        ([[math.nan]], [[1.0]], 0.95),
        ([1.0], [1.0], 0.95),
        ([[1.0], [2.0]], [[1.0], [1.0]], 0.5),
    ],
)
def test_what_is_no_comparison_is_refused(above: object, below: object, confidence: float) -> None:
    """Would catch a nan that wins, or a setting that nothing was counted for."""
    with pytest.raises(Eagle3RefError, match="comparing settings"):
        best_of(above, below, confidence)


def test_over_the_best_of_one_other_is_the_paired_interval() -> None:
    """Would catch a one-sided quantile, or a difference the other way round."""
    above, below = world(12, [0.0, 0.1], seed=7)
    found = over_the_best(above, below)
    pair = [RatioOfSums("", "", "", above[:, k], below[:, k].astype(np.int64)) for k in (0, 1)]
    expected = paired_difference(*pair)
    low, high = expected.ends(0.95)
    assert found.estimate == pytest.approx(expected.estimate)
    assert found.low == pytest.approx(low, rel=0.03)
    assert found.high == pytest.approx(high, rel=0.03)


def test_over_the_best_is_over_every_other() -> None:
    """Would catch a comparison with the one that looks best alone; the same ratio twice differs by nothing."""
    above, below = world(20, [0.0, 0.3, 0.3, 0.6], seed=8)
    found = over_the_best(above, below)
    ratios = above.sum(0) / below.sum(0)
    assert found.estimate == pytest.approx(ratios[0] - ratios[1:].max())
    assert found.low < min(over_the_best(above[:, [0, k]], below[:, [0, k]]).low for k in (1, 2, 3))
    same = over_the_best(above[:, [0, 0]], below[:, [0, 0]])
    assert (same.estimate, same.low, same.high) == (0, 0, 0)
    assert math.isinf(over_the_best(above[:1], below[:1]).low)


def test_beyond_what_can_be_drawn_the_set_is_only_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch an approximation for many settings that leaves the best one out more often."""
    above, below = world(20, [0.02 * k for k in range(30)], seed=9)
    drawn = best_of(above, below)
    monkeypatch.setattr("eagle3ref.statistics.best._MOST_DRAWN", 29)
    bounded = best_of(above, below)
    assert (drawn.may_be_best <= bounded.may_be_best).all()
    assert bounded.may_be_best.sum() < 30
    assert (drawn.at_most_behind < bounded.at_most_behind).all()
