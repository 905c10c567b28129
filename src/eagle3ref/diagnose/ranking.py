"""From scores to a ranked table: gaps, priors, and which hypotheses the evidence cannot tell apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eagle3ref.diagnose.hypothesis import RIGHT, Cause, Hypothesis
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
FITS = 0.01  # a hypothesis under which the evidence is rarer than this does not explain it


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

    @property
    def name(self) -> str:
        """Of the hypothesis."""
        return self.hypothesis.name

    @property
    def fits(self) -> bool:
        """Whether it explains the evidence."""
        return self.p >= FITS


def rank(race: Race, said: Mapping[Cause, Trap]) -> tuple[Candidate, ...]:
    """All hypotheses, the most probable first.

    One that was dropped on the way has been seen on fewer sequences. It is held against the leader on those; more
    sequences would only have widened that gap.

    Args:
        race: that ran.
        said: traps of the server's files and command, by the cause that they make true.
    """
    scored, scoring = race.ranked, race.scoring
    leader, odds = scored[0], []
    for one in scored:
        theirs = leader.score
        if one.sequences < leader.sequences:
            theirs = race.on_first(leader.hypothesis, one.sequences).score
        odds.append(one.score.log_likelihood - theirs.log_likelihood + _log_prior(one.hypothesis, said))
    shares = np.exp(np.array(odds) - max(odds))
    shares /= shares.sum()
    found = [
        _candidate(one, log_odds - max(odds), float(share), scoring, said)
        for one, log_odds, share in zip(scored, odds, shares, strict=True)
    ]
    return tuple(sorted(found, key=lambda candidate: -candidate.log_odds))


def leading(ranked: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The first, and all that the evidence cannot tell from it."""
    return tuple(candidate for candidate in ranked if candidate.log_odds > -TIE)


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
    )
