"""Symptoms that the evidence itself shows: trends, histograms, and requests that fall behind their own reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eagle3ref.crosscheck.predict import PredictedRequest
from eagle3ref.diagnose.moments import Predicted
from eagle3ref.diagnose.observation import Figures, Observation, RequestByRequest
from eagle3ref.diagnose.runtime import SYMPTOMS
from eagle3ref.servers import Evidence, Reading
from eagle3ref.servers.evidence.trend import TrendBy

_STANDARD_ERRORS = 3.0
_ENOUGH_ROUNDS = 30
_FALL = 0.05  # tokens over the whole span; less is not worth a symptom
_EXPECTED = 10.0  # rounds of a kind that must be expected before their absence means anything


@dataclass(frozen=True)
class Sign:
    """A symptom and what shows it.

    Args:
        symptom: a name out of ``SYMPTOMS``.
        shown_by: one sentence.
    """

    symptom: str
    shown_by: str

    @classmethod
    def told(cls, symptom: str) -> Sign:
        """By the user."""
        return cls(symptom, f"You say so: {SYMPTOMS[symptom]}.")


def measured_signs(
    evidence: Evidence,
    observations: Sequence[Observation],
    right: Mapping[str, PredictedRequest],
    figures: Predicted | None,
) -> tuple[Sign, ...]:
    """Every symptom that the evidence shows: trends at 95 %, differences of means at three standard errors.

    Args:
        evidence: of the server.
        observations: of this evidence.
        right: the requests as they should be, by sequence id.
        figures: as they should be; None without a complete round.
    """
    matched = [m for seen in observations if isinstance(seen, RequestByRequest) for m in seen.matches]
    behind = [
        (m.request, gap) for m in matched if (gap := _behind(m.request, right.get(m.sequence_id or ""))) is not None
    ]
    found = [*_trends(evidence, bool(behind)), *_graphs(evidence), *_behind_in_groups(behind)]
    if figures is not None:
        found += _shape(observations, matched_histogram(evidence), figures)
    first = {sign.symptom: sign for sign in reversed(found)}
    return tuple(first[name] for name in SYMPTOMS if name in first)


def matched_histogram(evidence: Evidence) -> tuple[int, ...]:
    """Rounds by accepted drafts of all that the server tells a histogram of."""
    pooled = evidence.best
    return () if pooled is None else pooled.histogram


def _trends(evidence: Evidence, has_reference: bool) -> Iterator[Sign]:
    """Falls that the server's own numbers show; those with the prompt only where no reference says how hard it is."""
    by: dict[TrendBy, str] = {"time": "decays", "running_requests": "batched"}
    if not has_reference:
        by |= {"cached_tokens": "cached-prompts", "prompt_tokens": "long-prompts"}
    for name, symptom in by.items():
        trend = evidence.trend(name)
        if trend is not None and trend.direction == "falls" and trend.change < -_FALL:
            yield Sign(
                symptom,
                f"The length falls by {-trend.slope:.2f} tokens for each {trend.unit} (95 % {-trend.high:.2f} to "
                f"{-trend.low:.2f}), over {trend.points} readings.",
            )


def _graphs(evidence: Evidence) -> Iterator[Sign]:
    lengths = {
        mode: [length.value for w in evidence.windows if w.cuda_graph is mode and (length := w.length_with_bonus)]
        for mode in (True, False)
    }
    lower = _lower(lengths[True], lengths[False])
    if lower is not None:
        yield Sign("graphs", f"Lines with a CUDA graph have a length {lower:.2f} lower than lines without.")


def _behind(request: Reading, right: PredictedRequest | None) -> float | None:
    """Length of a request minus what it should be; None if it cannot be told."""
    cut = None if right is None else right.up_to(request.completion_tokens or len(request.output_ids or ()))
    if cut is None or not cut.rounds or not request.rounds:
        return None
    return cut.completion_tokens / request.rounds - cut.completion_tokens / cut.rounds


def _behind_in_groups(behind: Sequence[tuple[Reading, float]]) -> Iterator[Sign]:
    """Requests that fall behind their own reference more than others do."""
    lengths = [request.prompt_tokens or len(request.prompt_ids or ()) for request, _ in behind]
    middle = float(np.median(lengths)) if lengths else math.inf
    groups: dict[str, tuple[str, Callable[[Reading], bool]]] = {
        "cached-prompts": ("with cached prompt tokens", lambda r: bool(r.cached_tokens)),
        "long-prompts": (
            f"with prompts of more than {middle:g} tokens",
            lambda r: (r.prompt_tokens or len(r.prompt_ids or ())) > middle,
        ),
    }
    for symptom, (which, belongs) in groups.items():
        inside = [gap for request, gap in behind if belongs(request)]
        outside = [gap for request, gap in behind if not belongs(request)]
        lower = _lower(inside, outside)
        if lower is not None:
            yield Sign(symptom, f"Requests {which} fall {lower:.2f} further behind the reference than the others.")


def _shape(observations: Sequence[Observation], histogram: Sequence[int], right: Predicted) -> Iterator[Sign]:
    rounds = sum(histogram)
    steps = right.num_steps
    if rounds >= _ENOUGH_ROUNDS and steps >= 2:
        counts = np.pad(np.array(histogram), (0, max(0, steps + 1 - len(histogram))))
        joint = (1.0, *right.joint)
        middle = rounds * (joint[1] - joint[-1])
        if not counts[1:steps].sum() and counts[0] and counts[steps:].sum() and middle > _EXPECTED:
            yield Sign("all-or-nothing", f"No round of {rounds} accepted some of its drafts; {middle:.0f} should have.")
    for seen in observations:
        if isinstance(seen, Figures):
            yield from _figures_signs(seen, right)
    if rounds >= _ENOUGH_ROUNDS and not sum(histogram[1:]):
        yield Sign("dead", f"No draft was accepted in {rounds} rounds.")
    if rounds >= _ENOUGH_ROUNDS:
        at_least = np.array(histogram)[::-1].cumsum()[::-1]
        yield from _later_positions([float(n / at_least[0]) for n in at_least[1:]], right)


def _figures_signs(seen: Figures, right: Predicted) -> Iterator[Sign]:
    length = seen.length
    if length is not None and seen.least_rounds >= _ENOUGH_ROUNDS:
        if length.high < 1.006:
            yield Sign("dead", f"The length is {length.value:.2f}.")
        if length.low - right.length.mean > _STANDARD_ERRORS * right.length.sd(seen.least_rounds):
            yield Sign("above", f"The length is {length.value:.2f}, and should be {right.length.mean:.2f}.")
    yield from _later_positions([rate.value for rate in seen.rates], right)


def _later_positions(joint: Sequence[float], right: Predicted) -> Iterator[Sign]:
    if len(joint) < 2 or len(right.conditional) < 2 or not joint[0]:
        return
    first, second = joint[0] / right.conditional[0].mean, joint[1] / joint[0] / max(right.conditional[1].mean, 1e-9)
    if first > 0.9 and second < 0.5:
        yield Sign(
            "later-positions",
            f"The first draft is accepted in {joint[0]:.0%} of the rounds, as it should be, and the second in "
            f"{joint[1] / joint[0]:.0%} of those instead of {right.conditional[1].mean:.0%}.",
        )


def _lower(group: Sequence[float], others: Sequence[float]) -> float | None:
    """By how much one mean is lower than the other (Welch); None if it is not, beyond three standard errors."""
    if min(len(group), len(others)) < 3:
        return None
    difference = float(np.mean(others) - np.mean(group))
    error = math.sqrt(float(np.var(group, ddof=1)) / len(group) + float(np.var(others, ddof=1)) / len(others))
    return difference if difference > max(_STANDARD_ERRORS * error, 1e-9) else None
