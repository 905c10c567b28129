"""Opening a trace: whatever is missing, truncated or damaged is named."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from trace_parts import contents, make_header, record, refused, sequence_file

from eagle3ref.trace import Trace, TraceWriter


def test_paths_that_are_no_trace_are_told_apart(tmp_path: Path) -> None:
    """Catches one blurred message, or a FileNotFoundError, for three different mistakes."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    refused("nothing there", lambda: Trace.open(tmp_path / "missing"))
    refused("found a file", lambda: Trace.open(tmp_path / "file"))
    refused("without trace.json", lambda: Trace.open(tmp_path / "empty"))
    (record(tmp_path / "trace") / "manifest.jsonl").unlink()
    refused("without manifest.jsonl", lambda: Trace.open(tmp_path / "trace"))


def test_missing_and_truncated_files_are_named_at_open(tmp_path: Path) -> None:
    """Catches a truncated recording that is only found hours into a replay."""
    folder = record(tmp_path / "trace")
    path = sequence_file(folder, 1)
    size = path.stat().st_size
    os.truncate(path, size - 1)
    message = refused(f"{size - 1} bytes in {path.name}; expected {size} bytes", lambda: Trace.open(folder))
    assert "resumes" in message
    path.unlink()
    refused(f"no file {path.name}", lambda: Trace.open(folder))


def test_check_names_the_file_with_a_flipped_bit(tmp_path: Path) -> None:
    """Catches a check that reads sizes only."""
    folder = record(tmp_path / "trace")
    data = bytearray(sequence_file(folder, 2).read_bytes())
    data[-1] ^= 1
    sequence_file(folder, 2).write_bytes(data)
    refused("000002-prompt-2", Trace.open(folder).check)


def test_the_name_of_a_trace_is_of_what_was_opened(tmp_path: Path) -> None:
    """Catches provenance that names sequences which a capture at work added after the replay had begun."""
    folder = record(tmp_path / "trace", range(2))
    trace = Trace.open(folder)
    name = trace.sha256()
    files = b"".join((folder / file).read_bytes() for file in ("trace.json", "manifest.jsonl"))
    assert name == hashlib.sha256(files).hexdigest()
    record(folder, range(3))
    assert trace.sha256() == name != Trace.open(folder).sha256()


def test_looking_ids_up_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    """Catches a search through all ids for each of them: long traces would take minutes to resume."""
    folder = record(tmp_path / "trace", range(1))
    trace = Trace.open(folder)
    many = tuple(replace(trace.entries[0], id=f"other {number}") for number in range(20_000)) + trace.entries
    with TraceWriter(folder, (folder / ".lock").open("ab"), trace.header, many, frozenset()) as trace_writer:
        begin = time.perf_counter()
        assert all(entry.id in trace_writer.done for entry in many)
        assert time.perf_counter() - begin < 1  # a new set each time: 10 s and more
    long = replace(trace, entries=many)
    long.sequence("prompt/0")
    begin = time.perf_counter()
    for _ in range(500):
        long.sequence("prompt/0")
    assert time.perf_counter() - begin < 1  # by searching: 10 million comparisons


def test_an_unknown_id_is_told(tmp_path: Path) -> None:
    """Catches a bare KeyError."""
    trace = Trace.open(record(tmp_path / "trace"))
    refused("no sequence 'x' among 3.*'prompt/0'", lambda: trace.sequence("x"))


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (b"garbage", "line 2 of .*manifest.jsonl"),
        (b"\xff", "line 2"),
        (b"{}", "line 2"),
        (b"", "line 2"),
        ("first", "prompt/0' for the second time"),
        (("file", "../../etc/passwd"), "passwd"),
        (("file", "/etc/000000-x.safetensors"), "/etc/"),
        (("file", "000001-a\n.safetensors"), "000001-a"),
        (("file", "9" * 5000 + "-a.safetensors"), "999"),
        (("bytes", "12"), "bytes = '12'"),
    ],
)
def test_a_damaged_manifest_is_refused_by_reader_and_writer(tmp_path: Path, line: object, match: str) -> None:
    """Catches a middle line that is skipped (a sequence lost in silence) and names that lead out of the folder."""
    folder = record(tmp_path / "trace")
    lines = (folder / "manifest.jsonl").read_bytes().splitlines()
    if line == "first":
        lines[1] = lines[0]
    elif isinstance(line, bytes):
        lines[1] = line
    elif isinstance(line, tuple):
        lines[1] = json.dumps({**json.loads(lines[1]), line[0]: line[1]}).encode()
    (folder / "manifest.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    before = contents(folder)
    refused(match, lambda: Trace.open(folder))
    refused(match, lambda: TraceWriter.open(folder, make_header()))
    assert contents(folder) == before
