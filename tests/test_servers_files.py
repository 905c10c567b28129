"""Files as they lie on disks: packed, cut, in other encodings, growing, rotated; and the memory that reading takes."""

import bz2
import gzip
import io
import lzma
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers import NotAcceptance, Reading, read_file
from eagle3ref.servers.files import file_lines, followed_lines


def decode(length: float) -> str:
    return (
        "[2026-06-01 12:00:00 TP0] Decode batch, #running-req: 1, #token: 9, token usage: 0.00, "
        f"accept len: {length:.2f}, accept rate: 0.50, cuda graph: True, gen throughput (token/s): 9.00, "
        "#queue-req: 0, \n"
    )


TEXT = "".join(decode(2 + i / 100) for i in range(50))
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": lambda data: bz2.compress(data, 1),
    "xz": lzma.compress,
    "gzip of two": lambda data: gzip.compress(data[:1000]) + gzip.compress(data[1000:]),
}


def lengths(path: Path | str) -> list[float]:
    return [one.accept_length.value for one in read_file(path) if isinstance(one, Reading) and one.accept_length]


@pytest.mark.parametrize("packer", PACKERS)
def test_packed_files_are_told_by_their_content(tmp_path: Path, packer: str) -> None:
    """A log that is only read under one name."""
    path = tmp_path / "server.log"
    path.write_bytes(PACKERS[packer](TEXT.encode()))
    assert lengths(path) == [round(2 + i / 100, 2) for i in range(50)]


@pytest.mark.parametrize("packer", ["gzip", "bzip2", "xz"])
def test_a_cut_archive_gives_what_it_holds(tmp_path: Path, packer: str) -> None:
    """A traceback, everything lost, or what came after the last whole block, for a log that is still being packed."""
    text = "".join(decode(2 + (i * 7919 % 1000) / 1000) for i in range(3000))
    packed = PACKERS[packer](text.encode())
    path = tmp_path / "server.log.1"
    path.write_bytes(packed[: len(packed) * 9 // 10])
    *readings, last = read_file(path)
    assert len(readings) > 1000
    assert isinstance(last, NotAcceptance)
    assert "ends too early" in last.what


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    """What PowerShell's > writes, read as noise."""
    path = tmp_path / "log.txt"
    path.write_bytes(TEXT.encode(encoding))
    assert len(lengths(path)) == 50


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """A line with a broken character that stops the reading."""
    path = tmp_path / "log.txt"
    path.write_bytes(
        b"\xff\xfe\xfa".join(line.encode() for line in ("x\n", decode(2.5), decode(2.6))) + os.urandom(5000)
    )
    assert lengths(path)[:2] == [2.5, 2.6]


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_lines_over_the_edges_of_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int) -> None:
    """A line, or a character, that is cut where a block of the file ends."""
    monkeypatch.setattr("eagle3ref.servers.files._BLOCK", size)
    path = tmp_path / "log.txt"
    text = "größer\n\n" + TEXT[:1500] + "ünd kein Ende"
    path.write_text(text, encoding="utf-8")
    assert list(file_lines(path)) == text.split("\n")


def test_a_line_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file of one line that fills the memory, and hides the lines behind it."""
    monkeypatch.setattr("eagle3ref.servers.files._LONGEST_LINE", 10_000)
    monkeypatch.setattr("eagle3ref.servers.files._BLOCK", 4096)
    path = tmp_path / "log.txt"
    path.write_text("x" * 100_000 + "\n" + TEXT, encoding="utf-8")
    lines = list(file_lines(path))
    assert 10_000 <= len(lines[0]) <= 15_000
    assert "".join(f"{line}\n" for line in lines[1:]) == TEXT


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A reader that gathers a log before it reads it."""
    path = tmp_path / "log.txt"
    noise = f"[2026-06-01 12:00:00 TP0] {'nothing of note here ' * 40}\n"
    path.write_text((TEXT + noise * 800) * 20, encoding="utf-8")  # 13 MB
    tracemalloc.start()
    assert sum(1 for _ in read_file(path)) == 1000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6_000_000


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe, packed or not."""
    for packer in (bytes, gzip.compress):
        stdin = io.BufferedReader(io.BytesIO(packer(TEXT.encode())))
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
        assert len(lengths("-")) == 50


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A traceback instead of a sentence."""
    with pytest.raises(Eagle3RefError, match="No such file"):
        list(read_file(tmp_path / "none"))
    (tmp_path / "log.zst").write_bytes(b"\x28\xb5\x2f\xfd....")
    with pytest.raises(Eagle3RefError, match="zstd -dc"):
        list(read_file(tmp_path / "log.zst"))
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(Eagle3RefError, match="Leave --follow out"):
        next(read_file(tmp_path / "log.gz", follow=True))


def appended(path: Path, text: str) -> Callable[[], object]:
    return lambda: path.open("a", encoding="utf-8").write(text)


def collected(monkeypatch: pytest.MonkeyPatch, path: Path, steps: list[Callable[[], object]]) -> list[str]:
    """The lines of a followed file; each time the follower waits, the next step happens to the file."""
    happening = iter(steps)

    def sleep(seconds: float) -> None:
        assert seconds > 0
        step = next(happening, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr("eagle3ref.servers.files.time.sleep", sleep)
    return list(until_interrupted(followed_lines(path)))


def until_interrupted(lines: Iterator[str | None]) -> Iterator[str]:
    try:
        for line in lines:
            if line is not None:
                yield line
    except KeyboardInterrupt:
        return
    raise AssertionError("a followed file ended")


def test_follow_through_growth_rotation_and_truncation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lines lost or doubled where a log is rotated, cut to nothing, or written in pieces."""
    path = tmp_path / "server.log"
    path.write_text("a\nb\nhalf", encoding="utf-8")

    def rotate() -> None:
        path.open("a", encoding="utf-8").write("before\n")
        path.rename(tmp_path / "server.log.1")

    steps: list[Callable[[], object]] = [
        appended(path, " a line\n"),
        lambda: None,
        rotate,
        lambda: None,
        lambda: path.write_text("new\n", encoding="utf-8"),
        appended(path, "grown\nund ö\n"),
        lambda: path.write_text("t\n", encoding="utf-8"),
        lambda: None,
        appended(path, "end\n"),
    ]
    assert collected(monkeypatch, path, steps) == [
        "a",
        "b",
        "half a line",
        "before",
        "new",
        "grown",
        "und ö",
        "t",
        "end",
    ]


def test_follow_yields_statements_at_once(tmp_path: Path) -> None:
    """A follower that shows a line when the next one comes."""
    path = tmp_path / "server.log"
    path.write_text(decode(2.0), encoding="utf-8")
    statements: Iterator[Reading | NotAcceptance] = read_file(path, follow=True)
    first = next(statements)
    writer = threading.Timer(0.2, appended(path, decode(2.1)))
    writer.start()
    begun = time.monotonic()
    second = next(statements)
    writer.join()
    assert time.monotonic() - begun < 5
    assert [one.accept_length.value for one in (first, second) if isinstance(one, Reading) and one.accept_length] == [
        2.0,
        2.1,
    ]


def test_follow_can_be_ended(tmp_path: Path) -> None:
    """A command that Ctrl-C kills before it says what it saw."""
    path = tmp_path / "server.log"
    path.write_text(TEXT, encoding="utf-8")
    command = [sys.executable, "-m", "eagle3ref", "read", "--follow", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    for _ in range(50):
        assert "decode log" in process.stderr.readline()
    process.send_signal(2)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "2.245 [2.240, 2.250] tokens a round" in out
