"""What a hypothesis is measured by: requests one by one, their sum, or figures of a workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3ref.config import AcceptanceRule
from eagle3ref.crosscheck.matching import Match, match_requests
from eagle3ref.servers import Evidence, Pooled, Reading, Rounded
from eagle3ref.trace import Trace


@dataclass(frozen=True)
class RequestByRequest:
    """Requests whose answers are the trace's: each one's rounds follow from the wiring, and are counted integers."""

    matches: tuple[Match, ...]

    @property
    def ids(self) -> frozenset[str]:
        """Of the sequences of the trace."""
        return frozenset(match.sequence_id for match in self.matches if match.sequence_id is not None)


@dataclass(frozen=True)
class RequestsInSum:
    """The same, where the server counts over all of them only.

    Args:
        matches: all the requests that were counted.
        rounds: of all.
        accepted_at: accepted drafts at depth 1, 2, …; of depth 1 on as far as the server says.
    """

    matches: tuple[Match, ...]
    rounds: int
    accepted_at: tuple[int, ...]

    @property
    def ids(self) -> frozenset[str]:
        """Of the sequences of the trace."""
        return frozenset(match.sequence_id for match in self.matches if match.sequence_id is not None)


@dataclass(frozen=True)
class Figures:
    """What was printed of rounds that the trace does not hold.

    Args:
        rounds: how many; an estimate where ``rounds_how`` says so, None where nothing tells.
        rounds_how: where that number comes from.
        length: with bonus.
        mean_of_requests: how many requests' lengths were averaged, if it is such a mean.
        rates: joint, by depth; empty if not printed.
        ids: the sequences of the trace with the same prompts; None if the prompts are others, or not known.
    """

    rounds: float | None
    rounds_how: str
    length: Rounded | None
    mean_of_requests: int | None
    rates: tuple[Rounded, ...]
    ids: frozenset[str] | None

    @property
    def least_rounds(self) -> float:
        """Rounds that there are at the least."""
        return 1.0 if self.rounds is None else max(1.0, self.rounds)

    @property
    def has_size(self) -> bool:
        """Whether its sampling error is known: by its rounds, or by its requests if it is a mean over these."""
        return self.rounds is not None or self.mean_of_requests is not None


Observation = RequestByRequest | RequestsInSum | Figures


def observe(trace: Trace, evidence: Evidence, rule: AcceptanceRule) -> tuple[Observation, ...]:
    """The evidence, sorted by what it can be held against; no round enters twice.

    Request fields go first. Logs and metrics of the same server count the same rounds again, so they are used only
    where no request tells its own.
    """
    matches = match_requests(trace, evidence.requests)
    # Coins decide on sampled drafts: the answer does not say what was drafted.
    follows = rule.drafts == "top"
    counted = [match for match in matches if match.request.rounds is not None]
    exact = tuple(match for match in counted if follows and match.how == "same answer")
    found: list[Observation] = [RequestByRequest(exact)] if exact else []
    rest = [match for match in counted if match not in exact]
    for same_prompt in (True, False):
        some = [match for match in rest if (match.how != "unmatched") == same_prompt]
        ids = frozenset(match.sequence_id for match in some if match.sequence_id is not None)
        found += _figures_of_requests([match.request for match in some], ids if same_prompt else None)
    if found:
        return tuple(found)
    in_sum = _in_sum(matches, evidence) if follows else None
    return (in_sum,) if in_sum is not None else tuple(_figures_of(evidence))


def _figures_of_requests(requests: Sequence[Reading], ids: frozenset[str] | None) -> list[Observation]:
    known = [r for r in requests if r.rounds and (r.histogram or r.accepted_drafts is not None)]
    if not known:
        return []
    rounds = sum(r.rounds or 0 for r in known)
    how = f"counted in {len(known)} requests"
    if all(r.histogram for r in known):
        width = max(len(r.histogram) for r in known)
        histogram = sum(np.pad(np.array(r.histogram), (0, width - len(r.histogram))) for r in known)
        return [Figures(rounds, how, None, None, _joint(np.asarray(histogram)), ids)]
    drafts = sum(r.accepted_drafts or 0 for r in known)
    return [Figures(rounds, how, Rounded.exactly(1 + drafts / rounds), None, (), ids)]


def _joint(histogram: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[Rounded, ...]:
    at_least = histogram[::-1].cumsum()[::-1]
    return tuple(Rounded.exactly(float(hits / at_least[0])) for hits in at_least[1:])


def _in_sum(matches: Sequence[Match], evidence: Evidence) -> RequestsInSum | None:
    if not matches or any(match.how != "same answer" for match in matches):
        return None
    for reading in evidence.runs:
        if reading.rounds and (reading.accepted_drafts_at or reading.accepted_drafts is not None):
            by_depth = reading.accepted_drafts_at or (reading.accepted_drafts or 0,)
            return RequestsInSum(tuple(matches), reading.rounds, by_depth if reading.accepted_drafts_at else ())
    return None


def _figures_of(evidence: Evidence) -> list[Observation]:
    """The best summary there is; else the values that somebody gave to compare with."""
    pooled = evidence.best or evidence.pooled("reference")
    if pooled is None or (pooled.length is None and not pooled.accept_rate_at):
        return []
    return [_figures(pooled)]


def _figures(pooled: Pooled) -> Figures:
    # The least of an estimate: errors rather too wide.
    number, how = (None, "") if pooled.rounds is None else (pooled.rounds.low, pooled.rounds.how)
    rates = _joint(np.array(pooled.histogram)) if pooled.histogram else pooled.accept_rate_at
    requests = pooled.count if pooled.average == "requests" else None
    return Figures(number, how, pooled.length, requests, rates, None)


def has_sizes(observations: Sequence[Observation]) -> bool:
    """Whether any of it says over how much it is, so that it can be off at all."""
    return any(not isinstance(seen, Figures) or seen.has_size for seen in observations)


def in_sentences(observations: Sequence[Observation]) -> tuple[str, ...]:
    """The evidence for people: what kind it is, and what it says."""
    return tuple(map(_in_words, observations))


def _in_words(seen: Observation) -> str:
    if isinstance(seen, RequestByRequest):
        rounds = sum(match.request.rounds or 0 for match in seen.matches)
        return f"same requests round by round: {len(seen.matches)} requests, {rounds:,} rounds, answers as recorded"
    if isinstance(seen, RequestsInSum):
        return f"same requests in sum: {len(seen.matches)} requests, {seen.rounds:,} rounds, answers as recorded"
    kind = "same workload only" if seen.ids is None else "same prompts, other answers"
    length = "" if seen.length is None else f"length {seen.length.value:.4g}, "
    rates = ", ".join(f"{rate.value:.3g}" for rate in seen.rates)
    size = "unknown rounds" if seen.rounds is None else f"rounds {seen.rounds:,.0f} ({seen.rounds_how})"
    return f"{kind}: {length}{f'joint rates {rates}, ' if rates else ''}{size}"
