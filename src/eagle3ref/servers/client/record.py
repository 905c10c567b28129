"""What a journal says was sent and came back.

``server.json`` has the server's facts and the settings of the requests; ``requests.jsonl`` a line for each event:

- ``sent`` (id, prompt_ids), on disk before the request goes out;
- ``answered`` (id, answer, seconds), with the answer's whole JSON;
- ``failed`` (id, why, again, sent): whether another try may do better, and whether the request can have been received;
- ``pages`` (when, pages): what the server said of itself before and after.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from eagle3ref.errors import Eagle3RefError

SERVER_FILE, EVENTS_FILE = "server.json", "requests.jsonl"
FORMAT = 1


@dataclass
class Asked:
    """One prompt in a journal.

    Args:
        prompt_ids: as sent.
        tries: requests that may have reached the server.
        answer: the last answer's JSON; None if none came.
        why: it has no answer, a sentence without its full stop; "" if it has one.
        reason: of the last failure that the server itself has caused.
        again: whether another try may do better.
        time: of the answer.
        seconds: that it took.
    """

    prompt_ids: tuple[int, ...]
    tries: int = 0
    answer: dict[str, Any] | None = None
    why: str = ""
    reason: str = ""
    again: bool = True
    time: datetime | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Pages:
    """What the server said of itself at one time.

    Args:
        when: "before" or "after" the requests of a run.
        time: UTC.
        by_path: its pages.
    """

    when: str
    time: datetime
    by_path: dict[str, str]


@dataclass
class Record:
    """What a journal says.

    Args:
        server: contents of ``server.json``.
        asked: by prompt id, in the order first sent.
        pages: what the server said of itself, in time order.
        sent: requests that may have reached the server.
        size: bytes of the whole lines of ``requests.jsonl``.
    """

    server: dict[str, Any]
    asked: dict[str, Asked] = field(default_factory=dict)
    pages: list[Pages] = field(default_factory=list)
    sent: int = 0
    size: int = 0

    @property
    def answered(self) -> int:
        """Prompts with an answer."""
        return sum(asked.answer is not None for asked in self.asked.values())

    def take(self, event: Mapping[str, Any]) -> None:
        """Add one line of the journal."""
        kind = event["event"]
        if kind == "pages":
            self.pages.append(Pages(event["when"], datetime.fromisoformat(event["time"]), event["pages"]))
        elif kind == "sent":
            asked = self.asked.setdefault(event["id"], Asked(tuple(event["prompt_ids"])))
            asked.tries += 1
            self.sent += 1
            asked.why = "sent, and the run ended before an answer came"
        elif kind == "answered":
            asked = self.asked[event["id"]]
            asked.answer, asked.why = event["answer"], ""
            asked.time, asked.seconds = datetime.fromisoformat(event["time"]), event["seconds"]
        elif kind == "failed":
            asked = self.asked[event["id"]]
            if not event["sent"]:
                asked.tries -= 1
                self.sent -= 1
            # A server that breaks down says why once; from then on it only refuses connections.
            if event["sent"] or not asked.reason:
                asked.reason = event["why"]
            asked.why, asked.again = asked.reason, event["again"]


def is_journal(path: str | Path) -> bool:
    """Whether a path is a folder that ``collect`` made."""
    server, events = Path(path) / SERVER_FILE, Path(path) / EVENTS_FILE
    if not (server.is_file() and events.is_file()):
        return False
    try:
        value = json.loads(server.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and {"format", "facts", "settings"} <= value.keys()


def read_record(path: str | Path) -> Record:
    """Read a journal. A last line that a kill cut short is left out: what it says was not relied on.

    Raises:
        Eagle3RefError: no journal, or a damaged one.
    """
    folder = Path(path)
    if not is_journal(folder):
        raise Eagle3RefError(
            f"reading the journal {folder}",
            found=f"no {SERVER_FILE} with facts and settings beside {EVENTS_FILE}",
            expected="a folder that a collection from a server has made",
            action="Give that folder, or the server's address to begin one.",
        )
    try:
        server = _decoded(folder / SERVER_FILE, 1, (folder / SERVER_FILE).read_bytes())
        if server.get("format") != FORMAT:
            raise _damaged(folder / SERVER_FILE, 1, f"format {server.get('format')!r}", f"format {FORMAT}")
        if not all(isinstance(server.get(part), dict) for part in ("facts", "settings")):
            raise _damaged(folder / SERVER_FILE, 1, "no facts or no settings", "an object for each of the two")
        record = Record(server)
        for number, line in _whole_lines(folder / EVENTS_FILE):
            event = _decoded(folder / EVENTS_FILE, number, line)
            try:
                record.take(event)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                found = f"an event that does not fit ({type(error).__name__}: {error})"
                raise _damaged(folder / EVENTS_FILE, number, found, "the events of one run in their order") from error
            record.size += len(line)
    except OSError as error:
        raise refused_by_system(folder, error) from error
    return record


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield number, line


def _decoded(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, number, f"no JSON ({error})", "a JSON object") from error
    if not isinstance(value, dict):
        raise _damaged(path, number, f"JSON of type {type(value).__name__}", "a JSON object")
    return value


def _damaged(path: Path, number: int, found: str, expected: str) -> Eagle3RefError:
    return Eagle3RefError(
        f"reading the journal {path}, line {number}",
        found=found,
        expected=expected,
        action="Restore the file, or begin anew in another folder; nothing was sent.",
    )


def refused_by_system(folder: Path, error: OSError) -> Eagle3RefError:
    what = error.strerror or str(error)
    return Eagle3RefError(
        f"keeping the journal {folder}",
        found=f"{what}: {error.filename}" if error.filename else what,
        expected="a folder that can be read and written, on a disk with room",
        action="Mend that, or give another folder. What was collected is kept.",
    )
