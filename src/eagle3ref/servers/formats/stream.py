"""Any text that a server, a benchmark or a person left, line by line: who printed each, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from eagle3ref.servers.consistency import completed
from eagle3ref.servers.formats import llama_cpp, sglang_log, tensorrt_llm, training_log
from eagle3ref.servers.formats.blocks import BlockReader, Statements
from eagle3ref.servers.formats.json_text import JsonText
from eagle3ref.servers.formats.modelopt import ModeloptBlock
from eagle3ref.servers.formats.objects import read_object as read_json
from eagle3ref.servers.formats.printed_block import PrintedBlock
from eagle3ref.servers.formats.prometheus import MetricsPage
from eagle3ref.servers.formats.tables import Table
from eagle3ref.servers.formats.unwrap import MAX_RAW, Line, unwrapped
from eagle3ref.servers.formats.vllm_log import VllmLog
from eagle3ref.servers.reading import NotAcceptance, Reading

Statement = Reading | NotAcceptance

# The words that a line of its own format holds, and who reads it; the first that makes something of it wins.
_LINE_READERS: tuple[tuple[str, Callable[[Line], Statement | None]], ...] = (
    ("Decode batch", sglang_log.read_decode),
    ("Prefill batch", sglang_log.read_prefill),
    ("Req Time Stats(", sglang_log.read_request_timing),
    ("ReqTimeStats(", sglang_log.read_request_timing),
    ("out={", sglang_log.read_finished_request),
    ("#questions", sglang_log.read_benchmark),
    ("invalid eagle tree", sglang_log.read_warning),
    ("length of new_indices", sglang_log.read_warning),
    ("draft acceptance", llama_cpp.read_slot),
    ("#acc tokens", llama_cpp.read_statistics),
    ("Accept rate: ", tensorrt_llm.read_example),
    ("tau_sim", training_log.read_tau_sim),
    ("avg_spec_accept_length=", sglang_log.read_test_print),
    ("Speculative accept length", sglang_log.read_test_print),
)
_QUOTED = ("accept len", "accept_len", "Accept len", "acceptance len")
# A line that holds none of these, begins with none of the letters below, and belongs to no open block, says nothing.
_WORDS = (
    *("ccept", "ecode batch", "spec_", "raft", "refill batch", "throughput: ", "tau_sim", "Stats(", "new_indices"),
    *("eagle tree", "num_output_tokens", "::test", "\x1b"),  # a colour may stand in the middle of a word
)
_TABLE_OR_JSON = frozenset("|+{┌┏")
_BLOCK_NAMES = frozenset(  # first letters of the names that PrintedBlock knows
    ("tot", "num", "dra", "acc", "mea", "ave", "bac", "suc", "max", "con", "bat", "out", "req", "ben", "seq", "pos")
)
_SHORT = 160  # characters of a line of a printed block


class TextReader:
    """Reads a text line by line, in memory that does not grow with it."""

    def __init__(self) -> None:
        self._number = 0
        self._vllm = VllmLog()
        self._json = JsonText(read)
        self._blocks: tuple[BlockReader, ...] = (
            MetricsPage(),
            tensorrt_llm.BenchBlock(),
            tensorrt_llm.ReferenceBlock(),
            ModeloptBlock(),
            training_log.SafeailabTraining(),
            Table(),
            PrintedBlock(),
        )
        self._any_open = False

    def feed(self, text: str) -> Statements:
        """What ended with this line; mostly nothing, or the line's own statement."""
        self._number += 1
        if not self._any_open and not _may_matter(text):
            return []
        if "\r" in text.rstrip("\r\n"):  # a progress bar writes over itself
            parts = [unwrapped(self._number, part) for part in text.split("\r") if part.strip()]
            return [statement for part in parts for statement in self._feed(part)]
        return self._feed(unwrapped(self._number, text))

    def _feed(self, line: Line) -> Statements:
        found = self._statements(line)
        self._any_open = bool(self._vllm.pending or self._json.last_line or any(b.last_line for b in self._blocks))
        return [completed(one) if isinstance(one, Reading) else one for one in found]

    def _statements(self, line: Line) -> Statements:
        if self._json.last_line and (inside := self._json.feed(line)) is not None:
            return inside
        ended = self._close_what_is_far(line.number)
        for reader in (self._object, self._vllm_line, _single_line, self._block_line, self._object_within, _quoted):
            found = reader(line)
            if found is not None:
                return ended + found
        return ended

    def _object(self, line: Line) -> Statements | None:
        """Before all others: a text within an object, that somebody generated, is no log line."""
        return self._json.feed(line) if line.text.startswith("{") and not self._json.last_line else None

    def _object_within(self, line: Line) -> Statements | None:
        return None if line.text.startswith("{") or self._json.last_line else self._json.feed(line)

    def _block_line(self, line: Line) -> Statements | None:
        taken = (block.feed(line) for block in self._blocks)
        return next((ended for ended in taken if ended is not None), None)

    def _vllm_line(self, line: Line) -> Statements | None:
        if self._vllm.pending is not None and self._vllm.goes_on(line):
            return []
        if "SpecDecoding metrics" in line.text or "Speculative metrics" in line.text:
            begun = self._vllm.start(line)
            return [] if begun is None else [begun]
        ended = self._vllm.finish()
        if "generation throughput: " in line.text:
            return [*([] if ended is None else [ended]), self._vllm.throughput(line)]
        if ended is None:
            return None
        return [ended, *self._statements(line)]

    def _close_what_is_far(self, number: int) -> Statements:
        far = (
            block for block in (self._json, *self._blocks) if block.last_line and number - block.last_line > block.reach
        )
        return [statement for block in far for statement in block.finish()]

    def pause(self) -> Statements:
        """What has ended if nothing more comes for a while: all but a JSON value that is still being written."""
        return [] if self._json.last_line else self.finish()

    def finish(self) -> Statements:
        """What the end of the text ends."""
        pending = self._vllm.finish()
        found: Statements = [] if pending is None else [pending]
        for block in (self._json, *self._blocks):
            found += block.finish()
        self._any_open = False
        return [completed(one) if isinstance(one, Reading) else one for one in found]


def read(lines: Iterable[str]) -> Iterator[Statement]:
    """What a text says about acceptance, statement by statement, in memory that does not grow with it.

    Args:
        lines: of a log, a metrics page, a JSON file, a benchmark's output, or all of these mixed.

    Returns:
        Readings, with what follows from their own figures filled in and what contradicts itself remarked; and the
        lines that were recognized and say nothing about acceptance.
    """
    reader = TextReader()
    for line in lines:
        yield from reader.feed(line)
    yield from reader.finish()


def read_object(value: Any, *, time: datetime | None = None, raw: str = "") -> list[Statement]:
    """What one parsed JSON value says: an answer, ``/server_info``, ``/v1/loads``, a result file.

    Args:
        value: as ``json.loads`` gives it.
        time: when it was got.
        raw: its text, for the readings.
    """
    line = Line(0, raw[:MAX_RAW], "" if time is None else time.isoformat())
    return [completed(one) if isinstance(one, Reading) else one for one in read_json(value, line)]


def _may_matter(text: str) -> bool:
    """Whether a line may begin something; quick, for most lines of a log begin nothing."""
    for word in _WORDS:
        if word in text:
            return True
    start = text[:8].lstrip()
    if start[:1] in _TABLE_OR_JSON or start in ("[", "[\r"):
        return True
    if start[:1] in ("[", "#"):
        return start.startswith(("[{", '["', "[[", "[A", "# HELP", "# TYPE"))
    return start[:3].lower() in _BLOCK_NAMES and len(text) < _SHORT and ":" in text


def _single_line(line: Line) -> Statements | None:
    for words, reader in _LINE_READERS:
        if words in line.text:
            found = reader(line)
            if found is not None:
                return [found]
    return None


def _quoted(line: Line) -> Statements | None:
    """The two figures of a decode line in whatever words."""
    found = sglang_log.read_decode(line) if any(words in line.text for words in _QUOTED) else None
    return None if found is None else [found]
