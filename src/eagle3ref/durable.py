"""Files that a kill or a power cut leaves whole: replaced at once or not at all, extended by whole lines; a lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import BinaryIO

from eagle3ref.errors import Eagle3RefError

LOCK_FILE = ".lock"
PARTIAL = ".partial"


def replace_file(path: Path, *parts: bytes | memoryview) -> None:
    """Put the parts onto the disk, then under their name: the name has all of them, or what it had before.

    A kill leaves at most a file named as this one with ``PARTIAL`` behind it.

    Raises:
        OSError: the operating system refuses, say for a full disk.
    """
    partial = path.with_name(path.name + PARTIAL)
    with partial.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync(path.parent)


def write_line(path: Path, start: int, line: bytes) -> int:
    """Write a line at byte ``start``, where the whole lines of the file end; on disk when this returns.

    Not append mode: a line that a kill or a full disk cut short is written over by the next one.

    Returns:
        Where the whole lines end now.

    Raises:
        OSError: the operating system refuses, say for a full disk.
    """
    with path.open("r+b") as file:
        file.seek(start)
        file.truncate()
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def sync(path: Path) -> None:
    """Flush a file to the disk, or a folder: a new name is there only when its folder is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_folder(folder: Path, refusal: Eagle3RefError) -> BinaryIO:
    """Keep other writers out until the returned file is closed; a killed process keeps nobody out.

    Raises:
        Eagle3RefError: ``refusal``, if another writer has the folder.
        OSError: the operating system refuses.
    """
    lock = (folder / LOCK_FILE).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise refusal from error
    return lock
