"""What was sent and what came back, on disk before anything depends on it: a killed run goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from eagle3ref.durable import LOCK_FILE, PARTIAL, lock_folder, replace_file, write_line
from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers.client.http import Failure
from eagle3ref.servers.client.record import EVENTS_FILE, SERVER_FILE, Record, is_journal, read_record, refused_by_system

_SAME_FACTS = ("engine", "version", "model", "draft", "algorithm", "num_steps", "topk", "num_draft_tokens")


class Journal:
    """The folder of one collection, open for writing; ``Journal.open`` makes it."""

    def __init__(self, folder: Path, lock: BinaryIO, record: Record) -> None:
        self._folder, self._lock, self._size = folder, lock, record.size
        self.record = record

    @classmethod
    def open(cls, path: str | Path, server: dict[str, Any]) -> Journal:
        """Begin a journal, or go on with the one that is there.

        Args:
            path: a folder; made if it is missing.
            server: what this run asks and of whom; a journal there must say the same, but for the address.

        Raises:
            Eagle3RefError: another run has it open, it belongs to another server or to other settings, its lines are
                damaged, the folder holds something else, or the operating system refuses.
        """
        folder = Path(path)
        try:
            with ExitStack() as on_error:
                _refuse_foreign(folder)
                folder.mkdir(parents=True, exist_ok=True)
                lock = on_error.enter_context(_locked(folder))
                if not (folder / SERVER_FILE).exists():
                    replace_file(folder / EVENTS_FILE, b"")
                    replace_file(folder / SERVER_FILE, json.dumps(server, indent=1).encode())
                record = read_record(folder)
                _refuse_other(folder, record.server, server)
                on_error.pop_all()
        except OSError as error:
            raise refused_by_system(folder, error) from error
        return cls(folder, lock, record)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.close()

    def sent(self, prompt_id: str, prompt_ids: Iterable[int]) -> None:
        """Before a request goes out."""
        self._add(event="sent", id=prompt_id, prompt_ids=list(prompt_ids))

    def answered(self, prompt_id: str, answer: Mapping[str, Any], seconds: float) -> None:
        """When its answer is here."""
        self._add(event="answered", id=prompt_id, answer=answer, seconds=round(seconds, 6))

    def failed(self, prompt_id: str, failure: Failure) -> None:
        """When it is known that none will come, or that what came is of no use."""
        self._add(event="failed", id=prompt_id, why=failure.why, again=failure.again, sent=failure.sent)

    def pages(self, when: str, pages: Mapping[str, str]) -> None:
        """What the server says of itself, "before" the requests or "after" them."""
        self._add(event="pages", when=when, pages=dict(pages))

    def _add(self, **event: Any) -> None:
        """Write a line; when this returns it survives a kill and a power cut.

        Raises:
            Eagle3RefError: the operating system refuses, say for a full disk.
        """
        event["time"] = datetime.now(timezone.utc).replace(tzinfo=None).isoformat()
        line = json.dumps(event) + "\n"
        try:
            self._size = write_line(self._folder / EVENTS_FILE, self._size, line.encode())
        except OSError as error:
            raise refused_by_system(self._folder, error) from error
        self.record.take(event)


def _locked(folder: Path) -> BinaryIO:
    refusal = Eagle3RefError(
        f"opening the journal {folder}",
        found="another run that has it open",
        expected="one run at a time",
        action="Wait for it to end, or give another folder.",
    )
    return lock_folder(folder, refusal)


def _refuse_foreign(folder: Path) -> None:
    """Raise unless the folder is a journal, new, or holds no more than what a beginning that was killed leaves."""
    if is_journal(folder) or not folder.exists():
        return
    found = "a file"
    if folder.is_dir():
        left_over = {LOCK_FILE, SERVER_FILE + PARTIAL, EVENTS_FILE + PARTIAL}
        foreign = [path for path in sorted(folder.iterdir()) if path.name not in left_over]
        if all(path.name == EVENTS_FILE and path.stat().st_size == 0 for path in foreign):
            return
        found = f"a folder that holds {foreign[0].name}"
    raise Eagle3RefError(
        f"opening the journal {folder}",
        found=found,
        expected="a journal, or an empty or new folder",
        action="Give another folder; nothing was touched.",
    )


def _refuse_other(folder: Path, recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise if a journal was begun with another server, or asked it in another way."""
    for name in asked["settings"]:
        if recorded["settings"].get(name) != asked["settings"][name]:
            raise _other(folder, name, asked["settings"][name], recorded["settings"].get(name))
    for name in _SAME_FACTS:
        before, now = recorded["facts"].get(name), asked["facts"].get(name)
        # A server may tell less of itself than before, as when its metrics are closed. That is no other server.
        if before != now and before is not None and now is not None:
            raise _other(folder, name, now, before)


def _other(folder: Path, name: str, now: Any, before: Any) -> Eagle3RefError:
    return Eagle3RefError(
        f"going on with the journal {folder}",
        found=f"{name} = {now!r}",
        expected=f"{before!r}, as when it was begun",
        action="Ask that server in the same way, or give another folder for the new run.",
    )
