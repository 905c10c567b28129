"""The trace folder: what is on disk, and which headers and sequences are refused."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from trace_parts import POINTS, VOCAB, WIDTH, contents, make_header, make_sequence, record, refused, same, sequence_file

from eagle3ref.trace import RecordedSampling, RecordedSequence, Trace, TraceHeader, TraceWriter

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
