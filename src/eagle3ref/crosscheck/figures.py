"""The lengths that a server states without saying which requests they are of: lines, counters, benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3ref.config import TreeConfig
from eagle3ref.crosscheck.predict import LengthForm
from eagle3ref.engines import EngineProfile
from eagle3ref.servers import Evidence, Pooled, Reading, Rounded
from eagle3ref.servers.reading import Average, Scope

_PREFILL = "SGLang: prefill log"  # one for each batch of new requests
# How benchmarks call their number of requests.
_REQUESTS = ("successful requests", "completed", "number of questions", "questions", "requests")
_FEWEST_WINDOWS = 5  # from which their scatter says something
_SCOPES: tuple[Scope, ...] = ("run", "lifetime", "reference")  # strongest first; windows are pooled before them
_NAMES: dict[Scope, str] = {"run": "run", "lifetime": "lifetime", "reference": "value to compare with"}


@dataclass(frozen=True)
class Figure:
    """One length of the server.

    Args:
        of: what it is, in words.
        scope: over which rounds.
        tool: that printed it.
        length: in tokens per round.
        form: what it divides by what.
        average: pooled over rounds, or a mean over requests.
        rounds: behind it, the fewest that fit; None if unknown.
        rounds_how: where that number comes from.
        requests: behind it: prefill lines, a benchmark's summary, or requests of as many tokens; None if unknown.
        requests_how: what was counted.
        scatter: variance of the mean and degrees of freedom, from one line to the next; None with too few.
        length_how: what was done to get the length; "" if it stands there.
    """

    of: str
    scope: Scope
    tool: str
    length: Rounded
    form: LengthForm
    average: Average
    rounds: int | None
    rounds_how: str
    requests: int | None = None
    requests_how: str = ""
    scatter: tuple[float, int] | None = None
    length_how: str = ""


def figures_of(
    evidence: Evidence, tree: TreeConfig, profile: EngineProfile | None, *, leave_out: Sequence[Reading] = ()
) -> list[Figure]:
    """All but some, the strongest first: log lines together, then every run, lifetime and reference value."""
    figures = []
    pooled = evidence.pooled("window")
    if pooled is not None and pooled.length is not None:
        figures.append(_of_windows(evidence, pooled, pooled.length, profile))
    for scope, readings in zip(_SCOPES, (evidence.runs, evidence.lifetimes, evidence.references), strict=True):
        # In time order: the last one stays.
        newest = {(r.tool, r.format, r.source): r for r in readings if r not in leave_out}
        figures += [figure for r in newest.values() if (figure := _of_reading(evidence, r, scope, tree)) is not None]
    return figures


def _of_windows(evidence: Evidence, pooled: Pooled, length: Rounded, profile: EngineProfile | None) -> Figure:
    same = [window for window in evidence.windows if (window.tool, window.format) == (pooled.tool, pooled.format)]
    lengths = [one.value for window in same if (one := window.length_with_bonus) is not None]
    scatter = None
    if len(lengths) >= _FEWEST_WINDOWS:
        scatter = float(np.var(lengths, ddof=1)) / len(lengths), len(lengths) - 1
    prefills = evidence.not_acceptance.get(_PREFILL) if pooled.tool == "SGLang" else None
    return Figure(
        of=f"{pooled.count:,} line{'s' if pooled.count > 1 else ''}, {pooled.tool} {pooled.format}",
        scope="window",
        tool=pooled.tool,
        length=length,
        form=LengthForm(cut=bool(profile is not None and profile.cuts_last_round_in_log)),
        average=pooled.average,
        rounds=None if pooled.rounds is None else max(1, int(pooled.rounds.low)),
        rounds_how="not told" if pooled.rounds is None else pooled.rounds.how,
        requests=prefills or None,
        requests_how="prefills in the log",
        scatter=scatter,
        length_how="" if pooled.count == 1 or (pooled.rounds and pooled.rounds.is_counted) else pooled.length_how,
    )


def _of_reading(evidence: Evidence, reading: Reading, scope: Scope, tree: TreeConfig) -> Figure | None:
    found = _length(reading, tree)
    if found is None:
        return None
    length, form, how = found
    rounds, rounds_how = reading.rounds, "counted"
    if rounds is None and reading.completion_tokens and length.value > 0:
        rounds, rounds_how = int(reading.completion_tokens / length.high), "completion tokens / length"
    requests, requests_how = _requests_behind(reading, evidence)
    source = f", {reading.source}" if reading.source else ""
    return Figure(
        of=f"{_NAMES[scope]} of {reading.tool} {reading.format}{source}",
        scope=scope,
        tool=reading.tool,
        length=length,
        form=form,
        average=reading.average,
        rounds=rounds or None,
        rounds_how=rounds_how if rounds else "not told",
        requests=requests,
        requests_how=requests_how,
        length_how=how,
    )


def _requests_behind(reading: Reading, evidence: Evidence) -> tuple[int | None, str]:
    """A benchmark's own; a server's totals may have other traffic in them, unless the tokens add up."""
    stated = [reading.other[name] for name in _REQUESTS if name in reading.other]
    if reading.scope == "run" and stated and isinstance(stated[0], int | float) and stated[0] >= 1:
        return int(stated[0]), "requests of the benchmark"
    tokens = [request.completion_tokens or len(request.output_ids or ()) for request in evidence.requests]
    if tokens and reading.completion_tokens == sum(tokens):
        return len(tokens), "requests with as many tokens"
    return None, ""


def _length(reading: Reading, tree: TreeConfig) -> tuple[Rounded, LengthForm, str] | None:
    """The length that a reading states or implies, what it counts, and how it was come by."""
    length, stated = reading.length_with_bonus, reading.accept_length
    if length is not None:
        added = reading.length_kind == "without_bonus" and not (reading.rounds and reading.accepted_drafts is not None)
        return length, LengthForm(), "the bonus token, which it leaves out, was added: + 1.00" if added else ""
    # A lifetime's tokens have those of health probes in them.
    if stated is not None and stated.high >= 1 and reading.scope != "lifetime":
        return stated, LengthForm("completion_per_round"), ""
    if reading.accept_rate_at:
        ends = (sum(getattr(rate, end) for rate in reading.accept_rate_at) for end in ("value", "low", "high"))
        return Rounded(*(1 + total for total in ends)), LengthForm(), "1 + the sum of its rates by position"
    if reading.accept_rate is not None and reading.tool == "vLLM":
        drafts, rate = tree.num_draft_tokens - 1, reading.accept_rate
        ends = (1 + drafts * end for end in (rate.value, rate.low, rate.high))
        return Rounded(*ends), LengthForm(), f"1 + {drafts} drafts a round times its acceptance rate"
    return None
