"""GGUF, the format of llama.cpp: recognized, so that people are told what they have; its weights are never read."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.checkpoint.wording import first_few

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
# Bytes of a metadata value by its type: 8, 16, 32 bits, bool, 64 bits; strings and arrays say their own length.
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MOST = 10_000_000  # of anything that is counted: vocabularies have 163,840 entries
_SHOWN = 4


def refuse_gguf(path: str | Path) -> None:
    """Refuse a GGUF file, or a folder that holds GGUF files and no other weights.

    Raises:
        Eagle3RefError: naming the first tensors in it.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        files = [path] if path.is_file() else []
    else:
        files = [] if any(path.glob("*.safetensors")) or any(path.glob("*.bin")) else sorted(path.glob("*.gguf"))
    if files:
        # The first file of a split model may hold metadata alone.
        tensors = next((names for file in files if (names := _first_tensors(file))), ["no tensor that can be named"])
        raise Eagle3RefError(
            f"loading {path}",
            found=f"GGUF in {first_few([file.name for file in files])}: {first_few(tensors)}",
            expected="safetensors and config.json, as Moonshot publishes them",
            action="llama.cpp's quantizations are another model than the one that engines serve; "
            "use Moonshot's own files or a bf16 copy of them.",
        )


def _first_tensors(path: Path) -> list[str]:
    """The first names with their shapes; none when the file is damaged, which is not what to tell people about it."""
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                return []
            _, num_tensors, num_values = _unpack(file, "<IQQ")
            for _ in range(min(num_values, _MOST)):
                _skip(file, _length(file))
                _skip_value(file, _unpack(file, "<I")[0])
            return [_tensor(file) for _ in range(min(num_tensors, _SHOWN))]
    except (OSError, ValueError, struct.error):
        return []


def _tensor(file: BinaryIO) -> str:
    name = file.read(_length(file)).decode()
    (dimensions,) = _unpack(file, "<I")
    shape = _unpack(file, f"<{min(dimensions, 8)}Q")
    _skip(file, 4 + 8)  # type and offset
    return f"{name} {list(shape)}"


def _skip_value(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        _skip(file, _length(file))
    elif kind == _ARRAY:
        (element,) = _unpack(file, "<I")
        length = _length(file)
        if element == _STRING:
            for _ in range(length):
                _skip(file, _length(file))
        else:
            _skip(file, length * _bytes_of(element))
    else:
        _skip(file, _bytes_of(kind))


def _bytes_of(kind: int) -> int:
    if kind not in _VALUE_BYTES:
        raise ValueError(f"a value of type {kind}")
    return _VALUE_BYTES[kind]


def _length(file: BinaryIO) -> int:
    (length,) = _unpack(file, "<Q")
    if length > _MOST:
        raise ValueError(f"a length of {length}")
    return int(length)


def _skip(file: BinaryIO, num_bytes: int) -> None:
    file.seek(num_bytes, 1)


def _unpack(file: BinaryIO, layout: str) -> tuple[int, ...]:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))
