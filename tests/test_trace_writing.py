"""Writing a trace: what is refused, what resumes, and that a kill at any moment loses and doubles nothing."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
from trace_parts import contents, make_header, make_sequence, record, refused, same, sequence_file

from eagle3ref import durable
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace import RecordedSampling, Trace, TraceWriter, writer


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill loses nothing that the kernel has; a power cut does, and the order of the flushes has its own test."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


# Writing


@pytest.mark.parametrize(
    "hostile", ["../../x", "/etc/passwd", "..", "a\nb", "a\0b", "x" * 5000, "日本", "con.safetensors.partial", " "]
)
def test_no_id_leads_out_of_the_folder(tmp_path: Path, hostile: str) -> None:
    """Catches ids that are used as file names as they are."""
    folder = tmp_path / "deep" / "er" / "trace"
    with TraceWriter.open(folder, make_header()) as trace_writer:
        trace_writer.add(make_sequence(0, id=hostile))
        trace_writer.add(make_sequence(1, id=hostile + "!"))
    assert Trace.open(folder).ids == (hostile, hostile + "!")
    assert same(Trace.open(folder).sequence(hostile), make_sequence(0, id=hostile))
    assert all(path.parent == folder for path in tmp_path.rglob("*") if path.is_file())
    assert len(contents(folder)) == 5
    before = contents(folder)
    TraceWriter.open(folder, make_header()).close()
    assert contents(folder) == before


def test_a_second_sequence_of_one_id_is_refused(tmp_path: Path) -> None:
    """Catches doubled prompts, which would count twice in every average."""
    folder = record(tmp_path / "trace")
    with TraceWriter.open(folder, make_header()) as trace_writer:
        assert trace_writer.done == {"prompt/0", "prompt/1", "prompt/2"}
        refused("already", lambda: trace_writer.add(make_sequence(1)))
    refused("closed writer", lambda: trace_writer.add(make_sequence(9)))
    assert len(Trace.open(folder)) == 3


def test_resuming_with_another_header_lists_the_fields(tmp_path: Path) -> None:
    """Catches a trace of two targets or two samplings under one header."""
    folder = record(tmp_path / "trace")
    before = contents(folder)
    other = make_header(
        target=replace(make_header().target, config_sha256="00" * 32),
        sampling=RecordedSampling(1.0, 1.0, 0, None),
        engine="sglang 0.5.23",
    )
    message = refused("resuming", lambda: TraceWriter.open(folder, other))
    fields = message.partition("another header: ")[2].partition("; expected")[0].split("; ")
    assert fields == [
        f"target.config_sha256: '{'ab' * 32}' recorded, '{'00' * 32}' now",
        "sampling.temperature: 0.0 recorded, 1.0 now",
        "engine: 'eagle3ref 0.1.0' recorded, 'sglang 0.5.23' now",
    ]
    assert contents(folder) == before
    with TraceWriter.open(folder, make_header(provenance={"date": "later"})) as trace_writer:
        assert trace_writer.header.provenance == {"date": "2026-01-01"}


def test_a_path_that_is_no_trace_is_left_alone(tmp_path: Path) -> None:
    """Catches a writer that clears out, or writes between, somebody's files."""
    (tmp_path / "file").write_text("x")
    for name in ("notes.txt", "000000-mine.safetensors", "manifest.jsonl"):
        (tmp_path / name.replace(".", "-")).mkdir()
        (tmp_path / name.replace(".", "-") / name).write_text("mine")
    before = contents(tmp_path)
    for path in tmp_path.iterdir():
        refused("nothing was touched", lambda path=path: TraceWriter.open(path, make_header()))
    assert contents(tmp_path) == before
    foreign = record(tmp_path / "trace") / "notes.txt"
    foreign.write_text("kept in a trace, too")
    record(tmp_path / "trace")
    assert foreign.exists()


def test_what_the_operating_system_refuses_is_told(tmp_path: Path) -> None:
    """Catches an OSError of a capture or a replay that nobody turns into what was being done and what to do."""
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "folder")
    refusal = r"writing a trace to .*found {}: .*Mend that"
    refused(refusal.format("Not a directory"), lambda: TraceWriter.open(tmp_path / "file" / "t", make_header()))
    refused(refusal.format("File exists"), lambda: TraceWriter.open(tmp_path / "link", make_header()))
    too_long = tmp_path / ("x" * 300)
    refused("found File name too long", lambda: TraceWriter.open(too_long, make_header()))
    refused(r"reading the trace .*found File name too long", lambda: Trace.open(too_long))


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    """Catches interleaved manifests; and a lock that outlives its writer or a refusal."""
    with TraceWriter.open(tmp_path / "trace", make_header()):
        refused("another writer", lambda: TraceWriter.open(tmp_path / "trace", make_header()))
    refused("resuming", lambda: TraceWriter.open(tmp_path / "trace", make_header(engine="x 1")))
    TraceWriter.open(tmp_path / "trace", make_header()).close()


def test_lost_files_are_recorded_again(tmp_path: Path) -> None:
    """Catches a resume that trusts the manifest while a file is gone or cut, and a file name that is used twice."""
    folder = record(tmp_path / "trace")
    sequence_file(folder, 0).unlink()
    os.truncate(sequence_file(folder, 1), 10)
    with TraceWriter.open(folder, make_header()) as trace_writer:
        assert trace_writer.dropped == {"prompt/0", "prompt/1"}
        assert trace_writer.done == {"prompt/2"}
    record(folder)
    trace = Trace.open(folder)
    trace.check()
    assert sorted(trace.ids) == ["prompt/0", "prompt/1", "prompt/2"]
    assert same(trace.sequence("prompt/1"), make_sequence(1))
    assert len(list(folder.glob("*.safetensors"))) == 3


def test_a_file_name_is_never_used_twice(tmp_path: Path) -> None:
    """Catches numbering by count: after a loss that writes over the file of another id spelt alike."""
    folder = record(tmp_path / "trace")
    sequence_file(folder, 0).unlink()
    with TraceWriter.open(folder, make_header()) as trace_writer:
        trace_writer.add(make_sequence(0, id="prompt 2"))
    trace = Trace.open(folder)
    trace.check()
    assert trace.ids == ("prompt/1", "prompt/2", "prompt 2")


@pytest.mark.usefixtures("no_fsync")
def test_a_manifest_cut_anywhere_in_its_last_line_resumes(tmp_path: Path) -> None:
    """Catches a half line that is taken for damage, for a sequence, or for the beginning of the next line."""
    folder = record(tmp_path / "trace")
    whole = contents(folder)
    data = whole["manifest.jsonl"]
    start = data[:-1].rindex(b"\n") + 1
    for cut in range(start, len(data)):
        (folder / "manifest.jsonl").write_bytes(data[:cut])
        (folder / "000002-prompt-2.safetensors.partial").write_bytes(b"half")
        assert Trace.open(folder).ids == ("prompt/0", "prompt/1")
        record(folder)
        assert contents(folder) == whole


def test_a_full_disk_leaves_a_trace_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches what a failed add left in the manifest or beside it getting into, or behind, the line of the next one."""
    folder = tmp_path / "trace"
    with TraceWriter.open(folder, make_header()) as trace_writer:
        trace_writer.add(make_sequence(0))
        monkeypatch.setattr(os, "fsync", fail_on_manifest(folder, os.fsync))
        with pytest.raises(Eagle3RefError, match="disk full"):
            trace_writer.add(make_sequence(1, id="a line longer than the one that comes next"))
        monkeypatch.undo()
        assert trace_writer.done == {"prompt/0"}
        trace_writer.add(make_sequence(1))
    TraceWriter.open(folder, make_header()).close()
    assert contents(folder) == contents(record(tmp_path / "undisturbed", range(2)))


def fail_on_manifest(folder: Path, fsync: Callable[[int], None]) -> Callable[[int], None]:
    def failing(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == (folder / "manifest.jsonl").stat().st_ino:
            raise OSError("disk full")
        fsync(descriptor)

    return failing


def test_bytes_reach_the_disk_before_the_names_that_promise_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a rename or a manifest line that a power cut could keep while it loses the bytes behind it."""
    folder = record(tmp_path / "trace", range(1))
    events: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def watched_fsync(descriptor: int) -> None:
        events.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        events.append(f"{len((folder / 'manifest.jsonl').read_bytes().splitlines())} lines")
        fsync(descriptor)

    def watched_replace(path: Path, target: Path) -> Path:
        events.append(f"name {target.name}")
        return rename(path, target)

    with TraceWriter.open(folder, make_header()) as trace_writer:
        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(Path, "replace", watched_replace)
        trace_writer.add(make_sequence(1))
    name = "000001-prompt-1.safetensors"
    assert events == [
        f"sync {name}.partial",
        "1 lines",
        f"name {name}",
        "sync trace",
        "1 lines",
        "sync manifest.jsonl",
        "2 lines",
    ]


# Killed

State = tuple[frozenset[str], frozenset[tuple[str, bytes]]]


def record_and_tell(folder: Path, tell: Callable[[str], object], count: int) -> None:
    """Record what is missing, and tell every id when its ``add`` has returned."""
    with TraceWriter.open(folder, make_header()) as trace_writer:
        for number in range(count):
            sequence = make_sequence(number)
            if sequence.id not in trace_writer.done:
                trace_writer.add(sequence)
                tell(sequence.id)


def check_killed(folder: Path, told: Iterable[str]) -> None:
    """What a kill left is a sound trace with everything that was told, or not yet a trace."""
    if (folder / "trace.json").exists():
        trace = Trace.open(folder)
        trace.check()
        assert set(told) <= set(trace.ids)
    else:
        assert not set(told)


def states_on_the_way(job: Callable[[], object], look: Callable[[], State]) -> set[State]:
    """What a SIGKILL would leave at each line of the writer and below it: all that has gone to the kernel by then."""
    states = set()

    def before_line(frame: FrameType, event: str, _: object) -> object:
        if frame.f_code.co_filename not in (writer.__file__, durable.__file__):
            return None
        if event == "line":
            states.add(look())
        return before_line

    tracer = sys.gettrace()
    sys.settrace(before_line)
    try:
        job()
    finally:
        sys.settrace(tracer)
    return states


@pytest.mark.usefixtures("no_fsync")
def test_killed_at_any_line_and_again_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """Catches any order of steps, of a repair too, at which a kill loses, doubles or half-writes a sequence.

    Goes through every state of the folder that kills can bring about, one after another, to the last.
    """
    expected = contents(record(tmp_path / "undisturbed", range(2)))
    pending: list[State] = [(frozenset(), frozenset())]
    seen = set(pending)
    while pending:
        told_before, files = pending.pop()
        folder = tmp_path / f"trace-{len(seen)}-{len(pending)}"
        if files:
            folder.mkdir()
        for name, data in files:
            (folder / name).write_bytes(data)
        check_killed(folder, told_before)
        told = set(told_before)
        found = states_on_the_way(
            lambda folder=folder, told=told: record_and_tell(folder, told.add, 2),
            lambda folder=folder, told=told: (frozenset(told), frozenset(contents(folder).items())),
        )
        assert contents(folder) == expected
        pending += found - seen
        seen |= found
    assert len(seen) > 15


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_times_it_ends_with_the_same_bytes(tmp_path: Path, seed: int) -> None:
    """Catches what falls between two lines: SIGKILL by the clock, inside system calls and native code."""
    rng = random.Random(seed)
    folder, log = tmp_path / "trace", tmp_path / "log"
    log.touch()

    def tell(sequence_id: str) -> None:
        with log.open("a") as told:
            told.write(f"{sequence_id}\n")

    for _ in range(10):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                record_and_tell(folder, tell, 20)
                status = 0
            finally:
                os._exit(status)
        time.sleep(rng.uniform(0.001, 0.04))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (0, -signal.SIGKILL)
        check_killed(folder, log.read_text().splitlines())
    assert contents(record(folder, range(20))) == contents(record(tmp_path / "undisturbed", range(20)))
