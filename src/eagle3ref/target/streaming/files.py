"""Reading byte ranges of files that must not change meanwhile, without leaving them in the page cache."""

from __future__ import annotations

import itertools
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType

from eagle3ref.errors import Eagle3RefError

_STEP = 8 * 2**20  # bytes of one system call: between two of them a reader can be stopped
_PARTS = 1024  # Linux' IOV_MAX
_Identity = tuple[int, int, int, int]


class CheckpointFiles:
    """Files of a checkpoint, as they were when this was made.

    Args:
        paths: of the files.

    Raises:
        Eagle3RefError: a file is not there.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._identities = {path: _identity(path) for path in sorted(set(paths))}

    def open(self) -> OpenFiles:
        """Descriptors for one thread, opened when they are needed."""
        return OpenFiles(self._identities)


class OpenFiles:
    """Descriptors of one thread; a context manager that closes them."""

    def __init__(self, identities: dict[Path, _Identity]) -> None:
        self._identities, self._descriptors = identities, dict[Path, int]()

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def read(
        self, path: Path, start: int, into: Sequence[memoryview], stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Fill the parts of ``into``, one after the other, from byte ``start`` on; incomplete once ``stopped`` says so.

        Raises:
            Eagle3RefError: the file ends too early, or the operating system reports an error; with the place.
        """
        left, done, total = deque(into), 0, sum(len(part) for part in into)
        while left and not stopped():
            try:
                got = os.preadv(self._descriptor(path), _step(left), start + done)
            except OSError as error:
                raise _failed(path, f"{error.strerror} at byte {start + done:,}", start, total) from error
            if got == 0:
                raise _failed(path, f"its end at byte {start + done:,}", start, total)
            done += got
            while left and got >= len(left[0]):
                got -= len(left.popleft())
            if got:
                left[0] = left[0][got:]

    def check(self, path: Path) -> None:
        """Refuse a file that was written to or replaced: what has been read may be of two checkpoints.

        Raises:
            Eagle3RefError: names the file.
        """
        if _identity(path) != self._identities[path]:
            raise Eagle3RefError(
                f"streaming {path}",
                found="a file that was written to or replaced since the checkpoint was opened",
                expected="the same file until the pass ends",
                action="Leave the checkpoint alone while it is streamed, and run again.",
            )

    def forget(self, path: Path, start: int, num_bytes: int) -> None:
        """Drop a range from the page cache: a checkpoint would otherwise push everything else out of it.

        The page that the range begins in goes too; that in which it ends stays, for the next read begins there.
        """
        first, last = start // mmap.PAGESIZE, (start + num_bytes) // mmap.PAGESIZE
        if last > first:
            size = (last - first) * mmap.PAGESIZE
            os.posix_fadvise(self._descriptor(path), first * mmap.PAGESIZE, size, os.POSIX_FADV_DONTNEED)

    def _descriptor(self, path: Path) -> int:
        if path not in self._descriptors:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise _failed(path, str(error.strerror), 0, 0) from error
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)  # the system then reads further ahead
            self._descriptors[path] = descriptor
        return self._descriptors[path]


def _step(left: Iterable[memoryview]) -> list[memoryview]:
    """The first ``_STEP`` bytes of the parts, in no more of them than the system takes at once."""
    step, room = [], _STEP
    for part in itertools.islice(left, _PARTS):
        if room == 0:
            break
        step.append(part[:room])
        room -= len(step[-1])
    return step


def _identity(path: Path) -> _Identity:
    try:
        status = path.stat()
    except OSError as error:
        raise _failed(path, str(error.strerror), 0, 0) from error
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _failed(path: Path, found: str, start: int, num_bytes: int) -> Eagle3RefError:
    return Eagle3RefError(
        f"streaming {path}",
        found=found,
        expected=f"{num_bytes:,} bytes from byte {start:,} on" if num_bytes else "a readable file",
        action="Restore the file if it was cut short or moved away, mend its rights or its disk, and run again.",
    )
