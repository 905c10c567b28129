"""JSON that stands in a text: on one line, behind a prefix, over many lines, or cut in the middle."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from eagle3ref.servers.formats.blocks import Statements
from eagle3ref.servers.formats.objects import lines_inside, read_object
from eagle3ref.servers.formats.request_fields import cut_request_reading
from eagle3ref.servers.formats.unwrap import MAX_RAW, Line
from eagle3ref.servers.reading import NotAcceptance, Reading

# A value without one of these says nothing about acceptance, and is not parsed.
_KEYS = ("accept", "acc_length", "spec_", "specDecoding", "speculative", "draft_n", "num_drafts")
_BEGINS = re.compile(r"^\s*(?:\{\s*$|\{\s*[\"']|\[\s*$|\[\s*[{\[\"])")
_LOG_LINE = re.compile(r"\[?\d{4}-\d\d-\d\d[ T]\d|\(\w+ pid=|(?:INFO|WARNING|ERROR|DEBUG)\b")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?')
_MAX_CHARACTERS = 1 << 26  # of one value
_MOST_PARTS = 10_000  # of a value that is cut


class JsonText:
    """Collects a value that goes over several lines; one that stands on a line is read at once.

    Args:
        read_lines: reads the log lines that a value holds.
    """

    reach = 1000  # lines of a log that may stand within a value

    def __init__(self, read_lines: Callable[[Iterable[str]], Iterable[Reading | NotAcceptance]]) -> None:
        self._read_lines = read_lines
        self.last_line = 0
        self._lines: list[Line] = []
        self._depth = self._characters = 0

    def feed(self, line: Line) -> Statements | None:
        """As ``BlockReader``."""
        if self._lines:
            return None if _LOG_LINE.match(line.text) else self._go_on(line)
        begins = _BEGINS.match(line.text) is not None
        depth = _depth(line.text) if begins else 0
        if begins and depth > 0 and not _is_cut(line.text):
            self._lines, self._depth, self._characters = [line], depth, len(line.text)
            self.last_line = line.number
            return []
        found = self._one_line(line)
        return [_cut(line)] if found is None and begins and depth > 0 else found

    def _go_on(self, line: Line) -> Statements:
        self._lines.append(line)
        self._depth += _depth(line.text)
        self._characters += len(line.text)
        self.last_line = line.number
        return self.finish() if self._depth <= 0 or self._characters > _MAX_CHARACTERS else []

    def finish(self) -> Statements:
        """As ``BlockReader``; of a value that does not end, the request fields that are whole."""
        lines, self._lines = self._lines, []
        self.last_line = self._depth = self._characters = 0
        if not lines:
            return []
        text = "\n".join(line.text for line in lines)
        whole = Line(lines[0].number, text, lines[0].wrapper_time)
        found = self._one_line(whole)
        return [_cut(whole)] if found is None and _value(text) is None else found or []

    def _one_line(self, line: Line) -> Statements | None:
        if not any(key in line.text for key in _KEYS):
            return None
        value = _value(line.text)
        if value is not None:
            found = read_object(value, Line(line.number, line.text[:MAX_RAW], line.wrapper_time))
            found += self._read_lines(lines_inside(value))
            # What else stands in an object, as a text that somebody generated, is not the log's.
            return found if found or line.text.startswith("{") else None
        begun = Line(line.number, line.text[:MAX_RAW], line.wrapper_time)
        parts = [statement for part in _whole_parts(line.text) for statement in read_object(part, begun)]
        if parts:
            return [*parts, _cut(begun)]
        cut = cut_request_reading(line) if "spec_" in line.text else None
        return None if cut is None else [cut]


def _value(text: str) -> Any:
    """The first JSON object or list of a text, or Python's repr of one; None if there is none."""
    start = min(
        (at for at in (text.find('{"'), text.find("{'"), text.find("[{"), text.find("{\n")) if at >= 0), default=-1
    )
    if start < 0:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, start)[0]
    except (ValueError, RecursionError):
        pass
    end = text.rfind("}" if text[start] == "{" else "]") + 1
    try:
        return ast.literal_eval(text[start:end])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _whole_parts(text: str) -> Iterator[Any]:
    """The objects that are whole in a value that is cut, as the answers before the last one of a list."""
    decoder, at = json.JSONDecoder(), 0
    for _ in range(_MOST_PARTS):
        at = text.find('{"', at)
        if at < 0:
            return
        try:
            value, at = decoder.raw_decode(text, at)
            yield value
        except (ValueError, RecursionError):
            at += 1  # one that goes on to the cut: what stands in it may be whole


def _cut(line: Line) -> NotAcceptance:
    return NotAcceptance("JSON", "value that is cut off: its end is missing", line=line.number, raw=line.text[:MAX_RAW])


def _depth(text: str) -> int:
    """Brackets that the line opens and does not close, those in strings not counted."""
    bare = _STRING.sub("", text)
    return bare.count("{") + bare.count("[") - bare.count("}") - bare.count("]")


def _is_cut(text: str) -> bool:
    """Whether a whole answer was to stand on this line: such a line is long, and printed JSON's lines are not."""
    return len(text.rstrip()) > 1 and text.rstrip()[-1] not in "{[,:"
