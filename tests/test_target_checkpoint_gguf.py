"""GGUF files are recognized and refused by the names of their tensors, whatever state they are in."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli import run

from eagle3ref.errors import Eagle3RefError
from eagle3ref.inspection import inspect_path
from eagle3ref.target import load_target
from eagle3ref.target.checkpoint import refuse_gguf
from eagle3ref.target.checkpoint.gguf import _first_tensors


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


# A value of every kind that GGUF has: key, type, bytes.
VALUES = [
    text("general.architecture") + struct.pack("<I", 8) + text("deepseek2"),
    text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("") + text("ccc"),
    text("tokenizer.ggml.scores") + struct.pack("<IIQ3f", 9, 6, 3, 1.0, 2.0, 3.0),
    text("u8") + struct.pack("<IB", 0, 7),
    text("i8") + struct.pack("<Ib", 1, -7),
    text("u16") + struct.pack("<IH", 2, 7),
    text("i16") + struct.pack("<Ih", 3, 7),
    text("u32") + struct.pack("<II", 4, 7),
    text("i32") + struct.pack("<Ii", 5, 7),
    text("f32") + struct.pack("<If", 6, 7.0),
    text("bool") + struct.pack("<I?", 7, True),
    text("u64") + struct.pack("<IQ", 10, 7),
    text("i64") + struct.pack("<Iq", 11, 7),
    text("f64") + struct.pack("<Id", 12, 7.0),
]
NAMES = [f"blk.{i}.ffn_gate_exps.weight" for i in range(6)]


def gguf(names: list[str], values: list[bytes] = VALUES) -> bytes:
    tensors = b"".join(text(name) + struct.pack("<I3QIQ", 3, 7168, 2048, 384, 12, 0) for name in names)
    return b"GGUF" + struct.pack("<IQQ", 3, len(names), len(values)) + b"".join(values) + tensors


def test_the_first_tensors_are_named(tmp_path):
    """Catches a value of some kind that is skipped by too few bytes, after which every name is garbage."""
    path = tmp_path / "Kimi-K2.5-Q4_K_M.gguf"
    path.write_bytes(gguf(NAMES))
    with pytest.raises(Eagle3RefError, match="found GGUF"):
        load_target(path)
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "tokens": [1]}')
    found = run("capture", tmp_path, tmp_path / "prompts.jsonl", "-o", tmp_path / "trace")
    assert found.exit_code == 2
    assert "GGUF in Kimi-K2.5-Q4_K_M.gguf" in found.stderr
    for read in (load_target, inspect_path, inspect_path):
        with pytest.raises(Eagle3RefError) as caught:
            read(tmp_path)
        (tmp_path / "config.json").write_text("{}")  # as some repositories have it beside
        assert f"found GGUF in {path.name}: " in str(caught.value)
        assert ", ".join(f"{name} [7168, 2048, 384]" for name in NAMES[:3]) in str(caught.value)
        assert "use Moonshot's own files or a bf16 copy" in str(caught.value)


def test_a_split_model_whose_first_file_has_no_tensors(tmp_path):
    """Catches "no tensor" said of a model of 300 GB, because its first part is metadata."""
    (tmp_path / "K2-00001-of-00002.gguf").write_bytes(gguf([]))
    (tmp_path / "K2-00002-of-00002.gguf").write_bytes(gguf(NAMES[:1], []))
    with pytest.raises(Eagle3RefError, match=r"K2-00002-of-00002\.gguf: blk\.0\.ffn_gate_exps\.weight"):
        refuse_gguf(tmp_path)


def test_gguf_beside_safetensors_is_passed_over(tmp_path):
    """Catches a sound checkpoint refused for a file that somebody put next to it."""
    (tmp_path / "K2.gguf").write_bytes(gguf(NAMES))
    (tmp_path / "model.safetensors").touch()
    refuse_gguf(tmp_path)
    refuse_gguf(tmp_path / "no such folder")
    refuse_gguf(tmp_path / "no such file.gguf")


HOSTILE = {
    "nothing": b"",
    "another file": b"PK\x03\x04" + bytes(100),
    "cut off": gguf(NAMES)[:60],
    "a length beyond the file": b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 2**62),
    "endless values": b"GGUF" + struct.pack("<IQQ", 3, 1, 2**63),
    "an unknown kind": gguf(NAMES, [text("x") + struct.pack("<I", 99)]),
    "arrays of arrays": gguf(NAMES, [text("x") + struct.pack("<IIQ", 9, 9, 1)]),
    "a name that is no text": gguf(NAMES).replace(b"blk.0.", b"\xff\xfe\xff\xfe.."),
    "very many dimensions": gguf([]).replace(struct.pack("<Q", 0), struct.pack("<Q", 1), 1)
    + text("x")
    + struct.pack("<I", 2**31),
}


@pytest.mark.parametrize("damage", HOSTILE)
def test_a_damaged_gguf_is_still_called_one(damage, tmp_path):
    """Catches a traceback, or an allocation of whatever the file says, from a file that would be refused anyway."""
    (tmp_path / "x.gguf").write_bytes(HOSTILE[damage])
    with pytest.raises(Eagle3RefError, match=r"GGUF in x\.gguf: no tensor that can be named"):
        refuse_gguf(tmp_path)


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, len(gguf(NAMES)) - 1), value=st.integers(0, 255))
def test_a_changed_byte_raises_nothing(place, value, tmp_path_factory):
    """Catches an exception that one of the many lengths and kinds can provoke."""
    content = bytearray(gguf(NAMES))
    content[place] = value
    path: Path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(content)
    assert isinstance(_first_tensors(path), list)
