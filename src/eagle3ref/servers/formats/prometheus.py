"""Prometheus pages of SGLang and vLLM."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers.formats.blocks import Statements
from eagle3ref.servers.formats.fields import figure
from eagle3ref.servers.formats.unwrap import MAX_RAW, Line
from eagle3ref.servers.reading import NotAcceptance, Reading
from eagle3ref.servers.rounded import Rounded

_PAGE_LINE = re.compile(r"^(?:# (?:HELP|TYPE) )?(?:vllm|sglang):[\w:]+")
_OTHER_METRIC = re.compile(r"^(?:# (?:HELP|TYPE) \S|[A-Za-z_:][\w:]*(?:\{.*\})? [-+.\deE]+(?: \d+)?$)")
_VLLM_COUNTERS: Mapping[str, str] = {
    "vllm:spec_decode_num_drafts": "rounds",
    "vllm:spec_decode_num_draft_tokens": "proposed_drafts",
    "vllm:spec_decode_num_accepted_tokens": "accepted_drafts",
}
_SGLANG_COUNTERS = ("sglang:spec_verify_calls", "sglang:generation_tokens")
_HEALTH_REMARK = "Tokens of prefills and of GET /health are among those counted."
_VLLM_BY_DEPTH = "vllm:spec_decode_num_accepted_tokens_per_pos"


@dataclass(frozen=True)
class _Sample:
    name: str  # without _total
    labels: Mapping[str, str]
    value: float

    @property
    def series(self) -> tuple[str, frozenset[tuple[str, str]]]:
        return self.name, frozenset(self.labels.items())


def read_metrics(text: str, *, time: datetime | None = None) -> list[Reading | NotAcceptance]:
    """What one page of ``/metrics`` says.

    vLLM's counters give one lifetime reading, the sum over all engines; SGLang's gauges one window for each rank, and
    its counters of finished requests a lifetime reading.

    Args:
        text: the page.
        time: of the scrape.

    Raises:
        Eagle3RefError: prometheus_client is not installed.
    """
    page = MetricsPage(time)
    found: Statements = []
    for number, line in enumerate(text.splitlines(), start=1):
        found += page.feed(Line(number, line)) or []
    return found + page.finish()


class MetricsPage:
    """Collects a page line by line; a series that comes again begins the next page."""

    reach = 40

    def __init__(self, time: datetime | None = None) -> None:
        self.last_line = 0
        self._time = time
        self._clear()

    def _clear(self) -> None:
        self._samples: dict[tuple[str, frozenset[tuple[str, str]]], _Sample] = {}
        self._lines: list[Line] = []
        self._timestamps = self._unreadable = 0

    def feed(self, line: Line) -> Statements | None:
        """As ``BlockReader``.

        Raises:
            Eagle3RefError: prometheus_client is not installed.
        """
        if _PAGE_LINE.match(line.text) is None:
            if self.last_line and _OTHER_METRIC.match(line.text):
                self.last_line = line.number  # the page goes on
                return []
            return None
        sample = None if line.text.startswith("#") else self._sample(line.text)
        ended = self.finish() if sample is not None and sample.series in self._samples else []
        if sample is not None:
            self._samples[sample.series] = sample
        if sample is not None or not self._lines:
            self._lines.append(line)
        self.last_line = line.number
        return ended

    def _sample(self, text: str) -> _Sample | None:
        samples = _parsed(text)
        if samples is None:
            self._unreadable += 1
            return None
        (sample,) = samples
        if sample.name.endswith("_created"):
            self._timestamps += 1
            return None
        is_counter = sample.name in _VLLM_COUNTERS or sample.name in (_VLLM_BY_DEPTH, *_SGLANG_COUNTERS)
        if not math.isfinite(sample.value) or (is_counter and not (sample.value >= 0 and sample.value.is_integer())):
            self._unreadable += is_counter
            return None
        return sample

    def finish(self) -> Statements:
        """As ``BlockReader``."""
        samples, lines, timestamps, unreadable = (
            list(self._samples.values()),
            self._lines,
            self._timestamps,
            self._unreadable,
        )
        self._clear()
        self.last_line = 0
        if not lines:
            return []
        at: dict[str, Any] = {"time": self._time or lines[0].time, "line": lines[0].number}
        at["raw"] = "\n".join(line.text for line in lines if "spec" in line.text)[:MAX_RAW]
        at["remarks"] = (f"Lines of the page that could not be read: {unreadable}.",) if unreadable else ()
        found = [*_vllm(samples, at), *_sglang_gauges(samples, at), *_sglang_counters(samples, at)]
        if found:
            return found
        what = "timestamp metric" if timestamps and not samples else "metrics without speculation"
        what = "metrics that could not be read" if unreadable else what
        tool = "vLLM" if lines[0].text.lstrip("# HELPTY").startswith("vllm") else "SGLang"
        return [NotAcceptance(tool, what, lines[0].number, lines[0].raw)]


def _parsed(text: str) -> list[_Sample] | None:
    """The one sample of a line; None if it cannot be read."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise Eagle3RefError(
            "reading Prometheus metrics",
            found="no package prometheus_client",
            expected="it, to read them",
            action="Install eagle3ref[servers].",
        ) from error
    try:
        families = list(text_string_to_metric_families(f"{text}\n"))
    except (ValueError, KeyError, IndexError):
        return None
    samples = [sample for family in families for sample in family.samples]
    if len(samples) != 1:
        return None
    (sample,) = samples
    return [_Sample(sample.name.removesuffix("_total"), sample.labels, float(sample.value))]


def _vllm(samples: Iterable[_Sample], at: Mapping[str, Any]) -> Statements:
    totals: dict[str, float] = defaultdict(float)
    by_depth: dict[int, float] = defaultdict(float)
    engines: set[str] = set()
    for sample in samples:
        meaning = _VLLM_COUNTERS.get(sample.name)
        if meaning is not None:
            totals[meaning] += sample.value
        elif sample.name == _VLLM_BY_DEPTH and sample.labels.get("position", "").isdecimal():
            by_depth[int(sample.labels["position"])] += sample.value
        elif sample.name in ("vllm:generation_tokens", "vllm:prompt_tokens"):
            totals[sample.name] += sample.value
            continue
        else:
            continue
        engines.add(sample.labels.get("engine", ""))
    if not engines:
        return []
    depths = range(max(by_depth, default=-1) + 1)
    is_whole = bool(by_depth) and all(depth in by_depth for depth in depths)
    numbers: dict[str, Any] = {name: int(totals[name]) if name in totals else None for name in _VLLM_COUNTERS.values()}
    reading = Reading(
        tool="vLLM",
        format="/metrics",
        scope="lifetime",
        **at,
        source="" if len(engines) == 1 else f"{len(engines)} engines",
        **numbers,
        accepted_drafts_at=tuple(int(by_depth[depth]) for depth in depths) if is_whole else (),
        completion_tokens=int(totals["vllm:generation_tokens"]) if "vllm:generation_tokens" in totals else None,
        prompt_tokens=int(totals["vllm:prompt_tokens"]) if "vllm:prompt_tokens" in totals else None,
        num_steps=len(depths) if is_whole else _whole(numbers["proposed_drafts"], numbers["rounds"]),
        other={}
        if is_whole
        else {f"accepted at position {depth}": int(value) for depth, value in sorted(by_depth.items())},
    )
    return [reading]


def _sglang_gauges(samples: Iterable[_Sample], at: Mapping[str, Any]) -> Statements:
    by_rank: dict[str, dict[str, float]] = defaultdict(dict)
    for sample in samples:
        if sample.name.startswith("sglang:"):
            by_rank[_rank(sample.labels)][sample.name.removeprefix("sglang:")] = sample.value
    several = sum("spec_accept_length" in values for values in by_rank.values()) > 1
    found: Statements = []
    for rank, values in by_rank.items():
        length = values.get("spec_accept_length")
        if not length:  # 0 until the first log line
            continue
        rate, running = values.get("spec_accept_rate"), values.get("num_running_reqs")
        reading = Reading(
            tool="SGLang",
            format="/metrics gauge",
            scope="window",
            **at,
            source=rank if several else "",
            accept_length=figure(length),
            accept_rate=figure(rate),
            num_steps=int(values.get("spec_num_steps", 0)) or None,
            num_draft_tokens=int(values.get("spec_num_draft_tokens", 0)) or None,
            running_requests=None if running is None else int(running),
        )
        found.append(reading)
    return found


def _sglang_counters(samples: Iterable[_Sample], at: Mapping[str, Any]) -> Statements:
    totals: dict[str, float] = defaultdict(float)
    for sample in samples:
        totals[sample.name] += sample.value
    rounds, tokens = (int(totals[name]) for name in _SGLANG_COUNTERS)
    if not rounds:
        return []
    reading = Reading(
        tool="SGLang",
        format="/metrics counters",
        scope="lifetime",
        **{**at, "remarks": (*at["remarks"], _HEALTH_REMARK)},
        accept_length=Rounded.exactly(tokens / rounds) if tokens else None,
        length_kind="completion_per_round",
        rounds=rounds,
        completion_tokens=tokens or None,
    )
    return [reading]


def _rank(labels: Mapping[str, str]) -> str:
    kinds = {"dp_rank": "DP", "pp_rank": "PP", "tp_rank": "TP"}
    return " ".join(f"{short}{labels[label]}" for label, short in kinds.items() if labels.get(label, "").isdecimal())


def _whole(numerator: int | None, denominator: int | None) -> int | None:
    return numerator // denominator if numerator and denominator and numerator % denominator == 0 else None
