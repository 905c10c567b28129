"""What was collected from a server, as readings; and a journal read back without the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers.client.answers import live_reading
from eagle3ref.servers.client.counters import run_readings
from eagle3ref.servers.client.facts import ServerFacts
from eagle3ref.servers.client.record import SERVER_FILE, Record, read_record
from eagle3ref.servers.client.settings import RequestSettings
from eagle3ref.servers.reading import NotAcceptance, Reading

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Collection:
    """Answers of a server, and what it says of itself.

    Args:
        server: what it is.
        settings: of every request.
        readings: one of each answered prompt, in the order first sent; then what the counters say of the whole run,
            and what the server says of its lifetime. Times are UTC. ``Evidence.gather`` takes them.
        sent: requests that may have reached the server, over all runs of the journal.
        answered: prompts with an answer.
        unanswered: prompt id -> why it has none, of those that were sent.
        stopped: why the last run ended before its last prompt, a sentence; None if it did not, or is not known.
    """

    server: ServerFacts
    settings: RequestSettings
    readings: tuple[Reading | NotAcceptance, ...]
    sent: int
    answered: int
    unanswered: Mapping[str, str]
    stopped: str | None = None

    @property
    def requests(self) -> tuple[Reading, ...]:
        """The readings of single requests."""
        readings = (reading for reading in self.readings if isinstance(reading, Reading))
        return tuple(reading for reading in readings if reading.scope == "request")


def read_journal(folder: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> Collection:
    """What a journal of ``collect`` holds. It may be of a run that was killed, or one that is still going on.

    Args:
        folder: the journal.
        tokenizer: for the ids of answers that came as text only.

    Raises:
        Eagle3RefError: no journal, or a damaged one.
    """
    record = read_record(folder)
    facts, settings = _facts(folder, record), _settings(folder, record)
    found = {name: live_reading(facts, name, asked, tokenizer) for name, asked in record.asked.items()}
    requests = tuple(reading for reading in found.values() if reading is not None)
    return Collection(
        server=facts,
        settings=settings,
        readings=(*requests, *run_readings(record.pages, requests, record.sent)),
        sent=record.sent,
        answered=len(requests),
        unanswered={name: record.asked[name].why for name, reading in found.items() if reading is None},
    )


def _facts(folder: str | Path, record: Record) -> ServerFacts:
    values = record.server["facts"]
    try:
        return ServerFacts(**{**values, "flags": tuple(values.get("flags", ()))})
    except TypeError as error:
        raise _damaged(folder, error) from error


def _settings(folder: str | Path, record: Record) -> RequestSettings:
    try:
        return RequestSettings(**record.server["settings"])
    except TypeError as error:
        raise _damaged(folder, error) from error


def _damaged(folder: str | Path, error: TypeError) -> Eagle3RefError:
    return Eagle3RefError(
        f"reading {Path(folder) / SERVER_FILE}",
        found=str(error),
        expected="facts and settings as they were written",
        action="Restore the file, or begin anew in another folder.",
    )
