"""A file, a folder of them, or a file that still grows, as statements about acceptance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from eagle3ref.servers.files import STDIN, CutArchiveError, file_lines, followed_lines
from eagle3ref.servers.formats.stream import Statement, TextReader
from eagle3ref.servers.reading import NotAcceptance


def read_file(path: str | Path, *, follow: bool = False) -> Iterator[Statement]:
    """What a file says about acceptance, in memory that does not grow with it.

    Args:
        path: text, plain or packed with gzip, bzip2 or xz; ``"-"`` is standard input; a folder stands for its files.
        follow: go on as the file grows, for ever, through rotations.

    Raises:
        Eagle3RefError: a path that cannot be read.
    """
    if path != STDIN and Path(path).is_dir():
        for file in sorted(file for file in Path(path).rglob("*") if file.is_file()):
            yield from read_file(file)
    elif follow:
        yield from _followed(path)
    else:
        yield from _read(path)


def _read(path: str | Path) -> Iterator[Statement]:
    reader = TextReader()
    try:
        for text in file_lines(path):
            yield from reader.feed(text)
    except CutArchiveError as cut:
        yield from reader.finish()
        yield NotAcceptance("file", "archive that ends too early", raw=f"{path}: {cut}")
        return
    yield from reader.finish()


def _followed(path: str | Path) -> Iterator[Statement]:
    reader = TextReader()
    for text in followed_lines(path):
        yield from reader.pause() if text is None else reader.feed(text)
