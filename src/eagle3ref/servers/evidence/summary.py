"""What a person wants to know first of everything that was read: what each figure counts, and what it does not say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from eagle3ref.servers.evidence.evidence import Evidence
from eagle3ref.servers.evidence.pooled import Pooled, pool
from eagle3ref.servers.evidence.stated_rate import rate_with
from eagle3ref.servers.evidence.trend import Trend, TrendBy
from eagle3ref.servers.formats.unwrap import NO_YEAR
from eagle3ref.servers.rate.reading import RateInference
from eagle3ref.servers.reading import LENGTH_MEANING, SCOPE_MEANING, LengthKind, Reading, Scope
from eagle3ref.servers.rounded import Rounded

AS_THEY_ARE: tuple[Scope, ...] = ("lifetime", "reference")  # such readings are not pooled: each stands for itself
_TRENDS: tuple[TrendBy, ...] = ("time", "running_requests", "cached_tokens", "prompt_tokens")
_TREND_FIELDS = ("by", "slope", "low", "high", "unit", "points", "span", "direction", "change")
_NEXT: dict[Scope, str] = {
    "request": "With the token ids of the answers, eagle3ref crosscheck compares them round by round.",
    "run": "eagle3ref crosscheck compares it with a replay of the same prompts.",
    "window": "A log compares with the same workload only: eagle3ref crosscheck TRACE DRAFT LOG.",
    "lifetime": "Flush the server, or scrape twice: the warm-up and earlier traffic are in a lifetime average.",
    "reference": "A value to compare with, of another workload: eagle3ref replay gives the draft's own on yours.",
}


@dataclass(frozen=True)
class Group:
    """Readings of one tool, format, scope and kind of mean.

    Args:
        tool: who printed them.
        format: which of its formats.
        scope: over which rounds.
        count: readings.
        first: time of the first of them; None if they have none, or no year.
        last: time of the last.
        sources: ranks, engines or benchmarks.
        length_kind: what their length counts.
        least: the least printed length.
        most: the most.
        pooled: all of them as one; None of lifetime totals and references.
        rates: the least and the most printed rate.
        remarks: of the readings, with how many have each.
    """

    tool: str
    format: str
    scope: Scope
    count: int
    first: datetime | None
    last: datetime | None
    sources: tuple[str, ...]
    length_kind: LengthKind
    least: Rounded | None
    most: Rounded | None
    pooled: Pooled | None
    rates: tuple[Rounded, Rounded] | None
    remarks: tuple[tuple[str, int], ...]

    @property
    def meaning(self) -> str:
        """What the length counts, over what."""
        over = f"over {SCOPE_MEANING[self.scope]}"
        mean = ", a mean over requests" if self.pooled is not None and self.pooled.average == "requests" else ""
        return f"{LENGTH_MEANING[self.length_kind]}; {over}{mean}"


@dataclass(frozen=True)
class Summary:
    """What was read, in the order in which it answers questions.

    Args:
        groups: the readings by format.
        best: the strongest that determines a length.
        rate: what the accept rates of the log divide by what; None if there are none.
        trends: changes of the length that the readings show.
        no_graph_share: of the log lines that tell, how many ran without a CUDA graph; None if none tells.
        not_acceptance: other lines by kind.
        warnings: the server's own warnings by kind.
        remarks: what was dropped and why.
        next_steps: what to do with it.
    """

    groups: tuple[Group, ...]
    best: Pooled | None
    rate: RateInference | None
    trends: tuple[Trend, ...]
    no_graph_share: float | None
    not_acceptance: dict[str, int]
    warnings: tuple[str, ...]
    remarks: tuple[str, ...]
    next_steps: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "groups": [_group_dict(group) for group in self.groups],
            "best": None if self.best is None else _pooled_dict(self.best),
            "rate": None if self.rate is None else _rate_dict(self.rate),
            "trends": [{name: getattr(trend, name) for name in _TREND_FIELDS} for trend in self.trends],
            "no_graph_share": self.no_graph_share,
            "not_acceptance": self.not_acceptance,
            "warnings": list(self.warnings),
            "remarks": list(self.remarks),
        }


def summarize(
    evidence: Evidence,
    *,
    num_draft_tokens: int | None = None,
    num_steps: int | None = None,
    engine: str | None = None,
) -> Summary:
    """The summary of what was read.

    Args:
        evidence: what was read.
        num_draft_tokens: of the server, for its accept rate; the root counted.
        num_steps: likewise.
        engine: as ``infer_rate`` takes it.

    Raises:
        Eagle3RefError: an engine that is not known, or settings that no tree has.
    """
    groups = _groups(evidence)
    trends = (evidence.trend(by) for by in _TRENDS)
    graphs = [reading.cuda_graph for reading in evidence.windows if reading.cuda_graph is not None]
    warned = Counter(f"{warning.tool}: {warning.what}" for warning in evidence.warnings)
    return Summary(
        groups=groups,
        best=evidence.best,
        rate=rate_with(evidence, num_draft_tokens, num_steps, engine),
        trends=tuple(trend for trend in trends if trend is not None and trend.direction != "none shown"),
        no_graph_share=graphs.count(False) / len(graphs) if graphs else None,
        not_acceptance=dict(evidence.not_acceptance),
        warnings=tuple(what if number == 1 else f"{what}, {number:,} times" for what, number in warned.items()),
        remarks=evidence.remarks,
        next_steps=tuple(_NEXT[scope] for scope in _NEXT if any(group.scope == scope for group in groups)),
    )


def _groups(evidence: Evidence) -> tuple[Group, ...]:
    by_kind: dict[tuple[str, str, str, str], list[Reading]] = {}
    for reading in evidence.readings:
        by_kind.setdefault((reading.tool, reading.format, reading.scope, reading.average), []).append(reading)
    return tuple(map(_group, by_kind.values()))


def _group(readings: Sequence[Reading]) -> Group:
    first = readings[0]
    times = [reading.time for reading in readings if reading.time is not None and reading.time.year != NO_YEAR]
    lengths = [reading.accept_length for reading in readings if reading.accept_length is not None]
    lengths = lengths or [length for r in readings if (length := r.length_with_bonus) is not None]
    rates = [reading.accept_rate for reading in readings if reading.accept_rate is not None]
    return Group(
        tool=first.tool,
        format=first.format,
        scope=first.scope,
        count=len(readings),
        first=min(times, default=None),
        last=max(times, default=None),
        sources=tuple(sorted({reading.source for reading in readings if reading.source})),
        length_kind=first.length_kind if first.accept_length is not None else "with_bonus",
        least=min(lengths, key=_value, default=None),
        most=max(lengths, key=_value, default=None),
        pooled=None if first.scope in AS_THEY_ARE and len(readings) > 1 else pool(readings),
        rates=(min(rates, key=_value), max(rates, key=_value)) if rates else None,
        remarks=tuple(Counter(remark for reading in readings for remark in reading.remarks).most_common(6)),
    )


def _value(number: Rounded) -> float:
    return number.value


def _rounded_dict(number: Rounded | None) -> dict[str, float] | None:
    return None if number is None else {"value": number.value, "low": number.low, "high": number.high}


def _pooled_dict(pooled: Pooled) -> dict[str, Any]:
    rounds = pooled.rounds
    return {
        **{name: getattr(pooled, name) for name in ("tool", "format", "scope", "average", "count", "length_how")},
        "length": _rounded_dict(pooled.length),
        "rounds": None if rounds is None else {**vars(rounds)},
        "accepted_drafts": pooled.accepted_drafts,
        "histogram": list(pooled.histogram),
        "accept_rate_at": [_rounded_dict(rate) for rate in pooled.accept_rate_at],
        "remarks": list(pooled.remarks),
    }


def _group_dict(group: Group) -> dict[str, Any]:
    return {
        **{name: getattr(group, name) for name in ("tool", "format", "scope", "count", "length_kind", "meaning")},
        "first": None if group.first is None else group.first.isoformat(),
        "last": None if group.last is None else group.last.isoformat(),
        "sources": list(group.sources),
        "least": _rounded_dict(group.least),
        "most": _rounded_dict(group.most),
        "rates": None if group.rates is None else [_rounded_dict(rate) for rate in group.rates],
        "pooled": None if group.pooled is None else _pooled_dict(group.pooled),
        "remarks": dict(group.remarks),
    }


def _rate_dict(rate: RateInference) -> dict[str, Any]:
    return {
        "verdict": rate.verdict,
        "sentence": rate.sentence,
        "lines": rate.lines,
        "misfits": rate.misfits,
        "remarks": list(rate.remarks),
        "readings": [
            {
                "formula": reading.formula.name,
                "where": reading.formula.where,
                "divisors": list(reading.divisors),
                "num_draft_tokens": list(reading.num_draft_tokens),
                "num_steps": list(reading.num_steps),
                "strict_rate": _rounded_dict(reading.strict_rate),
                "possible_then": reading.possible_then,
            }
            for reading in rate.readings
        ],
    }
