"""Intervals clustered by prompt: exact values, coverage by simulation, and refusals."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest

from eagle3ref.errors import Eagle3RefError
from eagle3ref.statistics import RatioOfSums, bootstrap_interval, ratio_interval, student_t_critical

TRUE_RATIO = 0.44  # E[m p] / E[m] of prompts_of_a_run: (20 * 0.5 + 60 * (0.5 - 0.3)) / 50


def prompts_of_a_run(generator, prompts):
    """Rounds fail together within a prompt, and easy prompts need fewer rounds, as in a real run."""
    rate = generator.beta(2, 2, prompts)  # mean 0.5, second moment 0.3
    rounds = 20 + generator.poisson(60 * (1 - rate))
    return generator.binomial(rounds, rate), rounds


def covers(low, high):
    return low <= TRUE_RATIO <= high


@pytest.mark.parametrize(
    ("confidence", "degrees_of_freedom", "critical"),
    [(0.95, 1, 12.706204736174696), (0.95, 2, 4.302652729749463), (0.95, 10, 2.228138851986274),
     (0.99, 4, 4.604094871349993), (0.9, 29, 1.6991270265334972)],
)  # fmt: skip
def test_t_quantile_known_values(confidence, degrees_of_freedom, critical):
    """A one-sided level for a two-sided one. df 1, 2, 4 have closed forms; older tables are off in the 11th digit."""
    assert student_t_critical(confidence, degrees_of_freedom) == pytest.approx(critical, rel=1e-12)


def test_t_quantile_against_scipy():
    """A wrong term in the odd or even series, or lost digits in the far tail."""
    stats = pytest.importorskip("scipy.stats")
    pairs = [(0.95, df) for df in (*range(1, 60), *range(60, 1001, 9))]
    pairs += [(c, df) for c in (0.5, 0.8, 0.9, 0.99, 0.999, 0.9999) for df in (*range(1, 41), 99, 400, 999, 1000)]
    ours = [student_t_critical(confidence, df) for confidence, df in pairs]
    levels, dfs = np.array(pairs).T
    np.testing.assert_allclose(ours, stats.t.isf((1 - levels) / 2, dfs), rtol=1e-9)


def test_linearized_interval_worked_by_hand():
    """A missing n / (n - 1), a residual about the mean ratio, or a normal quantile."""
    interval = ratio_interval([1, 2, 3], [2, 2, 5])
    half_width = 4.302652729749463 * math.sqrt(3 / 2 * (1 + 4 + 1) / 9) / 9
    assert interval.estimate == 2 / 3
    assert (interval.low, interval.high) == pytest.approx((2 / 3 - half_width, 2 / 3 + half_width), rel=1e-12)
    assert (interval.clusters, interval.confidence, interval.method) == (3, 0.95, "linearized")


def test_estimate_pools_sums():
    """A mean of the prompts' ratios, which is 0.5 here and not what a server's pooled counter shows."""
    numerators, denominators = prompts_of_a_run(np.random.default_rng(0), 20_000)
    assert ratio_interval(numerators, denominators).estimate == pytest.approx(TRUE_RATIO, abs=0.01)
    assert np.mean(numerators / denominators) > TRUE_RATIO + 0.04


@pytest.mark.parametrize("prompts", [8, 30, 200])
def test_coverage_is_nominal(prompts):
    """An interval that misses the truth more often, or less often, than it says."""
    generator = np.random.default_rng(prompts)
    intervals = [ratio_interval(*prompts_of_a_run(generator, prompts)) for _ in range(2000)]
    coverage = np.mean([covers(interval.low, interval.high) for interval in intervals])
    assert 0.92 < coverage < 0.97  # standard deviation of the simulation: 0.005


def test_rounds_are_not_independent():
    """Taking every round as an observation: its nominal 95 % interval covers far less on these prompts."""
    generator, naive = np.random.default_rng(5), []
    for _ in range(1000):
        numerators, denominators = prompts_of_a_run(generator, 30)
        ratio = numerators.sum() / denominators.sum()
        half_width = 1.96 * math.sqrt(ratio * (1 - ratio) / denominators.sum())
        naive.append(covers(ratio - half_width, ratio + half_width))
    assert np.mean(naive) < 0.6


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_bootstrap_agrees_with_linearization(confidence):
    """A tail of 1 - confidence instead of half of it, or resampling of numerators apart from denominators."""
    numerators, denominators = prompts_of_a_run(np.random.default_rng(11), 200)
    linearized = ratio_interval(numerators, denominators, confidence)
    bootstrap = bootstrap_interval(numerators, denominators, confidence, seed=3)
    assert bootstrap.estimate == linearized.estimate
    assert bootstrap.high - bootstrap.low == pytest.approx(linearized.high - linearized.low, rel=0.15)
    assert (bootstrap.low, bootstrap.high) == pytest.approx((linearized.low, linearized.high), rel=0.02)


def test_bootstrap_against_every_resample(monkeypatch):
    """Chunks that overlap or leave rows unfilled, or a prompt that is never drawn: all 5^5 resamples listed."""
    monkeypatch.setattr("eagle3ref.statistics.intervals._GATHER_BUDGET", 37)
    x, y = np.array([3, 10, 0, 7, 9]), np.array([9, 14, 5, 8, 19])
    exact = np.array([x[list(draw)].sum() / y[list(draw)].sum() for draw in itertools.product(range(5), repeat=5)])
    interval = bootstrap_interval(x, y, 0.8, 20_000, seed=1)
    for end, tail in ((interval.low, 0.1), (interval.high, 0.9)):
        assert np.mean(exact < end - 1e-9) - 0.01 < tail < np.mean(exact <= end + 1e-9) + 0.01


def test_bootstrap_is_a_function_of_its_seed():
    """Hidden global randomness."""
    x, y = prompts_of_a_run(np.random.default_rng(2), 12)
    assert bootstrap_interval(x, y, seed=4) == bootstrap_interval(x, y, seed=np.random.default_rng(4))
    assert bootstrap_interval(x, y, seed=4) != bootstrap_interval(x, y, seed=5)


def test_bootstrap_memory_does_not_grow_with_resamples():
    """All draws in one array: 80 MB of indices here, 1.6 GB at the default number of resamples."""
    ones = np.ones(100_000)
    tracemalloc.start()
    bootstrap_interval(ones, ones, resamples=100, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48e6


@pytest.mark.parametrize("interval_of", [ratio_interval, lambda x, y: bootstrap_interval(x, y, seed=0)])
def test_one_prompt_leaves_the_spread_unknown(interval_of):
    """A zero-width interval, or a division by zero, from a single prompt, alone or next to empty ones."""
    for numerators, denominators in (([5], [8]), ([0, 5, 0], [0, 8, 0])):
        interval = interval_of(numerators, denominators)
        assert (interval.estimate, interval.low, interval.high) == (0.625, -math.inf, math.inf)
        assert interval.clusters == 1


def test_prompts_without_rounds_change_nothing():
    """Empty prompts counted as observations, which would narrow the interval."""
    assert ratio_interval([1, 0, 2, 0, 3], [2, 0, 2, 0, 4]) == ratio_interval([1, 2, 3], [2, 2, 4])


@pytest.mark.parametrize(
    ("numerators", "denominators", "confidence", "told"),
    [
        ([], [], 0.95, "no positive denominator"),
        ([0, 0], [0, 0], 0.95, "no positive denominator"),
        ([1, 2], [1, 2, 3], 0.95, "shapes"),
        ([[1, 2]], [[1, 2]], 0.95, "shapes"),
        ([1, math.nan], [1, 2], 0.95, "not finite"),
        ([1, 2], [1, math.inf], 0.95, "not finite"),
        ([1, 2], [1, -2], 0.95, "negative denominator"),
        ([1, 2], [1, 0], 0.95, "zero denominator"),
        ([1, 2], [1, 2], 95, "confidence 95"),
        ([1, 2], [1, 2], 0.0, "confidence 0.0"),
        ([1, 2], [1, 2], math.nan, "confidence nan"),
    ],
)
def test_bad_input_is_refused(numerators, denominators, confidence, told):
    """A nan or a number without meaning handed on instead of an error, by either method."""
    with pytest.raises(Eagle3RefError, match=told):
        ratio_interval(numerators, denominators, confidence)
    with pytest.raises(Eagle3RefError, match=told):
        bootstrap_interval(numerators, denominators, confidence, seed=0)


def test_settings_without_meaning_are_refused():
    """Percentiles that no resample reaches; t with no degree of freedom; a method that does not exist."""
    with pytest.raises(Eagle3RefError, match="at least 40"):
        bootstrap_interval([1, 2], [2, 2], 0.95, 39, seed=0)
    with pytest.raises(Eagle3RefError, match="0 degrees of freedom"):
        student_t_critical(0.95, 0)
    with pytest.raises(Eagle3RefError, match="jackknife"):
        RatioOfSums("r", "x", "y", np.array([1, 2]), np.array([2, 2])).interval(method="jackknife")


def test_ratio_of_sums_without_denominator():
    """A division by zero, or a nan in JSON, where no round got that far."""
    ratio = RatioOfSums("rate", "hits", "tries", np.array([0, 0]), np.array([0, 0]))
    assert math.isnan(ratio.value)
    assert np.isnan(ratio.per_prompt).all()
    assert ratio.to_dict()["value"] is None
