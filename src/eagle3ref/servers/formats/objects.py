"""Figures in JSON: of servers' endpoints and of benchmarks' result files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from eagle3ref.servers.formats import endpoints, result_files
from eagle3ref.servers.formats.blocks import Statements
from eagle3ref.servers.formats.json_fields import Fields
from eagle3ref.servers.formats.unwrap import Line
from eagle3ref.servers.reading import NotAcceptance, Reading

_READERS: Sequence[Callable[[Fields, Line, str], Statements]] = (
    endpoints.read_columns,
    endpoints.read_exchange,
    endpoints.read_request,
    endpoints.read_server_info,
    endpoints.read_loads,
    endpoints.read_vllm_counters,
    endpoints.read_tensorrt_iteration,
    endpoints.read_llama_cpp,
    result_files.read_bench_speculative,
    result_files.read_specforge,
    result_files.read_vllm_bench,
    result_files.read_tensorrt_report,
    result_files.read_benchmark_summary,
)
_LOG_NAMES = ("log_lines", "log", "logs", "stdout", "stderr")
_DEEPEST = 12  # results nest a few levels deep; what nests deeper is no result


def read_object(value: Any, line: Line, source: str = "") -> Statements:
    """Every statement in one JSON value, however deep it stands.

    Args:
        value: as ``json.loads`` gives it.
        line: the line that the value begins on.
        source: the part of a larger value that this is.
    """
    return list(_statements(value, line, source, 0))


def _statements(value: Any, line: Line, source: str, depth: int) -> Iterator[Reading | NotAcceptance]:
    if depth > _DEEPEST:
        return
    if isinstance(value, Mapping):
        for reader in _READERS:
            found = reader(value, line, source)
            if found:
                yield from found
                return
        for name, inner in value.items():
            if isinstance(inner, Mapping | list):
                yield from _statements(inner, line, _deeper(source, str(name)), depth + 1)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, Mapping | list):
                yield from _statements(inner, line, source, depth + 1)


def lines_inside(value: Any) -> Iterator[str]:
    """Log lines that a file of a run's results keeps beside them, in a list under one of the usual names."""
    if not isinstance(value, Mapping):
        return
    for name in _LOG_NAMES:
        lines = value.get(name)
        if isinstance(lines, list):
            yield from (line for line in lines if isinstance(line, str))


def _deeper(source: str, name: str) -> str:
    """Names of the parts that tell one statement from another: a benchmark, or the half of a split server."""
    return source if name in ("metrics", "results", "data", "outputs", "responses", "answers") else name
