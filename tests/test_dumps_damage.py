"""Damaged dumps: every bad file is named, with sequence and position, and nothing is written."""

from __future__ import annotations

import gzip
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dump_layouts import modelopt_hf, own, specforge, speculators
from safetensors.torch import load_file, save_file
from tiny import VOCAB, WIDTH, target_folder

import eagle3ref as e3
from eagle3ref.dumps import Dump, DumpedSequence, import_dump, read_dump
from eagle3ref.trace import RecordedSequence

LENGTH, PROMPT = 12, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """config.json and nothing else: damage is found without weights."""
    whole = target_folder(tmp_path_factory.mktemp("damage") / "whole")
    bare = whole.with_name("bare")
    bare.mkdir()
    (bare / "config.json").write_bytes((whole / "config.json").read_bytes())
    return bare


def sequences(number: int = 3) -> list[RecordedSequence]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for i in range(number):
        states = {point: torch.randn(LENGTH, WIDTH, generator=generator) for point in range(8)}
        tokens = torch.randint(VOCAB, (LENGTH,), generator=generator)
        final = torch.randn(LENGTH, WIDTH, generator=generator)
        made.append(RecordedSequence(f"conversation-{i}", tokens, PROMPT, states, final_hidden_state=final))
    return made


def refusal(dump: Any, tmp_path: Path, folder: Path, **settings: Any) -> str:
    with pytest.raises(e3.Eagle3RefError) as caught:
        import_dump(dump, tmp_path / "trace", target=folder, **settings)
    assert not (tmp_path / "trace").exists()
    return str(caught.value)


def with_fields(**changes: Any) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        fields = torch.load(file)
        for key, value in changes.items():
            fields[key] = value(fields[key]) if callable(value) else value
        torch.save(fields, file)

    return damage


def without(key: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        torch.save({name: value for name, value in torch.load(file).items() if name != key}, file)

    return damage


def holed(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def put(states: torch.Tensor) -> torch.Tensor:
        states = states.clone()
        states[..., 7, 5] = value
        return states

    return put


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-2000])


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch ran",))


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut short": (cut, "torch cannot load"),
    "empty": (lambda file: file.write_bytes(b""), "torch cannot load"),
    "text": (lambda file: file.write_text("not yet"), "torch cannot load"),
    "gzip cut short": (lambda file: file.write_bytes(b"\x1f\x8b\x08\x00" + bytes(6)), "torch cannot load"),
    "code in the pickle": (
        lambda file: torch.save({"input_ids": Hostile()}, file),
        "a pickle of more than tensors (GLOBAL posix.system)",
    ),
    "a list": (lambda file: torch.save([1, 2], file), "a list"),
    "no aux states": (without("aux_hidden_state"), "aux_hidden_state"),
    "NaN": (
        with_fields(aux_hidden_state=holed(float("nan"))),
        "NaN or infinity in state_0, first at position 7 (1 rows)",
    ),
    "infinity": (
        with_fields(hidden_state=holed(float("inf"))),
        "NaN or infinity in the final state, first at position 7",
    ),
    "a row missing": (with_fields(aux_hidden_state=lambda states: own(states[:, 1:])), "11 rows of aux_hidden_state"),
    "a row missing everywhere": (
        with_fields(
            aux_hidden_state=lambda states: own(states[:, 1:]),
            hidden_state=lambda states: own(states[:, 1:]),
            loss_mask=lambda mask: own(mask[1:]),
        ),
        "12 rows of input_ids",
    ),
    "another width": (with_fields(hidden_state=lambda states: own(states[..., :-1])), "a multiple of 31"),
    "half the width": (
        with_fields(
            aux_hidden_state=lambda states: own(states[..., : 3 * WIDTH // 2]),
            hidden_state=lambda states: own(states[..., : WIDTH // 2]),
        ),
        "16 wide",
    ),
    "one state": (with_fields(aux_hidden_state=lambda states: own(states[..., :WIDTH])), "1 states (state_0)"),
    "a foreign token": (with_fields(input_ids=lambda ids: ids + VOCAB), "at position 0"),
    "float tokens": (with_fields(input_ids=lambda ids: ids.float()), "input_ids in torch.float32"),
    "no tensor": (with_fields(hidden_state="nothing"), "hidden_state is a str"),
    "three dimensions": (with_fields(hidden_state=lambda states: states.expand(2, -1, -1).clone()), "[2, 12, 32]"),
    "no answer": (with_fields(loss_mask=lambda mask: mask * 0), "where the prompt ends"),
    "another dtype": (
        with_fields(hidden_state=lambda states: states.half(), aux_hidden_state=lambda states: states.half()),
        "states in float16",
    ),
    "integer states": (
        with_fields(aux_hidden_state=lambda s: s.int(), hidden_state=lambda s: s.int()),
        "a float dtype",
    ),
    "two dtypes": (with_fields(hidden_state=lambda states: states.half()), "float16 and float32"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_before_anything_is_written(name, folder, tmp_path, monkeypatch):
    """Catches damage that becomes a trace, a traceback, code that a file runs, and a message that names no file."""
    monkeypatch.chdir(tmp_path)
    dump = specforge(tmp_path / "dump", sequences())
    damage, told = DAMAGE[name]
    damage(dump / "rows_0-2000" / "data_1.ckpt")
    message = refusal(dump, tmp_path, folder)
    assert "1 of 3 sequences that cannot be used: 'rows_0-2000/data_1' (" in message
    assert told in message
    assert "Nothing was written" in message
    assert not (tmp_path / "ran").exists()


def test_damaged_sequences_are_left_out_when_asked(folder, tmp_path):
    """Catches a good sequence lost with a bad one, and a bad one that nobody is told of."""
    dump = specforge(tmp_path / "dump", sequences())
    cut(dump / "rows_0-2000" / "data_0.ckpt")  # the very first: it must not hide the layout of the others
    notes: list[str] = []
    trace = import_dump(dump, tmp_path / "trace", target=folder, skip_damaged=True, on_note=notes.append)
    assert trace.ids == ("rows_0-2000/data_1", "rows_0-2000/data_2")
    assert any("1 of 3 sequences is left out as damaged: 'rows_0-2000/data_0'" in note for note in notes)
    files = sorted((dump / "rows_0-2000").iterdir())
    for file in files:
        file.write_bytes(b"")
    message = refusal(dump, tmp_path / "all", folder, skip_damaged=True)
    assert "no file that can be used; of the first, a file that torch cannot load" in message
    torch.save({"input_ids": torch.zeros(3), "hidden_state": torch.zeros(3, 4)}, files[0])  # an EAGLE-1 dump
    assert "the keys ['hidden_state', 'input_ids']" in refusal(dump, tmp_path / "all", folder)


@pytest.mark.parametrize("missing", [1, 5])
def test_missing_rows_are_named_by_position(missing, folder, tmp_path):
    """Catches a cached prefix, and rows lost at the end, taken for a shorter sequence."""
    whole = sequences(1)[0]
    states = {"a": whole.aux_hidden_states[2]}
    for rows, first_row, told in (
        (slice(missing, None), missing, f"rows of positions {missing} to 11 only, of 12 tokens"),
        (slice(0, -1 - missing), 0, f"{11 - missing} rows for 12 tokens"),
    ):
        part = DumpedSequence("one", whole.tokens, PROMPT, {"a": states["a"][rows]}, first_row)
        dump = Dump(tmp_path, "made", ("one",), lambda _, part=part: part, (2,), "said so")
        message = refusal(dump, tmp_path, folder)
        assert "'one'" in message
        assert told in message


def test_safetensors_damage_is_named(folder, tmp_path):
    """Catches a half-written file, and a header that claims more than the file or the memory holds."""
    dump = speculators(tmp_path / "dump", sequences())
    prompts = [e3.Prompt(f"hs_{i}", each.tokens[:PROMPT]) for i, each in enumerate(sequences())]
    file = dump / "hs_2.safetensors"
    good = file.read_bytes()
    header = b'{"hidden_states":{"dtype":"F32","shape":[4000000000,4,7168],"data_offsets":[0,458752000000000]}}'
    for bad in (good[:-1], good[:4], struct.pack("<Q", 2**62) + b"{}", struct.pack("<Q", len(header)) + header):
        file.write_bytes(bad)
        message = refusal(dump, tmp_path, folder, prompts=prompts)
        assert "'hs_2' (a file that cannot be read" in message
    file.write_bytes(good)
    fields = load_file(file)
    save_file({**fields, "token_ids": own(fields["token_ids"][:-1])}, file)
    assert "11 rows of token_ids, 12 rows of hidden_states" in refusal(dump, tmp_path, folder, prompts=prompts)
    file.unlink()
    file.symlink_to(tmp_path / "gone")
    assert "No such file" in refusal(dump, tmp_path, folder, prompts=prompts)
    file.unlink()
    assert len(import_dump(dump, tmp_path / "trace", target=folder, prompts=prompts)) == 2


def test_two_files_of_one_id_are_refused(folder, tmp_path):
    """Catches a packed and a plain file of one sequence, of which one would be taken at random."""
    dump = specforge(tmp_path / "dump", sequences(1))
    specforge(dump, sequences(1), packed=True)
    assert "data_0.ckpt and data_0.ckpt.gz" in refusal(dump, tmp_path, folder)


def test_files_come_in_natural_order(tmp_path):
    """Catches data_10 before data_2: prompts given by position would go to the wrong sequence."""
    dump = specforge(tmp_path / "dump", sequences(1))
    file = dump / "rows_0-2000" / "data_0.ckpt"
    for i in (10, 2, 1):
        file.with_name(f"data_{i}.ckpt").write_bytes(file.read_bytes())
    assert [name.split("_")[-1] for name in read_dump(dump).ids] == ["0", "1", "2", "10"]


def test_import_goes_on_and_refuses_another_dump(folder, tmp_path):
    """Catches an import that begins anew, doubles a sequence, or mixes two dumps under one id."""
    dump = modelopt_hf(tmp_path / "dump", sequences())
    late = dump / "conversation-2.pt"
    kept = late.read_bytes()
    late.unlink()
    assert len(import_dump(dump, tmp_path / "trace", target=folder)) == 2
    late.write_bytes(kept)
    added: list[str] = []
    trace = import_dump(dump, tmp_path / "trace", target=folder, on_sequence=lambda sequence: added.append(sequence.id))
    assert added == ["conversation-2"]
    assert len(trace) == 3
    other = [replace(each, tokens=(each.tokens + 1) % VOCAB) for each in sequences()]
    with pytest.raises(e3.Eagle3RefError, match="other tokens under this id"):
        import_dump(modelopt_hf(tmp_path / "other", other), tmp_path / "trace", target=folder)
    for settings, told in (
        ({"capture_points": (4, 3, 2)}, "other states at capture point 2"),  # the header has them ascending
        ({"final_state": "normed"}, "other settings for the final state"),
    ):
        with pytest.raises(e3.Eagle3RefError, match=told):
            import_dump(dump, tmp_path / "trace", target=folder, **settings)
    with pytest.raises(e3.Eagle3RefError, match="another header: capture_points"):
        import_dump(dump, tmp_path / "trace", target=folder, capture_points=(1, 2, 3))


def test_files_made_to_fill_the_memory_are_refused(folder, tmp_path, monkeypatch):
    """Catches a gzip file of zeros unpacked to the end, and a view of one number used as a million."""
    monkeypatch.setattr("eagle3ref.dumps.files._FREE_UNPACKED", 1 << 20)  # of 64 MiB, which take long to pack
    for name, head in (("bomb.ckpt.gz", b""), ("bomb.jsonl.gz", b'{"meta_info": {"hidden_states": [[')):
        with gzip.open(tmp_path / name, "wb", compresslevel=1) as file:
            file.write(head + b"0," * (1 << 22))
        assert (tmp_path / name).stat().st_size < 1 << 16
        with pytest.raises(e3.Eagle3RefError, match="more than .* bytes in"):
            read_dump(tmp_path / name, target=folder).sequence("bomb")
    view = torch.ones(1, 1).expand(1 << 20, 1 << 20)
    torch.save({"input_ids": torch.arange(4), "x": view}, tmp_path / "view.pt")
    with pytest.raises(e3.Eagle3RefError, match="repeats its elements"):
        read_dump(tmp_path / "view.pt", format="named").sequence("view")


_IMPORT = """
import sys
from eagle3ref.dumps import import_dump
import_dump(sys.argv[1], sys.argv[2], target=sys.argv[3])
"""


@pytest.mark.slow
def test_killed_import_resumes_to_the_same_bytes(folder, tmp_path):
    """Catches a sequence lost, doubled or half written by kill -9."""
    dump = specforge(tmp_path / "dump", sequences(60))
    whole = import_dump(dump, tmp_path / "whole", target=folder)
    command = [sys.executable, "-c", _IMPORT, str(dump), str(tmp_path / "killed"), str(folder)]
    for wait in (0.0, 0.05):
        process = subprocess.Popen(command)
        manifest = tmp_path / "killed" / "manifest.jsonl"
        while process.poll() is None and not (manifest.exists() and manifest.stat().st_size):
            time.sleep(0.002)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
    trace = import_dump(dump, tmp_path / "killed", target=folder)
    assert trace.ids == whole.ids
    for entry in whole.entries:
        assert (trace.path / entry.file).read_bytes() == (whole.path / entry.file).read_bytes()


_MEASURE = """
import resource, sys
from eagle3ref.dumps import import_dump
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seen, peaks = [], []
def checked(name):
    seen.append(name)
    if len(seen) == 200: peaks.append(peak())
import_dump(sys.argv[1], sys.argv[2], target=sys.argv[3], on_checked=checked, skip_damaged=True)
print(peak() - peaks[0])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_files(folder, tmp_path):
    """Catches a reader that keeps what it has read, or the frames of every error: 10,000 files, 400 of them whole."""
    dump = specforge(tmp_path / "dump", sequences(1))
    file = dump / "rows_0-2000" / "data_0.ckpt"
    for i in range(1, 10_000):
        other = file.with_name(f"data_{i}.ckpt")
        other.hardlink_to(file) if i < 400 else other.touch()
    command = [sys.executable, "-c", _MEASURE, str(dump), str(tmp_path / "trace"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30_000  # kilobytes: the names, and what is said of each damaged file
