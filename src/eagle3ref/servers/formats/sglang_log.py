"""SGLang's log: decode lines of every era, and the lines around them. tokenspeed prints the same figures."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from eagle3ref.servers.formats.fields import NUMBER, first_value, integer, named_values, plain_value, rounded
from eagle3ref.servers.formats.request_fields import request_reading
from eagle3ref.servers.formats.unwrap import Line
from eagle3ref.servers.reading import NotAcceptance, Reading

# The two figures as people quote them, with a colon or without.
_LENGTH = re.compile(rf"\baccept(?:ance)?[ _-]len(?:gth)?\b\s*[:=]?\s*({NUMBER})", re.IGNORECASE)
_RATE = re.compile(rf"\baccept(?:ance)?[ _-]rate\b\s*[:=]?\s*({NUMBER}\s*%?)", re.IGNORECASE)
_LONGEST_QUOTE = 400
_QUOTED = re.compile(r"(?:avg[ _])?accept", re.IGNORECASE)
_COUNT = re.compile(r"#([\w-]+): ([\d,]*\d)")  # prefills outnumber all other lines: only their counts are read
_ITERATION = re.compile(r"batch \[(\d+)\]")
_REQUEST_STATS = re.compile(r"Req(?:uest)? Time Stats\((.*?)\)?(?::|$)")
_MISMATCH = re.compile(r"length of (\w+): (\d+) != length of (\w+): (\d+)")
_EVAL_SUMMARY = re.compile(rf"n=(\d+) mean=({NUMBER})")
_LENGTH_NAMES = ("accept len", "avg accept len", "accept length", "avg accept length")


def read_decode(line: Line) -> Reading | NotAcceptance | None:
    """``Decode batch, … accept len: 2.50, accept rate: 0.16, …``, or these figures as someone quoted them."""
    text = line.text
    _, mark, after = text.partition("Decode batch")
    is_decode = bool(mark)
    quoted = None if is_decode else _QUOTED.search(text)
    if quoted is not None and (len(text) > _LONGEST_QUOTE or "obj=" in text):
        return None  # a request that is logged with its text, whatever it speaks of
    fields = named_values(after if quoted is None else text[quoted.start() :])
    is_cut = is_decode and not any(name.startswith("gen throughput") for name in fields)
    if is_cut:
        _drop_cut_number(text, fields)
    length = _take(fields, _LENGTH_NAMES) or _quoted(_LENGTH, text, is_decode)
    printed = rounded(length)
    if printed is None or printed.value == 0:  # 0.00: no round since the line before
        return _without_figures(line, fields, is_cut) if is_decode else None
    graph = next((fields.pop(name) for name in tuple(fields) if name.endswith(" graph")), None)
    return Reading(
        tool="tokenspeed" if "avg_accept_len" in text else "SGLang",
        format="decode log",
        scope="window",
        time=line.time,
        source=line.source,
        line=line.number,
        raw=line.raw,
        accept_length=printed,
        accept_rate=rounded(_take(fields, ("accept rate", "avg accept rate")) or _quoted(_RATE, text, is_decode)),
        gen_throughput=rounded(_take(fields, [name for name in fields if name.startswith("gen throughput")])),
        running_requests=integer(_take(fields, ("running req",))),
        cached_tokens=integer(_take(fields, ("cached token",))),
        cuda_graph=None if graph is None else graph.lower() == "true",
        other={**_iteration(text), **_plain(fields)},
        remarks=("The line is cut: further fields are lost.",) if is_cut else (),
    )


def read_prefill(line: Line) -> NotAcceptance:
    """``Prefill batch, …``: its ``#cached-token`` explains drops of acceptance."""
    fields = {name.replace("-", " "): integer(value) for name, value in _COUNT.findall(line.text)}
    return NotAcceptance("SGLang", "prefill log", line.number, line.raw, fields)


def read_request_timing(line: Line) -> NotAcceptance | None:
    """``Req Time Stats(rid=…, input len=…, …)``."""
    match = _REQUEST_STATS.search(line.text)
    if match is None:
        return None
    fields = {"rid": match[1].partition("rid=")[2].partition(",")[0], **_plain(named_values(match[1]))}
    return NotAcceptance("SGLang", "request timing", line.number, line.raw, fields)


def read_warning(line: Line) -> NotAcceptance | None:
    """What SGLang warns of when a tree or a batch of drafts has gone wrong."""
    if "invalid eagle tree" in line.text:
        return NotAcceptance("SGLang", "invalid tree warning", line.number, line.raw)
    match = _MISMATCH.search(line.text)
    if match is None:
        return None
    fields = {match[1]: int(match[2]), match[3]: int(match[4])}
    return NotAcceptance("SGLang", "draft batch mismatch warning", line.number, line.raw, fields)


def read_finished_request(line: Line) -> Reading | None:
    """``Finish: obj=GenerateReqInput(…), out={'meta_info': …}`` of ``--log-requests``: a Python repr."""
    answer = _python_value(line.text[line.text.find("out=") + len("out=") :])
    if not isinstance(answer, Mapping):
        return None
    return request_reading(answer, tool="SGLang", format="request log", line=line)


def read_benchmark(line: Line) -> Reading | None:
    """``#questions: 80, Throughput: 224.70 token/s, Acceptance length: 3.75`` of ``bench_sglang_eagle.py``."""
    fields = named_values(line.text)
    length = rounded(fields.get("acceptance length"))
    if length is None:
        return None
    return Reading(
        tool="SGLang",
        format="bench_sglang_eagle",
        scope="run",
        time=line.time,
        line=line.number,
        raw=line.raw,
        accept_length=length,
        length_kind="completion_per_round",
        gen_throughput=rounded(fields.get("throughput")),
        other={"questions": integer(fields.get("questions"))},
    )


def read_test_print(line: Line) -> Reading | None:
    """``avg_spec_accept_length=2.37``, and ``Speculative accept length (per-request, …): n=… mean=…`` of its tests."""
    summary = _EVAL_SUMMARY.search(line.text) if "per-request" in line.text else None
    if summary is not None:
        return Reading(
            tool="SGLang",
            format="run_eval",
            scope="run",
            average="requests",
            line=line.number,
            raw=line.raw,
            accept_length=rounded(summary[2]),
            length_kind="completion_per_round",
            other={"requests": int(summary[1])},
        )
    value = rounded(first_value(line.text.partition("avg_spec_accept_length")[2]))
    if value is None:
        return None
    return Reading(
        tool="SGLang",
        format="avg_spec_accept_length",
        scope="lifetime",
        time=line.time,
        line=line.number,
        raw=line.raw,
        accept_length=value,
    )


def _without_figures(line: Line, fields: Mapping[str, str], is_cut: bool) -> NotAcceptance:
    what = "decode log, cut before its figures" if is_cut else "decode log without speculation"
    return NotAcceptance("SGLang", what, line.number, line.raw, _plain(fields))


def _drop_cut_number(text: str, fields: dict[str, str]) -> None:
    """The last number of a cut line may have lost digits."""
    last = next(reversed(fields), None)
    if last is not None and text.rstrip(" .").endswith(fields[last]):
        del fields[last]


def _quoted(pattern: re.Pattern[str], text: str, is_decode: bool) -> str | None:
    match = None if is_decode else pattern.search(text)
    return None if match is None else match[1]


def _take(fields: dict[str, str], names: list[str] | tuple[str, ...]) -> str | None:
    return next((fields.pop(name) for name in names if name in fields), None)


def _iteration(text: str) -> dict[str, int]:
    match = _ITERATION.search(text)
    return {} if match is None else {"iteration": int(match[1])}


def _plain(fields: Mapping[str, str]) -> dict[str, Any]:
    """Values as numbers and truth values."""
    return {name: plain_value(text) for name, text in fields.items()}


def _python_value(text: str) -> Any:
    """The first literal of a text, without what follows it; None if there is none."""
    depth = 0
    for end, character in enumerate(text, start=1):
        depth += (character in "{[(") - (character in "}])")
        if depth == 0:
            try:
                return ast.literal_eval(text[:end])
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                return None
    return None
