"""TensorRT-LLM's prints: the benchmark's block, the example's line, the reference lengths of its tests."""

from __future__ import annotations

import re

from eagle3ref.servers.formats.blocks import Statements
from eagle3ref.servers.formats.fields import NUMBER, rounded
from eagle3ref.servers.formats.unwrap import Line
from eagle3ref.servers.reading import Reading

_EXAMPLE = re.compile(rf"\[(\d+)\] Accept rate: ({NUMBER}) \(tokens=(\d+), iterations=(\d+)\)")
_STATISTIC = re.compile(rf"\[(A[RL])\]\s+(MINIMUM|MAXIMUM|AVERAGE|P\d+)\s*:\s*({NUMBER})")
_BATCH_SIZE = re.compile(r"^\s*Batch Size:\s*(\d+)\s*$")
_ENTRY = re.compile(r"^([\w.]+::\S+):\s*$")
_ENTRY_VALUE = re.compile(rf"^\s+(ref_al|min_al):\s*({NUMBER})\s*$")
# Below this a draft is as good as dead, and no reference to compare with.
DEAD_LENGTH = 1.1


def read_example(line: Line) -> Reading | None:
    """``[0] Accept rate: 2.99 (tokens=299, iterations=100)`` of ``quickstart_advanced.py``."""
    match = _EXAMPLE.search(line.text)
    if match is None:
        return None
    return Reading(
        tool="TensorRT-LLM",
        format="quickstart print",
        scope="request",
        line=line.number,
        raw=line.raw,
        accept_length=rounded(match[2]),
        length_kind="completion_per_round",
        completion_tokens=int(match[3]),
        rounds=int(match[4]),
        request_id=match[1],
        remarks=("It is called a rate and is a length: tokens / iterations.",),
    )


class BenchBlock:
    """``[AR] AVERAGE: 2.62`` and its siblings of ``trtllm-bench``; later versions write ``[AL]``."""

    reach = 30

    def __init__(self) -> None:
        self.last_line = 0
        self._statistics: dict[str, str] = {}
        self._lines: list[Line] = []
        self._batch_size: int | None = None

    def feed(self, line: Line) -> Statements | None:
        """As ``BlockReader``."""
        size = _BATCH_SIZE.match(line.text)
        if size is not None:
            self._batch_size = int(size[1])
            return None  # other tools print it too
        match = _STATISTIC.search(line.text)
        if match is None:
            return None
        ended = self.finish(keep_batch_size=True) if match[2] in self._statistics else []
        self._statistics[match[2]] = match[3]
        self._lines.append(line)
        self.last_line = line.number
        return ended

    def finish(self, keep_batch_size: bool = False) -> Statements:
        """As ``BlockReader``."""
        statistics, lines, batch_size = self._statistics, self._lines, self._batch_size
        self._statistics, self._lines, self.last_line = {}, [], 0
        self._batch_size = batch_size if keep_batch_size else None
        if "AVERAGE" not in statistics:
            return []
        reading = Reading(
            tool="TensorRT-LLM",
            format="trtllm-bench",
            scope="run",
            average="requests",
            line=lines[0].number,
            raw="\n".join(line.raw for line in lines),
            accept_length=rounded(statistics["AVERAGE"]),
            length_kind="completion_per_round",
            other={
                **({} if batch_size is None else {"batch size": batch_size}),
                **{name.lower(): float(value) for name, value in statistics.items()},
            },
            remarks=("A mean over requests of tokens / iterations, whether it is called rate [AR] or length [AL].",),
        )
        return [reading]


class ReferenceBlock:
    """``acceptance_length.yaml`` of its tests: a name, ``ref_al``, ``min_al``."""

    reach = 5

    def __init__(self) -> None:
        self.last_line = 0
        self._name = ""
        self._values: dict[str, str] = {}
        self._lines: list[Line] = []

    def feed(self, line: Line) -> Statements | None:
        """As ``BlockReader``."""
        entry = _ENTRY.match(line.text)
        if entry is not None:
            ended = self.finish()
            self._name, self._lines, self.last_line = entry[1], [line], line.number
            return ended
        value = _ENTRY_VALUE.match(line.text) if self._name else None
        if value is None:
            return None
        self._values[value[1]] = value[2]
        self._lines.append(line)
        self.last_line = line.number
        return []

    def finish(self) -> Statements:
        """As ``BlockReader``."""
        name, values, lines = self._name, self._values, self._lines
        self._name, self._values, self._lines, self.last_line = "", {}, [], 0
        length = rounded(values.get("ref_al"))
        if length is None:
            return []
        dead = f"A reference of {length.value:.2f} is that of a dead draft: it must not serve as a baseline."
        reading = Reading(
            tool="TensorRT-LLM",
            format="acceptance_length.yaml",
            scope="reference",
            source=name,
            line=lines[0].number,
            raw="\n".join(line.raw for line in lines),
            accept_length=length,
            other={} if "min_al" not in values else {"min_al": float(values["min_al"])},
            remarks=(dead,) if length.value < DEAD_LENGTH else (),
        )
        return [reading]
