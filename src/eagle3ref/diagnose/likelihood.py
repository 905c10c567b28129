"""How probable the evidence is under one hypothesis, sampling error included, and whether it fits at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from eagle3ref.crosscheck.near_ties import MOST_NEAR_TIES
from eagle3ref.crosscheck.predict import PredictedRequest, accepted_at
from eagle3ref.crosscheck.same_requests import Pair, chance_of_near_ties
from eagle3ref.diagnose.moments import Moments, Predicted
from eagle3ref.diagnose.observation import Figures, RequestByRequest, RequestsInSum
from eagle3ref.diagnose.student import log_mass, two_sided_p
from eagle3ref.servers import Reading, Rounded

_HISTOGRAM_PRIOR = 4.0  # rounds' worth of the pooled histogram in the one of a request that a near-tie has moved
_SAME_ARITHMETIC = 1e-4  # near-ties a round where server and replay compute alike; whether they do is not known
_SUM_DEGREES = 4.0  # of the few large jumps that near-ties make in a sum
FITS = 0.01  # a hypothesis under which the evidence is rarer than this does not explain it


@dataclass(frozen=True)
class Score:
    """What the evidence says of one hypothesis.

    Args:
        log_likelihood: natural logarithm; only differences between hypotheses mean something.
        p: the probability of evidence at least this far off if the hypothesis is true. Small: it does not fit.
        equal: requests that are equal in every integer.
        requests: requests that were held against the replay one by one.
    """

    log_likelihood: float = 0.0
    p: float = 1.0
    equal: int = 0
    requests: int = 0

    def __add__(self, other: Score) -> Score:
        """Both; two tests, so that the smaller p counts twice."""
        return Score(
            self.log_likelihood + other.log_likelihood,
            min(1.0, 2 * min(self.p, other.p)) if min(self.p, other.p) < 1 else 1.0,
            self.equal + other.equal,
            self.requests + other.requests,
        )


def total(scores: Sequence[Score]) -> Score:
    """The sum of independent pieces of evidence."""
    return reduce(Score.__add__, scores, Score()) if len(scores) != 1 else scores[0]


def score_requests(observed: RequestByRequest, predicted: dict[str, PredictedRequest]) -> Score:
    """Requests that are in ``predicted``, one by one.

    With probability (1 - e)^R no near-tie of the R rounds fell the other way on the server, e = ``MOST_NEAR_TIES``, and
    every integer is the replay's, the last round within its bounds. Else the rounds after it are others, and are taken
    for draws from the replay's histogram: of this request, and of all for what it lacks.
    """
    pairs = [Pair(m.request, p) for m in observed.matches if (p := same_cut(m.request, predicted, m.sequence_id))]
    if not pairs:
        return Score()
    width = max(len(pair.predicted.histograms()[0]) for pair in pairs)
    pooled = np.sum([_padded(pair.predicted.histograms()[0], width) for pair in pairs], axis=0) + 0.5 / width
    pooled /= pooled.sum()
    score, equal = 0.0, 0
    for pair in pairs:
        untouched = pair.predicted.rounds * math.log1p(-MOST_NEAR_TIES)
        moved = math.log(-math.expm1(untouched)) + _log_draws(pair.request, pair.predicted, pooled)
        score += moved if pair.unequal else float(np.logaddexp(untouched, moved))
        equal += not pair.unequal
    return Score(score, chance_of_near_ties(pairs) if equal < len(pairs) else 1.0, equal, len(pairs))


def score_sum(
    observed: RequestsInSum, predicted: dict[str, PredictedRequest], right: dict[str, PredictedRequest]
) -> Score:
    """Requests that only their sum is known of; near-ties move it by up to a few rounds each.

    A sum over requests that were not all replayed is the right wiring's, plus what the replayed ones differ by; that
    difference then has the error of a sample without replacement (Cochran, Sampling Techniques, 3rd ed., §2.8).
    """
    cut = [(same_cut(m.request, predicted, m.sequence_id), m) for m in observed.matches]
    mine = [(p, same_cut(m.request, right, m.sequence_id)) for p, m in cut if p is not None]
    pairs = [(p, r) for p, r in mine if r is not None]
    every = [r for m in observed.matches if (r := same_cut(m.request, right, m.sequence_id)) is not None]
    if not pairs:
        return Score()
    depths = len(observed.accepted_at)
    # At a given text rounds and accepted drafts are one number, so depth 1 adds nothing that the rest does not say.
    terms = [(observed.rounds, 0)] + [(observed.accepted_at[d - 1], d) for d in range(2, depths + 1)]
    sums = [(seen, *_sum_over_all(pairs, every, depth)) for seen, depth in terms]
    df = _SUM_DEGREES if len(pairs) == len(every) else max(1.0, min(_SUM_DEGREES, len(pairs) - 1.0))
    logs, ps = np.zeros(2), []
    for seen, low, high, variance in sums:
        nearest = min(max(seen, low), high)
        for i, rate in enumerate((_SAME_ARITHMETIC, MOST_NEAR_TIES)):
            spread = math.sqrt(0.25 + rate * observed.rounds * max(1, depths) ** 2 + variance)
            logs[i] += log_mass(seen - 0.5, seen + 0.5, nearest, spread, df) - math.log(high - low + 1)
        ps.append(two_sided_p(seen - 0.5, seen + 0.5, nearest, spread, df))
    return Score(float(np.logaddexp(*logs)) - math.log(2), min(1.0, min(ps) * len(ps)), 0, 0)


def _sum_over_all(
    pairs: Sequence[tuple[PredictedRequest, PredictedRequest]], every: Sequence[PredictedRequest], depth: int
) -> tuple[float, float, float]:
    """Rounds (depth 0) or drafts accepted at a depth, over all requests: least, most, and the variance of both."""
    own = np.array([_count(mine, depth) for mine, _ in pairs], float)
    base = np.array([_count(right, depth) for _, right in pairs], float)
    whole = np.array([_count(right, depth) for right in every], float).sum(0)
    n, every_n = len(pairs), len(every)
    gaps = (own - base)[:, 0]
    spread = float(gaps.var(ddof=1)) if n > 1 else float(gaps[0] ** 2 + base[0, 0])
    low, high = whole + every_n * (own - base).mean(0)
    return float(low), float(max(low, high)), every_n**2 * (1 - n / every_n) * spread / n


def _count(request: PredictedRequest, depth: int) -> tuple[int, int]:
    return accepted_at([request], depth) if depth else (request.rounds, request.rounds)


def score_figures(observed: Figures, predicted: Predicted) -> Score:
    """Printed figures of other rounds: Student's t with the error of the trace and of the server's rounds.

    Rates by depth are scored as conditional ones, which are independent given what reached them, and then say all that
    the length does.
    """
    if observed.rates:
        terms = list(_rate_terms(observed, predicted))
    elif observed.length is None:
        return Score()
    elif observed.mean_of_requests:
        terms = [(observed.length, predicted.mean_length, float(observed.mean_of_requests))]
    else:
        terms = [(observed.length, predicted.length, observed.least_rounds)]
    logs, ps = [], []
    for seen, moments, trials in terms:
        half = 0.5 / max(trials, 1.0)
        low, high = min(seen.low, seen.value - half), max(seen.high, seen.value + half)
        sd, df = moments.sd(max(trials, 1.0)), moments.degrees_of_freedom
        logs.append(log_mass(low, high, moments.mean, sd, df))
        ps.append(two_sided_p(low, high, moments.mean, sd, df))
    return Score(sum(logs), min(1.0, min(ps, default=1.0) * max(1, len(ps))))


def conditional_rates(joint: Sequence[Rounded]) -> list[Rounded]:
    """Of the rounds that accepted d - 1 drafts, the fraction that accepted d: each joint rate over the one before.

    Both are rounded, so the ends are the least over the most and the other way round. It ends where nothing is left.
    """
    found, above = [], Rounded.exactly(1.0)
    for rate in joint:
        if above.low <= 0:
            break
        value = min(rate.value / above.value, 1.0)
        found.append(Rounded(value, min(rate.low / above.high, value), max(min(rate.high / above.low, 1.0), value)))
        above = rate
    return found


def _rate_terms(observed: Figures, predicted: Predicted) -> list[tuple[Rounded, Moments, float]]:
    # A tree that is deeper than the server's would have been accepted to its own depth now and then.
    rates = (*observed.rates, *[Rounded.exactly(0.0)] * (predicted.num_steps - len(observed.rates)))
    never = Moments(0.0, 1e-6, 1e-6, 1.0, 1.0)
    possible = (*predicted.conditional, *[never] * (len(rates) > predicted.num_steps == len(predicted.conditional)))
    reached = [observed.least_rounds * share for share in (1.0, *(rate.value for rate in rates))]
    terms = zip(conditional_rates(rates), possible, reached, strict=False)
    return [(rate, moments, trials) for rate, moments, trials in terms if trials >= 1]


def same_cut(request: Reading, predicted: dict[str, PredictedRequest], name: str | None) -> PredictedRequest | None:
    """The prediction, up to where this request's answer ended."""
    whole = predicted.get(name or "")
    tokens = request.completion_tokens or len(request.output_ids or ())
    return whole.up_to(tokens) if whole is not None and tokens else whole


def _log_draws(request: Reading, prediction: PredictedRequest, pooled: NDArray[np.float64]) -> float:
    """ln of the multinomial probability of a request's histogram; of accepted drafts or rounds if it gives no more."""
    width = max(len(pooled), len(request.histogram))
    share = np.full(width, 1e-3 / width)
    own = _padded(prediction.histograms()[0], width) + _HISTOGRAM_PRIOR * np.pad(pooled, (0, width - len(pooled)))
    share = share + own / own.sum()
    share /= share.sum()
    rounds = request.rounds or 0
    if request.histogram:
        counts = _padded(request.histogram, width)
        logs = counts @ np.log(share) - sum(math.lgamma(count + 1) for count in counts)
        return float(logs) + math.lgamma(rounds + 1)
    depth = np.arange(width)
    mean = float(share @ depth)
    variance = max(float(share @ depth**2) - mean**2, 1e-3)
    if rounds and request.accepted_drafts is not None:
        sd, drafts = math.sqrt(variance * rounds), request.accepted_drafts
        return log_mass(drafts - 0.5, drafts + 0.5, mean * rounds, sd, 200)
    # Rounds of c + 1 tokens until the text is full, a renewal process: Feller, Probability Theory, vol. 2, § XI.5.
    tokens = max(1, prediction.completion_tokens - 1)
    sd = math.sqrt(tokens * variance / (mean + 1) ** 3)
    return log_mass(rounds - 0.5, rounds + 0.5, tokens / (mean + 1), sd, 200)


def _padded(histogram: Sequence[int], width: int) -> NDArray[np.float64]:
    return np.pad(np.asarray(histogram, float), (0, width - len(histogram)))
