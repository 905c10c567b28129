"""Reading the files of a dump: tensors and plain containers only, and every damage told with the file's name."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3ref.errors import Eagle3RefError

_GZIP_MAGIC = b"\x1f\x8b"
_PIECE = 1 << 24  # bytes
_MOST_UNPACKED, _FREE_UNPACKED = 100, 1 << 26  # times the packed size, and bytes; real states unpack to twice or so
_AGAIN = "Dump or copy that file again, or leave it out."


def refuse(path: Path, found: str, expected: str, action: str = _AGAIN) -> NoReturn:
    """Raise the error of a file that cannot be used."""
    raise Eagle3RefError(f"reading {path}", found=found, expected=expected, action=action)


def load_pt(path: Path) -> Any:
    """What ``torch.save`` wrote, on the CPU; gzip-packed or not.

    Only tensors and plain containers are unpickled (``weights_only``): a dump cannot run code.

    Raises:
        Eagle3RefError: no such file, one that was cut short, or a pickle of other objects.
    """
    try:
        packed = is_packed(path)
        source = io.BytesIO() if packed else path
        if isinstance(source, io.BytesIO):
            source.writelines(unpacked(path))
            source.seek(0)
        # Mapped where it can be: what is not used is not read. Files from before PyTorch 1.6 are no archives.
        value = torch.load(source, map_location="cpu", weights_only=True, mmap=not packed and zipfile.is_zipfile(path))
    except Eagle3RefError:
        raise
    except Exception as error:  # noqa: BLE001 - torch.load raises whatever the damaged archive provokes
        if "GLOBAL" in str(error):
            action = "Dump it again as a dictionary of tensors; files that need code to be read are never opened."
            refuse(path, f"a pickle of more than tensors ({_blocked(error)})", "tensors and plain containers", action)
        refuse(path, f"a file that torch cannot load ({_said(error)})", "a complete file of torch.save")
    _refuse_repeated(value, path)
    return value


def is_packed(path: Path) -> bool:
    """Whether gzip wrote it."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP_MAGIC


def unpacked(path: Path) -> Iterator[bytes]:
    """The contents of a gzip file, piece by piece.

    Raises:
        Eagle3RefError: far more than hidden states ever unpack to: a file made to fill the memory.
    """
    size, most = 0, _MOST_UNPACKED * path.stat().st_size + _FREE_UNPACKED
    with gzip.open(path, "rb") as file:
        while piece := file.read(_PIECE):
            size += len(piece)
            if size > most:
                refuse(path, f"more than {size:,} bytes in {path.stat().st_size:,}", "hidden states packed by gzip")
            yield piece


def _refuse_repeated(value: Any, path: Path) -> None:
    """A view may claim any number of elements of a storage that has one; the first use would fill the memory."""
    if isinstance(value, Tensor):
        if value.layout == torch.strided and value.nbytes > value.untyped_storage().nbytes():
            action = "Save tensors that were expanded with .contiguous()."
            refuse(path, f"a view of shape {list(value.shape)} that repeats its elements", "tensors as stored", action)
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            _refuse_repeated(item, path)


def load_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file; the values are paged in when they are used.

    Raises:
        Eagle3RefError: no such file, one that was cut short, or something else.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()  # it has no __iter__
            return {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        refuse(path, f"a file that cannot be read ({_said(error)})", "a complete safetensors file")


def load_json(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
        Eagle3RefError: no such file, or one that holds no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        refuse(path, f"no JSON ({_said(error)})", "a complete JSON file")


def fields_of(value: Any, path: Path, keys: tuple[str, ...]) -> Mapping[str, Any]:
    """``value`` if it is a dictionary with these keys.

    Raises:
        Eagle3RefError: it is not.
    """
    if isinstance(value, dict) and all(key in value for key in keys):
        return value
    what = f"the keys {sorted(map(str, value))}" if isinstance(value, dict) else f"a {type(value).__name__}"
    refuse(path, what, f"a dictionary with {', '.join(keys)}")


def tensor_of(fields: Mapping[str, Any], key: str, path: Path, num_dims: int) -> Tensor:
    """A dense tensor of so many dimensions; leading dimensions of 1, which batches of one leave, are taken off.

    Raises:
        Eagle3RefError: something else is there.
    """
    value = fields[key]
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        refuse(path, f"{key} is a {type(value).__name__}", "a dense tensor")
    tensor = value.detach()
    while tensor.dim() > num_dims and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.dim() != num_dims:
        refuse(path, f"{key} of shape {list(value.shape)}", f"{num_dims} dimensions, and batches of one at most")
    return tensor


def ids_of(fields: Mapping[str, Any], key: str, path: Path) -> Tensor:
    """Token ids or a mask, int64 [T].

    Raises:
        Eagle3RefError: not one row of integers.
    """
    ids = tensor_of(fields, key, path, 1)
    if ids.is_floating_point() or ids.is_complex():
        refuse(path, f"{key} in {ids.dtype}", "integers")
    return ids.to(torch.int64)


def _said(error: Exception) -> str:
    """The first sentence: torch goes on for a page."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0].split(". ")[0]


def _blocked(error: Exception) -> str:
    """The global that ``weights_only`` refused."""
    line = next(line for line in str(error).splitlines() if "GLOBAL" in line)
    return line[line.index("GLOBAL") :].split(" was not")[0].split(" whose")[0]
