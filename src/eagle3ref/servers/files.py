"""Lines out of files: compressed, piped, in other encodings, with lines of any length, or still growing."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

from eagle3ref.errors import Eagle3RefError

STDIN = "-"
_BLOCK = 1 << 20
_LONGEST_LINE = 1 << 26  # characters; no answer with its token ids is as long
_POLL_SECONDS = 0.5


_OPENERS: tuple[tuple[bytes, Callable[[BinaryIO], io.BufferedIOBase]], ...] = (
    (b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
)
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError)


class CutArchiveError(Exception):
    """A compressed file ends before its end, as one does that is still written; what came before it was read."""


def file_lines(path: str | Path) -> Iterator[str]:
    """The lines of a file without their ends; ``"-"`` is standard input. Compression is told by content.

    Raises:
        Eagle3RefError: no such file, a folder, one that may not be read, or a compression that is not known.
        CutArchiveError: after the last line that could be read.
    """
    if path == STDIN:
        yield from _unpacked_lines(path, cast(io.BufferedReader, sys.stdin.buffer))
        return
    with _opened(path) as file:
        yield from _unpacked_lines(path, file)


def followed_lines(path: str | Path) -> Iterator[str | None]:
    """The lines of a file as they are written, for ever, like ``tail -F``; None whenever nothing new is there.

    A file that is replaced (rotated) is read to its end and the new one from its start; one that is cut to nothing is
    read again from its start. A line that is not finished waits for its end.

    Raises:
        Eagle3RefError: as ``file_lines``, or a compressed file.
    """
    if path == STDIN:
        yield from file_lines(path)
        return
    file = _opened(path)
    try:
        if any(file.peek(8).startswith(magic) for magic, _ in _OPENERS):
            _refuse(path, "a compressed file", "a growing text", "Leave --follow out.")
        tail = _Tail()
        while True:
            yield from tail.lines(file)
            yield None
            time.sleep(_POLL_SECONDS)
            file = _current(path, file, tail)
    finally:
        file.close()


def _unpacked_lines(path: str | Path, file: io.BufferedReader) -> Iterator[str]:
    head = file.peek(8)[:8]
    if head.startswith(_ZSTANDARD):
        _refuse(path, "Zstandard", "text, or gzip, bzip2 or xz", "Decompress it: zstd -dc FILE | eagle3ref read -")
    opener = next((opener for magic, opener in _OPENERS if head.startswith(magic)), None)
    return _lines(_blocks(file) if opener is None else _unpacked_blocks(opener(file)))


class _Tail:
    """Decodes what a file gained, and keeps the line that is not finished."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what was read: another file begins."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def lines(self, file: io.BufferedReader) -> Iterator[str]:
        """The lines that were finished since the last call."""
        while block := file.read(_BLOCK):
            *whole, self._rest = (self._rest + self._decoder.decode(block)).split("\n")
            self._rest = self._rest[:_LONGEST_LINE]
            yield from whole


def _current(path: str | Path, file: io.BufferedReader, tail: _Tail) -> io.BufferedReader:
    """The file of that name now: the same, the same from its start, or the one that took its place."""
    try:
        there, here = Path(path).stat(), os.fstat(file.fileno())
    except FileNotFoundError:
        return file  # between two of a rotation
    if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) and file.tell() >= here.st_size:
        tail.begin()
        file.close()
        return _opened(path)
    if there.st_ino == here.st_ino and here.st_size < file.tell():
        tail.begin()
        file.seek(0)
    return file


def _opened(path: str | Path) -> io.BufferedReader:
    try:
        return io.BufferedReader(io.FileIO(path), _BLOCK)
    except OSError as error:
        _refuse(path, error.strerror or str(error), "a file that can be read", "Check the path.")


def _blocks(file: io.BufferedReader) -> Iterator[bytes]:
    while block := file.read1(_BLOCK):
        yield block


def _unpacked_blocks(file: io.BufferedIOBase) -> Iterator[bytes]:
    while True:
        try:
            block = file.read1(_BLOCK)  # read() would wait for a whole block, and lose what it has when the file ends
        except _BROKEN as error:
            raise CutArchiveError(str(error)) from error
        if not block:
            return
        yield block


def _lines(blocks: Iterator[bytes]) -> Iterator[str]:
    decoder: codecs.IncrementalDecoder | None = None
    rest, is_too_long = "", False
    for block in blocks:
        decoder = decoder or codecs.getincrementaldecoder(_encoding(block))("replace")
        first, *others = decoder.decode(block).split("\n")
        rest += "" if is_too_long else first
        if others:
            yield rest
            *whole, rest = others
            yield from whole
            is_too_long = False
        if len(rest) > _LONGEST_LINE:
            rest, is_too_long = rest[:_LONGEST_LINE], True
    if rest:
        yield rest


def _encoding(head: bytes) -> str:
    """UTF-8, or what a byte order mark says: PowerShell's ``>`` writes UTF-16."""
    return "utf-16" if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def _refuse(path: str | Path, found: str, expected: str, action: str) -> NoReturn:
    raise Eagle3RefError(f"reading {path}", found=found, expected=expected, action=action)
