"""The cheapest next observation: what would tell the leading hypotheses apart, computed from their own replays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from eagle3ref.crosscheck.predict import PredictedRequest, predict_requests
from eagle3ref.diagnose.moments import Moments, Predicted
from eagle3ref.diagnose.observation import Observation, RequestByRequest, RequestsInSum
from eagle3ref.diagnose.scoring import Scored, Scoring
from eagle3ref.trace import Trace

_ERRORS = 2 * 1.645  # one test at 5 % that is missed in 5 %
_MOST_ROUNDS = 1_000_000
_MOST_HYPOTHESES = 8  # of a longer tie, the first: whatever comes out, the next diagnosis has fewer
_MOST_OBSERVATIONS = 3
_MOST_OF = 0.5  # of the others are told apart; those that are all but equal would take for ever
_REQUESTS_FOR_EACH = 2  # a single request may have met a near-tie


@dataclass(frozen=True)
class NextObservation:
    """Something to ask the server for.

    Args:
        what: one sentence.
        separates: names of the hypotheses that it tells apart.
        rounds: that are needed.
        requests: sequences of the trace to send, for request fields; empty for figures.
        expected: what each of them predicts.
    """

    what: str
    separates: tuple[str, ...]
    rounds: int
    requests: tuple[str, ...]
    expected: Mapping[str, str]


def next_observations(
    trace: Trace, leading: Sequence[Scored], scoring: Scoring, observations: Sequence[Observation]
) -> tuple[NextObservation, ...]:
    """What separates the leading hypotheses, the fewest rounds first; empty if nothing that a replay knows does.

    Args:
        trace: that was replayed.
        leading: those that the evidence did not tell apart.
        scoring: that scored them.
        observations: what is known already.
    """
    leading = leading[:_MOST_HYPOTHESES]
    if len(leading) < 2:
        return ()
    known = any(isinstance(seen, RequestByRequest) for seen in observations)
    found = [] if known else [_requests(trace, leading)]
    asked_in_sum = any(isinstance(seen, RequestsInSum) for seen in observations)
    if not known and not asked_in_sum:
        figures = {
            one.hypothesis.name: made for one in leading if (made := scoring.figures(one.prediction)) is not None
        }
        if len(figures) > 1:
            found += [_figure(*reading) for reading in _readings(figures)]
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.rounds)[:_MOST_OBSERVATIONS])


def _requests(trace: Trace, leading: Sequence[Scored]) -> NextObservation | None:
    """The fewest requests whose integers differ between as many of them as can be told apart at all."""
    if any(one.prediction.rule.name != "greedy" for one in leading):
        return None
    predicted = {one.hypothesis.name: _by_id(trace, one) for one in leading}
    common = [name for name in trace.ids if all(name in requests for requests in predicted.values())]
    apart = {
        name: {pair for pair in itertools.combinations(predicted, 2) if _differ(*(predicted[h][name] for h in pair))}
        for name in common
    }
    wanted = dict.fromkeys(set().union(*apart.values()), _REQUESTS_FOR_EACH)
    chosen: list[str] = []
    while any(need > 0 for need in wanted.values()) and len(chosen) < len(common):
        rest = [name for name in common if name not in chosen]
        best = max(rest, key=lambda name: sum(wanted[pair] > 0 for pair in apart[name]))
        if not any(wanted[pair] > 0 for pair in apart[best]):
            break
        chosen.append(best)
        for pair in apart[best]:
            wanted[pair] -= 1
    if not chosen:
        return None
    separated = tuple(name for name in predicted if any(name in pair for pair in wanted))
    rounds = {h: [predicted[h][name].rounds for name in chosen] for h in separated}
    return NextObservation(
        f"Request fields and output ids of {len(chosen)} requests of the trace: {', '.join(chosen)}, at temperature 0.",
        separated,
        max(map(sum, rounds.values())),
        tuple(chosen),
        {h: f"{', '.join(map(str, counts))} rounds" for h, counts in rounds.items()},
    )


def _by_id(trace: Trace, one: Scored) -> dict[str, PredictedRequest]:
    return predict_requests(trace, one.prediction.rounds, one.prediction.tree)


def _differ(one: PredictedRequest, other: PredictedRequest) -> bool:
    """Whether no end of the last round makes the two equal."""
    histograms = {tuple(histogram) for histogram in one.histograms()}
    return histograms.isdisjoint(tuple(histogram) for histogram in other.histograms())


def _figure(label: str, moments: Mapping[str, Moments], reached: float) -> NextObservation | None:
    """Rounds of the trace's prompts after which a printed figure tells the first hypothesis from most others.

    Args:
        label: of the figure.
        moments: predicted, by hypothesis; the first is the one in question.
        reached: the share of rounds that have a say in it.
    """
    first, *others = moments
    needed = {other: rounds_between(moments[first], moments[other]) / reached for other in others}
    told = sorted((rounds, name) for name, rounds in needed.items() if rounds <= _MOST_ROUNDS)
    if not told:
        return None
    apart = told[: max(1, math.ceil(_MOST_OF * len(told)))]
    rounds, names = math.ceil(apart[-1][0]), tuple(name for _, name in apart)
    return NextObservation(
        f"{label} over {rounds:,} rounds of the trace's prompts.",
        (first, *names),
        rounds,
        (),
        {name: f"{moments[name].mean:.3f}" for name in (first, *names)},
    )


def _readings(figures: Mapping[str, Predicted]) -> Iterator[tuple[str, dict[str, Moments], float]]:
    """What can be read, what each hypothesis predicts for it, and which share of rounds has a say in it."""
    yield "The acceptance length", {name: one.length for name, one in figures.items()}, 1.0
    for d in range(min(len(one.conditional) for one in figures.values())):
        label = f"The acceptance rate at depth {d + 1}" + (f" of rounds that accepted {d}," if d else "")
        reached = max(1e-6, min((1.0, *one.joint)[d] for one in figures.values()))
        yield label, {name: one.conditional[d] for name, one in figures.items()}, reached


def rounds_between(one: Moments, other: Moments) -> float:
    """Trials after which a cut halfway between two means decides, with 5 % error either way; inf if they are equal."""
    gap = abs(one.mean - other.mean)
    return math.inf if gap == 0 else _ERRORS**2 * max(one.trial_variance, other.trial_variance) / gap**2
