"""Statements as they come, each once: copies of ranks, chunks of one answer and lines read twice are dropped."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from eagle3ref.servers.evidence.counters import between
from eagle3ref.servers.evidence.trend import CACHED_SHARE
from eagle3ref.servers.formats.unwrap import NO_YEAR
from eagle3ref.servers.reading import NotAcceptance, Reading

_MOST_WINDOWS = 50_000
_MOST_WARNINGS = 1000
_REMEMBERED = 200_000  # lines whose copies are known as such
_RANKS_REACH = 64  # lines between a rank's line and its copy by another rank
_RANKS_SECONDS = 5.0


class Gathering:
    """Takes statements one by one."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.warnings: list[NotAcceptance] = []
        self._cut_lines: list[int] = []
        self._windows = _Windows()
        self._others: list[Reading] = []
        self._requests: dict[tuple[str, str | None], int] = {}  # place in _others
        self._seen: dict[int, None] = {}
        self._ranks: deque[tuple[tuple[Any, ...], str, datetime | None]] = deque(maxlen=_RANKS_REACH)
        self._prefilled = (0, 0)  # cached and new tokens since the last window
        self._counters: dict[tuple[str, str, str], Reading] = {}
        self._dropped: Counter[str] = Counter()
        self._years = _Years()

    def add(self, statement: Reading | NotAcceptance) -> None:
        """One more."""
        if isinstance(statement, NotAcceptance):
            self._add_other_line(statement)
            return
        reading = self._years.completed(statement)
        if self._is_copy(reading):
            return
        if reading.scope == "window":
            self._windows.add(self._with_prefills(reading))
        elif reading.scope == "request" and reading.request_id is not None:
            self._add_request(reading)
        else:
            self._others.append(reading)
            self._others += self._gain(reading)

    def in_order(self) -> tuple[Reading, ...]:
        """All readings by time; one without a time stays behind the one before it."""
        placed: list[tuple[datetime, Reading]] = []
        for readings in (self._windows.kept, self._others):
            last = datetime.min
            for reading in readings:
                last = reading.time or last
                placed.append((last, reading))
        return tuple(reading for _, reading in sorted(placed, key=lambda pair: pair[0]))

    def remarks(self) -> Iterator[str]:
        """What was dropped."""
        if self._cut_lines:
            yield f"Cut off, and read as far as they are whole: JSON of line {_some(self._cut_lines)}."
        for why, number in self._dropped.items():
            yield f"{why}: {number:,}."
        if self._windows.stride > 1:
            yield f"Of {self._windows.total:,} log lines every {self._windows.stride}th is kept, evenly over time."

    def _add_other_line(self, line: NotAcceptance) -> None:
        self.kinds[f"{line.tool}: {line.what}"] += 1
        if line.tool == "JSON" and "cut off" in line.what and len(self._cut_lines) < _MOST_WARNINGS:
            self._cut_lines.append(line.line)
        if "warning" in line.what and len(self.warnings) < _MOST_WARNINGS:
            self.warnings.append(line)
        new, cached = line.fields.get("new token"), line.fields.get("cached token")
        if line.what == "prefill log" and isinstance(new, int) and isinstance(cached, int):
            self._prefilled = (self._prefilled[0] + cached, self._prefilled[1] + new)

    def _with_prefills(self, window: Reading) -> Reading:
        cached, new = self._prefilled
        self._prefilled = (0, 0)
        if not cached + new:
            return window
        return replace(window, other={**window.other, CACHED_SHARE: cached / (cached + new)})

    def _is_copy(self, reading: Reading) -> bool:
        if reading.time is None or reading.scope == "request":
            return False
        figures = _figures(reading)
        key = hash((reading.time, reading.source, reading.gen_throughput, figures))
        if key in self._seen:
            self._dropped["Lines that stand in two of the files, or twice in one, count once"] += 1
            return True
        self._seen[key] = None
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return reading.scope == "window" and "TP" in reading.source and self._is_other_rank(reading, figures)

    def _is_other_rank(self, reading: Reading, figures: tuple[Any, ...]) -> bool:
        """The ranks of one tensor-parallel group, and of one pipeline, all print what the group did."""
        group = next((part for part in reading.source.split() if part.startswith("DP")), "")
        for known, source, time in self._ranks:
            if known == (group, *figures) and source != reading.source and _near(time, reading.time):
                self._dropped["Lines of further tensor-parallel ranks, which repeat their group's, are left out"] += 1
                return True
        self._ranks.append(((group, *figures), reading.source, reading.time))
        return False

    def _add_request(self, reading: Reading) -> None:
        """A streamed answer repeats its id with more tokens each time: the last of them stands for all."""
        key = reading.tool, reading.request_id
        place = self._requests.get(key)
        before = None if place is None else self._others[place]
        if before is not None and place is not None and _is_chunk_of(before, reading):
            self._dropped["Chunks of streamed answers, and answers read twice, count with their last"] += 1
            self._others[place] = reading
            return
        self._requests[key] = len(self._others)
        self._others.append(reading)

    def _gain(self, reading: Reading) -> list[Reading]:
        """What counters gained since their page before."""
        if reading.scope != "lifetime" or not reading.format.startswith("/metrics"):
            return []
        key = reading.tool, reading.format, reading.source
        before = self._counters.get(key)
        self._counters[key] = reading
        if before is None:
            return []
        # Pages of two files carry no times, and "after" stands before "before" in the alphabet.
        is_swapped = reading.line <= before.line and (reading.rounds or 0) < (before.rounds or 0)
        gained = between(reading, before) if is_swapped else between(before, reading)
        return [gained] if gained.rounds else []


class _Windows:
    """The windows, or every second, fourth, … of them when there are very many."""

    def __init__(self) -> None:
        self.kept: list[Reading] = []
        self.total, self.stride = 0, 1

    def add(self, window: Reading) -> None:
        if self.total % self.stride == 0:
            self.kept.append(window)
        self.total += 1
        if len(self.kept) > _MOST_WINDOWS:
            self.kept = self.kept[::2]
            self.stride *= 2


class _Years:
    """Lines without a year: after December comes January of the next one."""

    def __init__(self) -> None:
        self._year = NO_YEAR
        self._last: datetime | None = None

    def completed(self, reading: Reading) -> Reading:
        time = reading.time
        if time is None or time.year != NO_YEAR:
            return reading
        if self._last is not None and self._last.month == 12 and time.month == 1 and self._last.year == self._year:
            self._year += 1
        safe_day = min(time.day, 28) if time.month == 2 else time.day
        self._last = time.replace(year=self._year, day=safe_day)
        return reading if self._year == NO_YEAR else replace(reading, time=self._last)


def _figures(reading: Reading) -> tuple[Any, ...]:
    """What ranks of one group print alike; the throughput is each rank's own clock's."""
    return (
        *(reading.tool, reading.format, reading.scope, reading.accept_length, reading.accept_rate),
        *(reading.rounds, reading.accepted_drafts, reading.running_requests, reading.other.get("token")),
    )


def _some(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (", …" if len(numbers) > 5 else "")


def _near(one: datetime | None, other: datetime | None) -> bool:
    return one is not None and other is not None and abs(other - one) <= timedelta(seconds=_RANKS_SECONDS)


def _is_chunk_of(before: Reading, after: Reading) -> bool:
    """Whether both are of one answer: what the first says is the beginning of what the second says."""
    if (before.completion_tokens or 0) > (after.completion_tokens or 0) or (before.rounds or 0) > (after.rounds or 0):
        return False
    return _is_beginning(before.output_ids, after.output_ids) and before.prompt_tokens == after.prompt_tokens


def _is_beginning(first: Sequence[int] | None, second: Sequence[int] | None) -> bool:
    return first is None or second is None or tuple(second[: len(first)]) == tuple(first)
