"""``name: value`` line by line: what vLLM's examples, its and SGLang's ``bench_serve``, and SpecForge print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3ref.servers.formats.blocks import Statements
from eagle3ref.servers.formats.fields import first_value, integer, plain_name, rounded
from eagle3ref.servers.formats.unwrap import MAX_RAW, Line
from eagle3ref.servers.reading import LengthKind, Reading, Scope
from eagle3ref.servers.rounded import Rounded

# Plain names by meaning. A name that is unknown is passed over.
_MEANING: Mapping[str, str] = {
    **dict.fromkeys(("total num output tokens", "total output tokens"), "completion_tokens"),
    **dict.fromkeys(("num drafts", "number of draft proposals", "drafts"), "rounds"),
    **dict.fromkeys(("num draft tokens", "number of draft tokens generated", "draft tokens"), "proposed_drafts"),
    **dict.fromkeys(("num accepted tokens", "number of accepted tokens", "accepted tokens"), "accepted_drafts"),
    **dict.fromkeys(("num spec tokens", "num speculative tokens"), "num_steps"),
    **dict.fromkeys(("acceptance rate (%)", "draft acceptance rate (%)"), "rate in per cent"),
    **dict.fromkeys(("mean acceptance length", "mean acceptance len", "acceptance length"), "accept_length"),
    **dict.fromkeys(("acceptance length (benchmark)", "accept length", "average accept length"), "accept_length"),
}
# What these blocks say besides; kept by its name.
_BESIDES = frozenset(
    ("backend", "successful requests", "total generated tokens", "max request concurrency", "concurrency", "batch size")
    + ("output token throughput (tok/s)", "number of questions", "average latency", "average output throughput")
    + ("acceptance length (server)", "num tokens generated without sd", "seq normalized acceptance length")
    + ("batch (max num seqs)", "request throughput (req/s)", "benchmark duration (s)")
)
_THROUGHPUTS = ("output token throughput (tok/s)", "average output throughput")
_AT_DEPTH = re.compile(r"(?:acceptance (?:rate )?at token|accept@pos|position)\s*(\d+)$")
_IN_BRACKETS = re.compile(r"\(\s*(\d+)\s*\)")
_MORE_FIELDS = re.compile(r"[:=]|,\s")
_LOGGER = re.compile(r"^(?:\([^)]*\)\s*)?(?:(?:INFO|WARNING)\s[^\]]*\]\s*|\[[^\]]*\]\s+)")
_MAX_LENGTH = 160


@dataclass(frozen=True)
class _Origin:
    tool: str
    format: str
    scope: Scope
    length_kind: LengthKind = "with_bonus"
    remark: str = ""


_BENCH_SERVING = _Origin(
    "SGLang",
    "bench_serving",
    "lifetime",
    remark="The server's average since its start: warm-up and earlier traffic too.",
)
_SPECFORGE = _Origin("SpecForge", "benchmark print", "run", "completion_per_round")
_SGLANG_COUNTED = _Origin("SGLang", "bench_serving", "run")
_VLLM_BENCH = _Origin("vLLM", "bench serve", "run")
_VLLM_EXAMPLE = _Origin("vLLM", "offline print", "run")


class PrintedBlock:
    """Reads such blocks; a name that comes again begins the next one."""

    reach = 60

    def __init__(self) -> None:
        self.last_line = 0
        self._clear()

    def _clear(self) -> None:
        self._values: dict[str, str] = {}  # by plain name
        self._at: dict[int, tuple[Rounded, int | None]] = {}
        self._lines: list[Line] = []

    def feed(self, line: Line) -> Statements | None:
        """As ``BlockReader``."""
        if len(line.text) > _MAX_LENGTH:
            return None
        name, separator, rest = _without_logger(line.text).partition(":")
        value = first_value(rest) or rest.strip()
        is_alone = separator and not _MORE_FIELDS.search(rest)
        plain = plain_name(name) if is_alone else ""
        depth = _AT_DEPTH.match(plain)
        rate = rounded(value)
        if (plain not in _MEANING and plain not in _BESIDES and depth is None) or (plain in _MEANING and rate is None):
            return None
        ended = self.finish() if plain in self._values or (depth and int(depth[1]) in self._at) else []
        self.last_line = line.number
        self._lines.append(line)
        if depth is not None and rate is not None:
            self._at[int(depth[1])] = rate, integer(next(iter(_IN_BRACKETS.findall(rest)), None))
        elif depth is None:
            self._values[plain] = value
        return ended

    def finish(self) -> Statements:
        """As ``BlockReader``; a block without a figure of acceptance says nothing."""
        reading = self._reading()
        self.last_line = 0
        self._clear()
        return [] if reading is None else [reading]

    def _reading(self) -> Reading | None:
        named = {_MEANING[name]: value for name, value in self._values.items() if name in _MEANING}
        length, percent = rounded(named.get("accept_length")), rounded(named.get("rate in per cent"))
        counted = ("rounds", "proposed_drafts", "accepted_drafts")
        integers: dict[str, Any] = {name: integer(named.get(name)) for name in counted}
        if length is None and percent is None and (integers["rounds"] is None or integers["accepted_drafts"] is None):
            return None
        origin = self._origin()
        rates, by_depth = self._by_depth(origin)
        besides = {name: value for name, value in self._values.items() if name in _BESIDES}
        return Reading(
            tool=origin.tool,
            format=origin.format,
            scope=origin.scope,
            time=self._lines[0].time,
            source=self._lines[0].source,
            line=self._lines[0].number,
            raw="\n".join(line.text for line in self._lines)[:MAX_RAW],
            accept_length=length,
            length_kind=origin.length_kind,
            accept_rate=None if percent is None else _percent(percent),
            accept_rate_at=rates,
            accepted_drafts_at=by_depth,
            completion_tokens=integer(named.get("completion_tokens")),
            num_steps=integer(named.get("num_steps")),
            **{**integers, "accepted_drafts": integers["accepted_drafts"] or (sum(by_depth) if by_depth else None)},
            gen_throughput=next((rounded(besides[name]) for name in _THROUGHPUTS if name in besides), None),
            other={name: _number(value) for name, value in besides.items()},
            remarks=(origin.remark,) if origin.remark else (),
        )

    def _origin(self) -> _Origin:
        names = self._values
        if "acceptance length (server)" in names:
            return _SGLANG_COUNTED
        if "average accept length" in names:
            return _SPECFORGE
        if "accept length" in names:
            return _BENCH_SERVING
        return _VLLM_BENCH if "acceptance rate (%)" in names else _VLLM_EXAMPLE

    def _by_depth(self, origin: _Origin) -> tuple[tuple[Rounded, ...], tuple[int, ...]]:
        """Rates and counts by depth; vLLM's first example also printed depth 0, which is always 1."""
        in_percent = origin is _VLLM_BENCH
        depths = range(max(self._at, default=-1) + 1)
        if not depths or any(depth not in self._at for depth in depths):
            return (), ()
        rates = tuple(_percent(self._at[depth][0]) if in_percent else self._at[depth][0] for depth in depths)
        counted = tuple(number for number in (self._at[depth][1] for depth in depths) if number is not None)
        return rates, counted if len(counted) == len(rates) else ()


def _without_logger(text: str) -> str:
    return _LOGGER.sub("", text, count=1).strip().strip("|").strip()


def _percent(number: Rounded) -> Rounded:
    return Rounded(number.value / 100, number.low / 100, number.high / 100)


def _number(text: str) -> float | str:
    number = rounded(text)
    return text if number is None else number.value
