"""From scores to a ranked table: gaps, priors, and which hypotheses the evidence cannot tell apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eagle3ref.diagnose.hypothesis import RIGHT, Cause, Hypothesis
from eagle3ref.diagnose.likelihood import FITS
from eagle3ref.diagnose.near_ties import NearTies
from eagle3ref.diagnose.race import Race
from eagle3ref.diagnose.scoring import Scored, Scoring
from eagle3ref.explain.trap import Trap

# What the odds are before any evidence. A server is more often right than wrong in any one way; two faults at once are
# rarer than one; what files and command make true is likely; and what the engine is known to make of them is likelier.
_LOG_PRIOR_RIGHT = math.log(5)
_LOG_PRIOR_PAIR = -math.log(10)
_LOG_PRIOR_SAID = math.log(20)
_LOG_PRIOR_READ = 2 * math.log(20)

TIE = math.log(20)  # hypotheses that are less than 20 times as probable as another are not told apart


@dataclass(frozen=True)
class Candidate:
    """A hypothesis in the ranked table.

    Args:
        hypothesis: which.
        log_odds: against the first, prior included; 0 for the first, else below.
        share: probability among all that were tried; they sum to 1.
        p: of evidence at least this far off, if it is true; below ``FITS`` it does not explain the evidence.
        equal: requests that are equal in every integer.
        requests: requests that were compared one by one.
        acceptance_length: predicted, bonus counted.
        rates: joint rates predicted, by depth.
        sequences: of the trace that it was replayed on.
        said_by: the trap in files or command that makes it true; None if there is none.
        near_ties: whether its unequal requests may be near-ties; None where it was not looked at.
    """

    hypothesis: Hypothesis
    log_odds: float
    share: float
    p: float
    equal: int
    requests: int
    acceptance_length: float
    rates: tuple[float, ...]
    sequences: int
    said_by: Trap | None
    near_ties: NearTies | None = None

    @property
    def name(self) -> str:
        """Of the hypothesis."""
        return self.hypothesis.name

    @property
    def fits(self) -> bool:
        """Whether it explains the evidence."""
        return self.p >= FITS and (self.near_ties is None or self.near_ties.explain)


def rank(race: Race, said: Mapping[Cause, Trap]) -> tuple[Candidate, ...]:
    """All hypotheses, the most probable first.

    One that was dropped on the way has been seen on fewer sequences. It is held against the leader on those; more
    sequences would only have widened that gap.

    Args:
        race: that ran.
        said: traps of the server's files and command, by the cause that they make true.
    """
    scored, scoring = race.ranked, race.scoring
    odds = [race.gap(one) + _log_prior(one.hypothesis, said) for one in scored]
    shares = np.exp(np.array(odds) - max(odds))
    shares /= shares.sum()
    found = [
        _candidate(one, log_odds - max(odds), float(share), scoring, said)
        for one, log_odds, share in zip(scored, odds, shares, strict=True)
    ]
    return tuple(sorted(found, key=lambda candidate: -candidate.log_odds))


def leading(ranked: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The first and all that the evidence cannot tell from it, as far as they explain it; if none does, all of them.

    A pair may imitate a near-tie better than the one fault that it is about; so that one is not given up as easily.
    """
    near = [candidate for candidate in ranked if candidate.log_odds > -TIE]
    explaining = [candidate for candidate in near if candidate.fits]
    parts = parts_of(explaining)
    simpler = [c for c in ranked if c.name in parts and c.fits and -2 * TIE < c.log_odds <= -TIE]
    found = [*explaining, *simpler] or near
    return tuple(sorted(found, key=lambda candidate: candidate != common_part(found)))


def parts_of(candidates: Sequence[Candidate]) -> set[str]:
    """Names of what the pairs among these are made of."""
    return {part for candidate in candidates for part in candidate.hypothesis.parts} - {c.name for c in candidates}


def common_part(candidates: Sequence[Candidate]) -> Candidate | None:
    """The one among these that is part of all the others; the only one, if there is one."""
    for one in candidates:
        if all(other is one or one.name in other.hypothesis.parts for other in candidates):
            return one
    return None


def _log_prior(hypothesis: Hypothesis, said: Mapping[Cause, Trap]) -> float:
    if hypothesis.name == RIGHT.name:
        return _LOG_PRIOR_RIGHT
    if hypothesis.cause == "engine_reading":
        return _LOG_PRIOR_READ
    pair = _LOG_PRIOR_PAIR * (len(hypothesis.parts) - 1)
    return pair + (_LOG_PRIOR_SAID if hypothesis.cause in said else 0.0)


def _candidate(one: Scored, log_odds: float, share: float, scoring: Scoring, said: Mapping[Cause, Trap]) -> Candidate:
    figures = scoring.figures(one.prediction)
    length, rates = (math.nan, ()) if figures is None else (figures.length.mean, figures.joint)
    return Candidate(
        hypothesis=one.hypothesis,
        log_odds=log_odds,
        share=share,
        p=one.score.p,
        equal=one.score.equal,
        requests=one.score.requests,
        acceptance_length=length,
        rates=rates,
        sequences=one.sequences,
        said_by=said.get(one.hypothesis.cause),
        near_ties=one.near_ties,
    )
