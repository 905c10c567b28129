"""Two pieces of evidence side by side: before and after, cache on and off, one version and another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3ref.diagnose.moments import Predicted
from eagle3ref.servers import Evidence, Reading

_CONFIDENT = 2.576  # standard errors: 99 % two-sided


@dataclass(frozen=True)
class Against:
    """What a second piece of evidence says of the first.

    Args:
        difference: acceptance length of the other minus that of the evidence, in tokens per round.
        half_width: of its 99 % interval; None where one of them does not say over how many rounds it is.
        fits_right: whether the other is as it should be.
        changed: what the two logs themselves show to be different, one sentence each.
        sentence: what follows.
    """

    difference: float
    half_width: float | None
    fits_right: bool
    changed: tuple[str, ...]
    sentence: str

    @property
    def differs(self) -> bool:
        """Whether the two are known to differ at all."""
        return self.half_width is not None and abs(self.difference) > self.half_width


def hold_against(evidence: Evidence, other: Evidence, right: Predicted, *, other_fits_right: bool) -> Against | None:
    """Compare two servers, or one server at two times; None if one of them has no acceptance length.

    Args:
        evidence: that is to be explained.
        other: a second log, taken with one thing changed.
        right: what both should show.
        other_fits_right: whether the right wiring explains the other.
    """
    mine, its = evidence.best, other.best
    if mine is None or its is None or mine.length is None or its.length is None:
        return None
    difference = its.length.value - mine.length.value
    slack = sum((length.high - length.low) / 2 for length in (mine.length, its.length))
    changed = _changed(evidence.readings, other.readings)
    result = f"{its.length.value:.2f} there and {mine.length.value:.2f} here: {difference:+.2f}"
    if mine.rounds is None or its.rounds is None:
        sentence = f"{result}. Over how many rounds is not told, so it may be chance."
        return Against(difference, None, other_fits_right, changed, sentence)
    rounds = [max(1.0, one.rounds.value) for one in (mine, its) if one.rounds is not None]
    half_width = _CONFIDENT * math.sqrt(sum(right.length.trial_variance / n for n in rounds)) + slack
    result += f" ± {half_width:.2f}"
    if abs(difference) <= half_width:
        sentence = f"No difference is shown, {result}: what was changed is not the cause, or needs more rounds."
    elif other_fits_right:
        sentence = f"{result}, and the other is as it should be: what was changed between the two is the cause."
    else:
        sentence = f"{result}, and the other is not as it should be either: what was changed is not the whole cause."
    return Against(difference, half_width, other_fits_right, changed, sentence)


def _changed(mine: Sequence[Reading], its: Sequence[Reading]) -> tuple[str, ...]:
    found = []
    for what, one, other in (
        ("CUDA graphs", _graphs(mine), _graphs(its)),
        ("Prompt tokens from the cache", _cached(mine), _cached(its)),
        ("Requests at a time", _running(mine), _running(its)),
    ):
        if one and other and one != other:
            found.append(f"{what}: {one} here, {other} there.")
    return tuple(found)


def _graphs(readings: Sequence[Reading]) -> str:
    modes = {reading.cuda_graph for reading in readings} - {None}
    return "".join("on" if mode else "off" for mode in modes) if len(modes) == 1 else ""


def _cached(readings: Sequence[Reading]) -> str:
    counts = [reading.cached_tokens for reading in readings if reading.cached_tokens is not None]
    return ("some" if any(counts) else "none") if counts else ""


def _running(readings: Sequence[Reading]) -> str:
    counts = [reading.running_requests for reading in readings if reading.running_requests]
    return ("one" if max(counts) == 1 else "several") if counts else ""
