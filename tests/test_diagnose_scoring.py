"""The statistics behind a diagnosis, against scipy and against simulated servers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from simulated_counts import TREE, counts_of, printed, simulated

from eagle3ref.crosscheck import Match, PredictedRequest, near_tie_probability
from eagle3ref.crosscheck.near_ties import MOST_NEAR_TIES
from eagle3ref.diagnose.likelihood import score_figures, score_requests, score_sum
from eagle3ref.diagnose.moments import predicted_figures
from eagle3ref.diagnose.observation import Figures, RequestByRequest, RequestsInSum
from eagle3ref.diagnose.student import log_mass, two_sided_p
from eagle3ref.servers import Reading


def request(accepted: list[int], completion: int = 0) -> PredictedRequest:
    """Rounds of one answer; the last is complete, and its end is known."""
    roots = np.cumsum([10, *(c + 1 for c in accepted)]).tolist()
    tokens = completion or roots[-1] - 9
    every = (True,) * len(accepted)
    return PredictedRequest(
        "a", 10, tokens, TREE, tuple(roots[:-1]), tuple(accepted), every, goes_on=True, recorded_end=roots[-1] + 9
    )


def reading(accepted: list[int]) -> Reading:
    """What SGLang says of these rounds."""
    return Reading(
        tool="SGLang",
        format="meta_info",
        scope="request",
        rounds=len(accepted),
        accepted_drafts=sum(accepted),
        histogram=tuple(accepted.count(c) for c in range(4)),
    )


def old_reading(rounds: int, tokens: int) -> Reading:
    """What SGLang said before it counted accepted drafts: spec_verify_ct, and the length of the answer."""
    some = {"tool": "SGLang", "format": "meta_info", "scope": "request", "output_ids": (0,) * tokens}
    return Reading(**some, rounds=rounds, completion_tokens=tokens)


@given(
    st.floats(1.5, 150),
    st.floats(-30, 30),
    st.floats(1e-6, 5),
)
def test_masses_are_scipys(df: float, low: float, width: float) -> None:
    """Catches a tail that underflows, a wrong constant, and an interval that is too narrow for the sum."""
    high = low + width
    expected = integrate.quad(stats.t(df).pdf, low, high, points=[0] if low < 0 < high else None, epsabs=0)[0]
    assert log_mass(low, high, 0, 1, df) == pytest.approx(math.log(expected), rel=2e-3, abs=2e-3)


@given(st.floats(1.5, 150), st.floats(0.01, 20))
def test_p_values_are_scipys(df: float, distance: float) -> None:
    """Catches a one-sided p, and one that counts the rounding against the hypothesis."""
    assert two_sided_p(distance, distance + 1, 0, 1, df) == pytest.approx(2 * stats.t(df).sf(distance), rel=2e-3)
    assert two_sided_p(-0.1, distance, 0, 1, df) == 1


@pytest.mark.parametrize("rates", [False, True], ids=["length", "rates"])
def test_a_true_hypothesis_fits(rates: bool) -> None:
    """Catches an error of the figures that leaves out the trace, the prompts' spread, or the server's rounds."""
    ps = [
        score_figures(printed(simulated(30, 8, seed), rates=rates), predicted_figures(counts_of(trace))).p
        for seed in range(300)
        for trace in [simulated(20, 10, 10_000 + seed)]
    ]
    for level in (0.01, 0.05, 0.2):
        assert np.mean(np.array(ps) < level) <= 1.3 * level + 2 * math.sqrt(level / len(ps))
    assert np.mean(np.array(ps) < 0.2) > 0.05  # and not so wide that nothing is ever off


def test_the_same_prompts_say_more() -> None:
    """Catches prompts that are known to be the same and counted as a new sample all the same."""
    counts = counts_of(simulated(40, 20, 1))
    same, other = predicted_figures(counts, same_prompts=True), predicted_figures(counts)
    assert same.length.sd(800) < 0.7 * other.length.sd(800)


def test_a_share_of_the_prompts_stands_for_all() -> None:
    """Catches a hypothesis judged by the prompts that it happened to be replayed on."""
    right = simulated(40, 20, 2)
    wrong = right[:, [1, 0, 2, 3]]
    easy = np.argsort(-(right * np.arange(4)).sum(1))[:8]
    part, whole = predicted_figures(counts_of(right[easy])), predicted_figures(counts_of(right))
    alone = predicted_figures(counts_of(wrong[easy]))
    carried, true = alone.scaled(whole, part), predicted_figures(counts_of(wrong))
    assert abs(carried.length.mean - true.length.mean) < 0.5 * abs(alone.length.mean - true.length.mean)


def test_requests_are_equal_or_not() -> None:
    """Catches a wrong request that costs no more than a right one, and one near-tie that kills the truth."""
    rounds = [[0, 2, 1, 3, 0, 1], [1, 1, 0, 0, 2], [3, 3, 0, 1], [0, 0, 1, 2, 2, 0]]
    predicted = {str(i): request(accepted) for i, accepted in enumerate(rounds)}
    matches = [Match(reading(accepted), "same answer", str(i)) for i, accepted in enumerate(rounds)]
    truth = score_requests(RequestByRequest(tuple(matches)), predicted)
    assert (truth.equal, truth.requests, truth.p) == (4, 4, 1.0)
    flipped = [replace(matches[0], request=reading([0, 2, 0, 3, 0, 1, 0])), *matches[1:]]
    almost = score_requests(RequestByRequest(tuple(flipped)), predicted)
    assert almost.equal == 3
    assert 0.05 < almost.p < 1
    assert almost.log_likelihood < truth.log_likelihood - 3
    other = [replace(match, request=reading([0] * 8)) for match in matches]
    assert score_requests(RequestByRequest(tuple(other)), predicted).p < 0.01


def test_rounds_alone_tell_how_far_off_a_request_is() -> None:
    """Catches a request that tells only rounds and tokens (old SGLang), and counts the same however far off."""
    predicted = {"0": request([0, 2, 1, 3, 0, 1, 0, 0, 2, 1, 1, 0, 3, 0, 0, 1, 0, 2, 0, 1])}
    tokens = predicted["0"].completion_tokens

    def score(rounds: int) -> float:
        said = old_reading(rounds, tokens)
        return score_requests(RequestByRequest((Match(said, "same answer", "0"),)), predicted).log_likelihood

    assert score(20) > score(21) + 1
    assert score(21) > score(24) > score(30) > score(38)
    assert score(20) > score(38) + 6


def test_how_far_off_counts_for_the_fit() -> None:
    """Catches one request with three times the rounds that passes for one near-tie."""
    predicted = {"0": request([2] * 20)}
    tokens = predicted["0"].completion_tokens

    def p(rounds: int) -> float:
        return score_requests(RequestByRequest((Match(old_reading(rounds, tokens), "same answer", "0"),)), predicted).p

    assert p(20) == 1
    assert p(21) == pytest.approx(near_tie_probability(1, 20, MOST_NEAR_TIES))
    assert p(58) < 1e-6


def test_sums_of_requests() -> None:
    """Catches a sum that is held against some of the requests as if they were all, and a truth that does not win."""
    random = np.random.default_rng(0)
    right = {str(i): request(random.integers(0, 4, size=12).tolist()) for i in range(40)}
    wrong = {
        name: request([max(0, c - (i % 2 == 0)) for i, c in enumerate(p.num_accepted)]) for name, p in right.items()
    }
    at = tuple(sum(c >= d for p in right.values() for c in p.num_accepted) for d in (1, 2, 3))
    matches = tuple(Match(reading([0]), "same answer", name) for name in right)
    matches = tuple(replace(m, request=replace(m.request, completion_tokens=None)) for m in matches)
    observed = RequestsInSum(matches, sum(p.rounds for p in right.values()), at)
    truth, other = (score_sum(observed, predicted, right) for predicted in (right, wrong))
    assert truth.p == 1
    assert other.p < 0.01
    assert truth.log_likelihood > other.log_likelihood + 5
    some = dict(list(right.items())[:5])
    assert score_sum(observed, some, right).p == 1


def test_a_deeper_tree_is_not_overlooked() -> None:
    """Catches rates of a server with fewer steps that fit a deeper tree as well."""
    three = predicted_figures(counts_of(simulated(30, 20, 3)))
    figures = printed(simulated(30, 20, 4), rates=True)
    two = Figures(figures.rounds, "counted", None, None, figures.rates[:2], None)
    assert score_figures(figures, three).p > 0.01
    assert score_figures(two, three).p < 1e-6
