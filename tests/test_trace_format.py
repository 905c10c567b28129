"""The trace folder: what is on disk, what is refused, and that a kill at any moment loses and doubles nothing."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace import (
    RecordedSampling,
    RecordedSequence,
    TargetIdentity,
    Trace,
    TraceHeader,
    TraceWriter,
    writer,
)

WIDTH, VOCAB, POINTS = 4, 50, (1, 2)


def make_header(**changes: object) -> TraceHeader:
    target = TargetIdentity("nano", "models/nano", "llama", 3, WIDTH, VOCAB, "ab" * 32)
    header = TraceHeader(
        target=target,
        tokenizer_sha256=None,
        capture_points=POINTS,
        dtype="bfloat16",
        sampling=RecordedSampling(temperature=0.0, top_p=1.0, top_k=0, seed=None),
        engine="eagle3ref 0.1.0",
        provenance={"date": "2026-01-01"},
    )
    return replace(header, **changes)


def make_sequence(number: int, full: bool = False, **changes: object) -> RecordedSequence:
    generator = torch.Generator().manual_seed(number)
    rows = 5 + number % 3

    def states() -> torch.Tensor:
        return torch.randn(rows, WIDTH, generator=generator).bfloat16()

    def ids(*shape: int) -> torch.Tensor:
        return torch.randint(VOCAB, shape, generator=generator)

    sequence = RecordedSequence(f"prompt/{number}", ids(rows), 2, {point: states() for point in POINTS})
    if full:
        logprobs = torch.log_softmax(torch.randn(rows, 3, generator=generator), dim=-1)
        sequence = replace(
            sequence, argmax=ids(rows), topk_ids=ids(rows, 3), topk_logprobs=logprobs, final_hidden_state=states()
        )
    return replace(sequence, **changes)


def record(folder: Path, numbers: range = range(3), full: bool = False) -> Path:
    with TraceWriter.open(folder, make_header()) as trace_writer:
        for number in numbers:
            sequence = make_sequence(number, full)
            if sequence.id not in trace_writer.done:
                trace_writer.add(sequence)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sequence_file(folder: Path, number: int) -> Path:
    return next(folder.glob(f"{number:06d}-*.safetensors"))


def refused(match: str, call: Callable[[], object]) -> str:
    """The message of the refusal; ``match`` is a regular expression."""
    with pytest.raises(Eagle3RefError, match=match) as caught:
        call()
    return str(caught.value)


def same(left: RecordedSequence, right: RecordedSequence) -> bool:
    assert (left.id, left.prompt_length) == (right.id, right.prompt_length)
    assert list(left.aux_hidden_states) == list(right.aux_hidden_states)
    names = ("tokens", "argmax", "topk_ids", "topk_logprobs", "final_hidden_state")
    pairs = [(getattr(left, name), getattr(right, name)) for name in names]
    pairs += [(left.aux_hidden_states[point], right.aux_hidden_states[point]) for point in left.aux_hidden_states]
    return all(
        (a is None and b is None) or (a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b))
        for a, b in pairs
    )


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill loses nothing that the kernel has; a power cut does, and the order of the flushes has its own test."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


# What is on disk


@pytest.mark.parametrize("full", [False, True])
def test_what_was_written_comes_back(tmp_path: Path, full: bool) -> None:
    """Catches a tensor stored under the wrong name, a dtype that changes on the way, an order that is lost."""
    trace = Trace.open(record(tmp_path / "trace", full=full))
    expected = [make_sequence(number, full) for number in range(3)]
    assert len(trace) == 3
    assert trace.ids == ("prompt/0", "prompt/1", "prompt/2")
    assert trace.num_tokens == 5 + 6 + 7
    assert trace.header == make_header()
    assert all(same(a, b) for a, b in zip(trace, expected, strict=True))
    assert same(trace[-1], expected[2])
    assert same(trace.sequence("prompt/1"), expected[1])
    trace.check()


def test_layout_is_the_documented_one(tmp_path: Path) -> None:
    """Catches a change of the format that writer and reader make together; reads with json and safetensors alone."""
    folder = record(tmp_path / "trace", range(1), full=True)
    assert set(contents(folder)) == {".lock", "trace.json", "manifest.jsonl", "000000-prompt-0.safetensors"}
    data = (folder / "000000-prompt-0.safetensors").read_bytes()
    (line,) = (folder / "manifest.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "id": "prompt/0",
        "file": "000000-prompt-0.safetensors",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "prompt_length": 2,
        "num_tokens": 5,
    }
    header = json.loads((folder / "trace.json").read_text())
    assert header["schema_version"] == 1
    assert header["capture_points"] == [1, 2]
    assert header["target"]["config_sha256"] == "ab" * 32
    (length,) = struct.unpack("<Q", data[:8])
    described = json.loads(data[8 : 8 + length])
    assert described.pop("__metadata__") == {"id": "prompt/0"}
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in described.items()} == {
        "tokens": ("I32", [5]),
        "prompt_length": ("I32", []),
        "aux_hidden_states.1": ("BF16", [5, WIDTH]),
        "aux_hidden_states.2": ("BF16", [5, WIDTH]),
        "argmax": ("I32", [5]),
        "topk_ids": ("I32", [5, 3]),
        "topk_logprobs": ("F32", [5, 3]),
        "final_hidden_state": ("BF16", [5, WIDTH]),
    }
    stored = load_file(folder / "000000-prompt-0.safetensors")
    assert stored["tokens"].tolist() == make_sequence(0, True).tokens.tolist()


def test_a_folder_made_without_this_package_reads(tmp_path: Path) -> None:
    """Catches a reader that needs more than the documented layout, or that mixes up two capture points."""
    states = {point: torch.full((3, WIDTH), float(point)) for point in POINTS}
    tensors = {f"aux_hidden_states.{point}": tensor for point, tensor in states.items()}
    tensors |= {"tokens": torch.tensor([7, 8, 9]), "prompt_length": torch.tensor(1)}
    path = tmp_path / "000004-x.safetensors"
    save_file(tensors, path, metadata={"id": "x"})
    line = {"id": "x", "file": path.name, "bytes": path.stat().st_size, "prompt_length": 1, "num_tokens": 3}
    line["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "manifest.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "trace.json").write_text(make_header(dtype="float32").to_json())
    trace = Trace.open(tmp_path)
    trace.check()
    assert trace[0].tokens.tolist() == [7, 8, 9]
    assert {point: float(tensor.mean()) for point, tensor in trace[0].aux_hidden_states.items()} == {1: 1.0, 2: 2.0}


def test_views_of_one_batch_can_be_added(tmp_path: Path) -> None:
    """Catches storing tensors that share memory or are strided, which safetensors refuses."""
    batch = torch.arange(5 * 2 * WIDTH).reshape(5, 2, WIDTH).bfloat16()
    views = {1: batch[:, 0], 2: batch[:, 1]}
    with TraceWriter.open(tmp_path / "trace", make_header()) as trace_writer:
        trace_writer.add(make_sequence(0, aux_hidden_states=views, final_hidden_state=batch[:, 0]))
    assert torch.equal(Trace.open(tmp_path / "trace")[0].aux_hidden_states[2], batch[:, 1])


def test_writing_into_a_loaded_state_leaves_the_file_alone(tmp_path: Path) -> None:
    """Catches a shared memory map, through which an in-place operation of a caller would destroy the recording."""
    trace = Trace.open(record(tmp_path / "trace"))
    trace[0].aux_hidden_states[1].zero_()
    trace.check()


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    """Catches an open that reads gigabytes: same-size damage to a file must go unseen until that file is used."""
    folder = record(tmp_path / "trace")
    path = sequence_file(folder, 1)
    path.write_bytes(b"\xff" * path.stat().st_size)
    trace = Trace.open(folder)
    assert same(trace[0], make_sequence(0))
    refused("reading .*000001.*cannot be read", lambda: trace[1])


# The header


def test_header_survives_json() -> None:
    """Catches a list that stays a list, or a field that to_json forgets."""
    header = make_header(tokenizer_sha256="cd" * 32, sampling=RecordedSampling(0.7, 0.95, 20, 11))
    assert TraceHeader.from_json(header.to_json()) == header


@pytest.mark.parametrize(
    ("where", "key", "value", "match"),
    [
        ("", "schema_version", 2, "schema_version 2.*expected 1"),
        ("", "surprise", 1, "surprise"),
        ("", "engine", None, "engine = None"),
        ("", "capture_points", [2, 1], "ascending"),
        ("", "capture_points", [1, 4], "from 0 to 3"),
        ("", "capture_points", [], "different layers"),
        ("", "capture_points", [True], "capture_points"),
        ("", "dtype", "int8", "dtype 'int8'"),
        ("", "provenance", {"date": 5}, "provenance"),
        ("", "target", "nano", "found a str"),
        ("target", "hidden_size", "7168", "hidden_size = '7168'"),
        ("target", "vocab_size", 0, "positive"),
        ("target", "layers", 3, "layers"),
        ("sampling", "temperature", float("nan"), "temperature nan"),
        ("sampling", "top_p", 0.0, "top_p 0.0"),
    ],
)
def test_bad_headers_are_refused(where: str, key: str, value: object, match: str) -> None:
    """Catches a header that is taken on trust: unknown keys, strings for numbers, layers that do not exist."""
    data = json.loads(make_header().to_json())
    (data[where] if where else data)[key] = value
    refused(match, lambda: TraceHeader.from_json(json.dumps(data)))


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, "null"])
def test_headers_that_are_no_json_object_are_refused(text: str) -> None:
    """Catches a traceback of the json module reaching the user."""
    refused("trace header", lambda: TraceHeader.from_json(text))


# What a sequence must be


def wrong_states(**changes: torch.Tensor) -> RecordedSequence:
    base = make_sequence(0)
    return replace(base, aux_hidden_states={**base.aux_hidden_states, **{int(k[1:]): v for k, v in changes.items()}})


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: make_sequence(0, prompt_length=0), "prompt_length 0 of 5"),
        (lambda: make_sequence(0, prompt_length=5), "prompt_length 5 of 5.*generated"),
        (lambda: make_sequence(0, id=""), "id"),
        (lambda: make_sequence(0, id="\ud800"), "UTF-8"),
        (lambda: make_sequence(0, tokens=torch.zeros(5, dtype=torch.int32)), "int64"),
        (lambda: make_sequence(0, tokens=torch.zeros(1, 5, dtype=torch.int64)), r"\[1, 5\]"),
        (lambda: make_sequence(0, argmax=torch.zeros(4, dtype=torch.int64)), r"argmax .*\[4\].*\[5\]"),
        (lambda: make_sequence(0, topk_ids=torch.zeros(5, 3, dtype=torch.int64)), "topk_logprobs absent"),
        (lambda: wrong_states(_2=torch.zeros(4, WIDTH).bfloat16()), r"aux_hidden_states\[2\].*\[4, 4\].*\[5, any\]"),
        (lambda: wrong_states(_2=torch.zeros(5, WIDTH, dtype=torch.int64)), "float dtype"),
        (lambda: wrong_states(_2=torch.zeros(5, 6).bfloat16()), r"\[2\] 6 wide; expected hidden_size 4"),
        (lambda: wrong_states(_2=torch.zeros(5, WIDTH)), "float32; expected bfloat16"),
        (lambda: wrong_states(_3=torch.zeros(5, WIDTH).bfloat16()), r"\[1, 2, 3\].*expected capture points \[1, 2\]"),
        (lambda: make_sequence(0, tokens=torch.tensor([1, 2, VOCAB, 3, 4])), "id 50 in tokens at position 2.*0 to 49"),
        (lambda: make_sequence(0, argmax=torch.tensor([1, 2, 3, 4, -1])), "id -1 in argmax at position 4"),
    ],
)
def test_bad_sequences_are_refused_before_anything_is_written(
    tmp_path: Path, make: Callable[[], RecordedSequence], match: str
) -> None:
    """Catches a check that is missing on write, or that comes after the file is under its name."""
    with TraceWriter.open(tmp_path / "trace", make_header()) as trace_writer:
        before = contents(tmp_path)
        refused(match, lambda: trace_writer.add(make()))
        assert contents(tmp_path) == before


def test_one_state_as_wide_as_hidden_size_names_the_flag(tmp_path: Path) -> None:
    """Catches the week lost to `--speculative-algorithm EAGLE`: one final state where a concatenation was expected."""
    one = make_sequence(0, aux_hidden_states={1: torch.zeros(5, WIDTH).bfloat16()})
    with TraceWriter.open(tmp_path / "trace", make_header()) as trace_writer:
        message = refused("--speculative-algorithm EAGLE`", lambda: trace_writer.add(one))
    assert "4 wide; expected" in message
    assert "2 x 4 = 8" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["aux_hidden_states[2]", "final_hidden_state"])
def test_states_that_are_not_finite_are_named(tmp_path: Path, value: float, name: str) -> None:
    """Catches NaN that is averaged into an acceptance length; the sequence, the layer and the row must be told."""
    sequence = make_sequence(1, full=True)
    states = sequence.final_hidden_state if name == "final_hidden_state" else sequence.aux_hidden_states[2]
    assert states is not None
    states[3, 1] = states[5, 0] = value
    with TraceWriter.open(tmp_path / "trace", make_header()) as trace_writer:
        match = f"'prompt/1'.*{re.escape(name)}, first at position 3 .2 rows"
        refused(match, lambda: trace_writer.add(sequence))


def test_a_file_that_lies_is_refused_on_read(tmp_path: Path) -> None:
    """Catches checks that are made on write only: width, vocabulary, extra tensors, exchanged files."""
    folder = record(tmp_path / "trace")
    header_text = (folder / "trace.json").read_text()

    def with_header(old: str, new: str) -> Trace:
        assert old in header_text
        (folder / "trace.json").write_text(header_text.replace(old, new))
        return Trace.open(folder)

    refused("4 wide; expected hidden_size 8", lambda: with_header('"hidden_size": 4', '"hidden_size": 8')[0])
    refused("vocab_size 3", lambda: with_header('"vocab_size": 50', '"vocab_size": 3')[0])
    refused("bfloat16; expected float32", lambda: with_header('"bfloat16"', '"float32"')[0])
    refused("aux_hidden_states.3", lambda: with_header("    2\n", "    3\n")[0])
    (folder / "trace.json").write_text(header_text)
    first, fourth = sequence_file(folder, 0), record(tmp_path / "other", range(3, 4)) / "000000-prompt-3.safetensors"
    shutil.copy(fourth, first)
    refused("prompt/3.*prompt/0", lambda: Trace.open(folder)[0])


# Opening a trace


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
    """What a SIGKILL would leave at each line of the writer: all that has gone to the kernel by then."""
    states = set()

    def before_line(frame: FrameType, event: str, _: object) -> object:
        if frame.f_code.co_filename != writer.__file__:
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
