"""The header of a safetensors file: which tensors it holds, and where. No tensor data is read or mapped.

The format: 8 bytes, little-endian, give the length of a JSON object; it names dtype, shape and byte range of each
tensor; the ranges follow one another without hole or overlap to the end of the file. Every one of these promises is
checked, so that a reader can trust an offset and a truncated download is found before the first byte of it is used.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.checkpoint.wording import count, first_few

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library itself
BITS_OF = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_MAX_DIMENSIONS = 8
_MAX_SIZE = 2**63
_GIT_LFS = b"version "
_DOWNLOAD_AGAIN = "Download it again and compare the size and checksum with the source."


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file.

    Args:
        name: as the file has it.
        path: the file.
        dtype: as safetensors spells it, e.g. ``BF16``, ``I32``, ``F8_E4M3``.
        start: its first byte, counted from the start of the file.
        num_bytes: how many bytes it takes there.
    """

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype} {list(self.shape)})"


def read_header(path: Path) -> list[StoredTensor]:
    """Every tensor of a safetensors file, in the order in which they lie in it.

    Raises:
        Eagle3RefError: no such file, a header that is no header, tensors whose dtype, shape and bytes disagree, that
            overlap or leave a hole, or a file that is shorter or longer than its header says.
    """
    if not path.is_file():  # before it is opened: a named pipe would wait for ever
        raise _damaged(path, "no such file" if not path.exists() else "no regular file", "a safetensors file")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = _header_length(path, file.read(8), size)
            text = file.read(length)
        entries = parse_json(text)
    except OSError as error:
        raise _damaged(path, str(error), "a file that can be read") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"a header that is no JSON ({error})", "a safetensors header") from error
    if not isinstance(entries, dict):
        raise _damaged(path, f"a header that is a {type(entries).__name__}", "a JSON object")
    begin = 8 + length
    tensors = [_stored(path, *entry, begin) for entry in entries.items() if entry[0] != "__metadata__"]
    tensors.sort(key=lambda each: (each.start, each.num_bytes))
    _check_ranges(path, tensors, begin, size)
    return tensors


def parse_json(text: bytes) -> Any:
    """JSON in which no key is given twice; Python's own reader would keep the last one silently."""
    return json.loads(text.decode("utf-8"), object_pairs_hook=_without_repeats)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((key, times),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r} is given {times} times")
    return found


def _header_length(path: Path, first: bytes, size: int) -> int:
    if first == _GIT_LFS:
        raise Eagle3RefError(
            f"reading the header of {path}",
            found=f"a Git LFS pointer of {size:,} bytes",
            expected="the weights themselves",
            action="Run git lfs pull in the folder, or download the file from the hub.",
        )
    length = int.from_bytes(first, "little")
    if len(first) < 8 or not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
        raise _damaged(
            path,
            f"a header of {length:,} bytes in a file of {size:,} bytes" if len(first) == 8 else f"{size:,} bytes",
            f"a safetensors header of 2 to {MAX_HEADER_BYTES:,} bytes, whole",
        )
    return length


def _stored(path: Path, name: str, entry: Any, begin: int) -> StoredTensor:
    try:
        dtype, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
        bits = BITS_OF[dtype]
        sizes = (*shape, first, last)
    except (TypeError, KeyError, ValueError) as error:
        expected = 'known "dtype", "shape" and two "data_offsets"'
        raise _damaged(path, f"the entry {entry!r:.200} of {name}", expected) from error
    whole = all(type(each) is int and 0 <= each < _MAX_SIZE for each in sizes)
    if not whole or type(shape) is not list or len(shape) > _MAX_DIMENSIONS:
        found = f"shape {shape!r:.100} and data_offsets {[first, last]!r:.100} of {name}"
        raise _damaged(path, found, f"whole numbers, and at most {_MAX_DIMENSIONS} dimensions")
    needed = math.prod(shape) * bits
    if needed != (last - first) * 8:
        found = f"{last - first:,} bytes for {name}, {dtype} {shape}"
        raise _damaged(path, found, f"{needed / 8:,.12g} bytes")
    return StoredTensor(name, path, dtype, tuple(shape), begin + first, last - first)


def _check_ranges(path: Path, tensors: list[StoredTensor], begin: int, size: int) -> None:
    """Each tensor starts where the one before it ends, and the file ends with the last."""
    end = begin
    for tensor in tensors:
        if tensor.start != end:
            what = "overlaps the tensor before it" if tensor.start < end else "leaves a hole before it"
            raise _damaged(path, f"{tensor.name} at byte {tensor.start:,}: it {what}", f"it at byte {end:,}")
        end += tensor.num_bytes
    if size > end:
        raise _damaged(path, f"{size:,} bytes", f"{end:,} bytes, as its header says")
    if size < end:
        lost = [each.name for each in tensors if each.start + each.num_bytes > size]
        raise _damaged(
            path,
            f"{size:,} bytes, so {count(len(lost), 'tensor')} cut off: {first_few(lost)}",
            f"{end:,} bytes, as its header says",
        )


def _damaged(path: Path, found: str, expected: str) -> Eagle3RefError:
    return Eagle3RefError(f"reading the header of {path}", found=found, expected=expected, action=_DOWNLOAD_AGAIN)
