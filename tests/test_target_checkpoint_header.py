"""The header reader against the safetensors library, and against files that are damaged or hostile."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.checkpoint import Shards, read_tensor
from eagle3ref.target.checkpoint.header import MAX_HEADER_BYTES, read_header

TENSORS = {
    "words": torch.arange(12, dtype=torch.int32).view(3, 4),
    "scale": torch.linspace(-2, 2, 6, dtype=torch.bfloat16).view(3, 2),
    "shape": torch.tensor([3, 32]),
    "fp8": torch.tensor([[1.5, -2.0, 448.0]]).to(torch.float8_e4m3fn),
    "scalar": torch.tensor(3.25),
    "empty": torch.zeros(0, 7, dtype=torch.float16).float(),
}


def written(path: Path, header: object, data: int = 16) -> Path:
    """A file with this header, JSON or raw bytes, and so many bytes of data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
    return path


def entry(dtype: object = "F32", shape: object = (4,), offsets: object = (0, 16)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_places_are_those_of_the_library(tmp_path):
    """Catches an offset that forgets the header, another dtype, a shape that is lost, a scalar that is 1-D."""
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    tensors = Shards.open(tmp_path).tensors
    assert set(tensors) == set(TENSORS)
    for name, expected in TENSORS.items():
        found = read_tensor(tensors[name])
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert torch.equal(found.view(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_header_with_bytes_changed_is_refused_or_means_what_the_library_says(data):
    """Catches any damage that passes: what is accepted here, safetensors accepts too, with the same tensors."""
    content = bytearray(save({name: TENSORS[name] for name in ("words", "scale", "scalar")}))
    header = int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, 8 + header - 1))
        content[place] = data.draw(st.sampled_from(b'0123456789[]{},:"BFI\x00 \xff'))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(content)
        try:
            found = {each.name: each.shape for each in read_header(path)}
        except Eagle3RefError:
            return
        try:
            with safe_open(path, framework="pt") as file:
                names = file.keys()
                assert {name: tuple(file.get_slice(name).get_shape()) for name in names} == found
        except SafetensorError as error:
            raise AssertionError(f"accepted, but the library says {error}") from error


DAMAGE: dict[str, tuple[object, int, str]] = {
    "overlap": ({"a": entry(), "b": entry(offsets=(8, 24))}, 24, "b at byte .*overlaps"),
    "hole": ({"a": entry(), "b": entry(offsets=(20, 36))}, 36, "b at byte .*leaves a hole"),
    "hole at the start": ({"a": entry(offsets=(4, 20))}, 20, "a at byte .*leaves a hole"),
    "data behind the last tensor": ({"a": entry()}, 17, r"expected \d+ bytes, as its header says"),
    "a name twice": (b'{"a": {}, "a": {}}', 0, "the key 'a' is given 2 times"),
    "a dtype twice": (b'{"a": {"dtype": "F32", "dtype": "F32"}}', 0, "the key 'dtype' is given 2 times"),
    "bytes that do not fit the shape": ({"a": entry(shape=(5,))}, 16, r"16 bytes for a, F32 \[5\]; expected 20 bytes"),
    "bytes that do not fit the dtype": ({"a": entry("BF16")}, 16, "expected 8 bytes"),
    "a product that overflows 64 bits": ({"a": entry(shape=(2**32, 2**32))}, 16, "16 bytes for a"),
    "a size beyond 64 bits": ({"a": entry(shape=(2**64,))}, 16, "whole numbers"),
    "very many dimensions": ({"a": entry(shape=[1] * 9 + [4])}, 16, "at most 8 dimensions"),
    "a negative size": ({"a": entry(shape=(-4,))}, 16, "whole numbers"),
    "a size that is not whole": ({"a": entry(shape=(4.0,))}, 16, "whole numbers"),
    "a size that is true": ({"a": entry(shape=(4, True))}, 16, "whole numbers"),
    "offsets the wrong way round": ({"a": entry(offsets=(16, 0))}, 16, "-16 bytes for a"),
    "three offsets": ({"a": entry(offsets=(0, 16, 32))}, 16, 'two "data_offsets"'),
    "an unknown dtype": ({"a": entry("F33")}, 16, 'known "dtype"'),
    "a dtype that is a list": ({"a": entry(["F32"])}, 16, 'known "dtype"'),
    "a shape that is a word": ({"a": entry(shape="4")}, 16, "whole numbers"),
    "a shape that is an object": ({"a": entry(shape={}, offsets=(0, 4))}, 4, "whole numbers"),
    "an entry that is a number": ({"a": 4}, 16, "the entry 4 of a"),
    "a list": ([1, 2], 0, "a header that is a list"),
    "no JSON": (b"{nonsense", 0, "no JSON"),
    "no text": (b"\xff\xfe\xff", 0, "no JSON"),
    "brackets without end": (b"[" * 100_000, 0, "no JSON"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_header_is_refused(damage, tmp_path):
    """Catches a promise of the format that nobody checks: an offset would then point into another tensor."""
    header, data, found = DAMAGE[damage]
    path = written(tmp_path / "x.safetensors", header, data)
    with pytest.raises(Eagle3RefError, match=rf"reading the header of .*x\.safetensors: found .*{found}"):
        read_header(path)


@pytest.mark.parametrize("length", [2**63, MAX_HEADER_BYTES + 1, 93, 0, 1])
def test_a_header_length_that_cannot_be_is_refused_before_memory_is_taken(length, tmp_path):
    """Catches an allocation of whatever the first eight bytes say."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b" " * 92)
    with pytest.raises(Eagle3RefError, match=rf"a header of {length:,} bytes in a file of 100 bytes"):
        read_header(path)


def test_a_huge_header_in_a_huge_file_is_refused(tmp_path):
    """Catches a limit that only the size of the file sets: this one is sparse and says 200 MB of header."""
    path = tmp_path / "x.safetensors"
    path.write_bytes((200_000_000).to_bytes(8, "little"))
    os.truncate(path, 10**12)
    with pytest.raises(Eagle3RefError, match="a header of 200,000,000 bytes in a file of 1,000,000,000,000 bytes"):
        read_header(path)


@pytest.mark.parametrize("kept", [0, 5, 8, 40])
def test_a_file_that_ends_inside_its_header_is_refused(kept, tmp_path):
    """Catches a short read that is taken for a short header."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(save(TENSORS)[:kept])
    with pytest.raises(Eagle3RefError, match=rf"{kept} bytes"):
        read_header(path)


def test_a_truncated_file_names_both_sizes_and_what_is_lost(tmp_path):
    """Catches a half-finished download that is found when its last layer is read, hours later."""
    path = written(
        tmp_path / "x.safetensors", {n: entry(offsets=(i * 16, i * 16 + 16)) for i, n in enumerate("abcde")}, 80
    )
    size = path.stat().st_size
    os.truncate(path, size - 33)
    with pytest.raises(Eagle3RefError) as caught:
        read_header(path)
    assert f"found {size - 33:,} bytes, so 3 tensors cut off: c, d, e; expected {size:,} bytes" in str(caught.value)


def test_a_git_lfs_pointer_is_called_one(tmp_path):
    """Catches the commonest broken clone told as a header of 2 million terabytes."""
    path = tmp_path / "x.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n")
    with pytest.raises(Eagle3RefError, match="Git LFS pointer.*git lfs pull"):
        read_header(path)


def test_a_pipe_or_folder_is_no_file(tmp_path):
    """Catches an open that waits for ever."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(Eagle3RefError, match="no regular file"):
            read_header(path)


def test_a_file_that_shrinks_after_it_was_opened_is_named(tmp_path):
    """Catches a tensor filled up with whatever memory held."""
    save_file({"a": torch.ones(100)}, tmp_path / "model.safetensors")
    tensor = Shards.open(tmp_path).tensors["a"]
    os.truncate(tensor.path, tensor.start + 123)
    with pytest.raises(Eagle3RefError, match=r"reading a from .*found 123 bytes; expected 400 bytes"):
        read_tensor(tensor)
    tensor.path.unlink()
    with pytest.raises(Eagle3RefError, match="No such file"):
        read_tensor(tensor)
