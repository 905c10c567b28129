"""What the operating system refuses, told as bad input: missing rights, a full disk, names that are too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle3ref.errors import Eagle3RefError


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Around what reads a trace folder.

    Raises:
        Eagle3RefError: the operating system refused something.
    """
    try:
        yield
    except OSError as error:
        raise Eagle3RefError(
            f"reading the trace {folder}",
            found=_refusal(error),
            expected="a folder whose files can be read",
            action="Check the path and its permissions.",
        ) from error


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Around what writes a trace folder.

    Raises:
        Eagle3RefError: the operating system refused something.
    """
    try:
        yield
    except OSError as error:
        raise Eagle3RefError(
            f"writing a trace to {folder}",
            found=_refusal(error),
            expected="a folder that can be written, on a disk with room",
            action="Mend that, or choose another folder. The same capture goes on from what is complete.",
        ) from error


def _refusal(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{what}: {error.filename}" if error.filename else what
