"""What the operating system refuses, told as bad input: missing rights, a full disk, names that are too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from eagle3ref.errors import Eagle3RefError


def reading(folder: Path) -> AbstractContextManager[None]:
    """Around what reads a trace folder; a refusal becomes an ``Eagle3RefError``."""
    action = "Check the path and its permissions."
    return _told(f"reading the trace {folder}", "a folder whose files can be read", action)


def writing(folder: Path) -> AbstractContextManager[None]:
    """Around what writes a trace folder; a refusal becomes an ``Eagle3RefError``."""
    action = "Mend that, or choose another folder. The same capture goes on from what is complete."
    return _told(f"writing a trace to {folder}", "a folder that can be written, on a disk with room", action)


@contextmanager
def _told(doing: str, expected: str, action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = error.strerror or str(error)
        found = f"{what}: {error.filename}" if error.filename else what
        raise Eagle3RefError(doing, found=found, expected=expected, action=action) from error
