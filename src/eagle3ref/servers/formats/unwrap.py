"""What stands around a log line: colours, a container's JSON, a logger's prefix with the time and the rank."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime

# The year of a line that states none, as vLLM's do: a leap year that no server ran in.
NO_YEAR = 1904

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_FULL_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_SHORT_TIME = re.compile(r"\b(?:INFO|DEBUG|WARNING|ERROR) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
_RANK = re.compile(r"\b(DP|PP|TP|EP|CP)[_ ]?(\d+)\b")
_ENGINE = re.compile(r"\(EngineCore(?:_DP)?_?(\d+)\b|\bEngine (\d{3}):")
_CRI = re.compile(r"^\S+T\S+ std(?:out|err) [FP] ")
_WRAPPED = ("log", "message", "msg", "MESSAGE", "event")  # docker and Kubernetes, structured loggers, journald -o json
_PREFIX_LENGTH = 240  # times and ranks stand before this
MAX_RAW = 2000


@dataclass(frozen=True)
class Line:
    """One line of a log.

    Args:
        number: from 1.
        text: without colours, line end and a container's wrapper.
        wrapper_time: the time that the wrapper gives.
    """

    number: int
    text: str
    wrapper_time: str = ""

    @property
    def raw(self) -> str:
        """The text as a reading keeps it."""
        return self.text[:MAX_RAW]

    @property
    def time(self) -> datetime | None:
        """The line's own time, or else the wrapper's; ``NO_YEAR`` where the line has no year. Zones are not kept."""
        head = self.text[:_PREFIX_LENGTH]
        return _full_time(head) or _full_time(self.wrapper_time) or _short_time(head)

    @property
    def source(self) -> str:
        """The rank or engine that the prefix names: ``"DP0 TP1"``, ``"engine 6"``; "" if none."""
        head = self.text[:_PREFIX_LENGTH]
        engine = _ENGINE.search(head)
        if engine is not None:
            return f"engine {int(engine[1] or engine[2])}"
        ranks = dict(_RANK.findall(head.partition("batch")[0]))
        return " ".join(f"{kind}{ranks[kind]}" for kind in ("DP", "PP", "TP") if kind in ranks)


def unwrapped(number: int, text: str) -> Line:
    """The line inside its wrappers."""
    text = text.rstrip("\r\n")
    wrapper_time = ""
    if text.startswith("{") and any(f'"{key}"' in text for key in _WRAPPED):
        text, wrapper_time = _inside_json(text)
    elif (cri := _CRI.match(text)) is not None:
        text, wrapper_time = text[cri.end() :], cri[0]
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:  # a progress bar writes over itself: what stays on the screen is the last of it
        text = text.rstrip("\r").rpartition("\r")[2]
    if text.startswith("data: "):  # a chunk of a streamed answer
        text = text[len("data: ") :]
    return Line(number, text, wrapper_time)


def _inside_json(text: str) -> tuple[str, str]:
    try:
        record = json.loads(text)
    except ValueError:
        return text, ""
    if not isinstance(record, dict):
        return text, ""
    inner = next((record[key] for key in _WRAPPED if isinstance(record.get(key), str)), None)
    if inner is None:
        return text, ""
    times = (record.get(key) for key in ("time", "timestamp", "asctime", "ts", "@timestamp"))
    return inner.rstrip("\r\n"), next((time for time in times if isinstance(time, str)), "")


def _full_time(text: str) -> datetime | None:
    match = _FULL_TIME.search(text)
    if match is None:
        return None
    *parts, fraction = match.groups()
    return _time(*map(int, parts), int((fraction or "0").ljust(6, "0")))


def _short_time(text: str) -> datetime | None:
    match = _SHORT_TIME.search(text)
    return None if match is None else _time(NO_YEAR, *map(int, match.groups()))


def _time(*parts: int) -> datetime | None:
    year, month, day, hour, minute, second, *fraction = parts
    try:
        return datetime(year, month, day, hour, minute, second, fraction[0] if fraction else 0)
    except ValueError:
        return None  # digits that only look like a time
