"""The tensors of a checkpoint folder by name, whatever files they lie in."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3ref.errors import Eagle3RefError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
PICKLE_NAME = "pytorch_model.bin"
PICKLE_INDEX_NAME = "pytorch_model.bin.index.json"


class Weights:
    """Reads tensors lazily from ``model.safetensors`` or ``pytorch_model.bin``, whole or in shards with an index.

    Args:
        folder: the checkpoint folder.
        only: names of tensors; of shards, those without any of them need not be there. All when None.

    Raises:
        Eagle3RefError: no weights there, a damaged or truncated file, or an index that names a missing file.
    """

    def __init__(self, folder: str | Path, only: Collection[str] | None = None) -> None:
        self.folder, self._only = Path(folder), only
        self._pickled: dict[str, Tensor] = {}
        self._file_of: dict[str, Path] = {}
        self._opened: dict[Path, safe_open] = {}
        if (self.folder / INDEX_NAME).exists():
            self._file_of = self._indexed(INDEX_NAME, self._names_in)
        elif (self.folder / SINGLE_NAME).exists():
            path = self.folder / SINGLE_NAME
            self._file_of = dict.fromkeys(self._names_in(path), path)
        elif (self.folder / PICKLE_INDEX_NAME).exists():
            listed = self._indexed(PICKLE_INDEX_NAME, self._names_in_pickle)
            self._pickled = {name: self._pickled[name] for name in listed}
        elif (self.folder / PICKLE_NAME).exists():
            self._names_in_pickle(self.folder / PICKLE_NAME)
        else:
            raise Eagle3RefError(
                f"opening the weights of {self.folder}",
                found="no weight file",
                expected=f"{SINGLE_NAME} or {PICKLE_NAME}, or shards with {INDEX_NAME} or {PICKLE_INDEX_NAME}",
                action="Give the folder that holds config.json and the weights.",
            )

    @property
    def names(self) -> set[str]:
        """Every tensor name, as written in the files."""
        return set(self._file_of) | set(self._pickled)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of or name in self._pickled

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, from the file's header."""
        if name in self._pickled:
            return tuple(self._pickled[name].shape)
        return tuple(self._file(self._find(name)).get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """Stored dtype as the file's header spells it, e.g. ``BF16`` (safetensors) or ``bfloat16`` (pickle)."""
        if name in self._pickled:
            return str(self._pickled[name].dtype).removeprefix("torch.")
        return str(self._file(self._find(name)).get_slice(name).get_dtype())

    def read(self, name: str) -> Tensor:
        """One tensor, in the dtype that it is stored in.

        Raises:
            Eagle3RefError: no tensor of that name, or its file is damaged.
        """
        if name in self._pickled:
            return self._pickled[name]
        path = self._find(name)
        try:
            tensor: Tensor = self._file(path).get_tensor(name)
        except SafetensorError as error:
            raise _damaged(path, str(error)) from error
        return tensor

    def _find(self, name: str) -> Path:
        if name not in self._file_of:
            raise Eagle3RefError(
                f"reading the weights of {self.folder}",
                found=f"no tensor {name}",
                expected=f"it among the {len(self.names)} tensors there",
                action="Check that the checkpoint is complete and of the kind that config.json says.",
            )
        return self._file_of[name]

    def _indexed(self, index: str, names_in: Callable[[Path], set[str]]) -> dict[str, Path]:
        """The file of each tensor, as the index says and the files bear out."""
        path = self.folder / index
        try:
            weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
            # One path for each file, not for each of the 208,215 tensors of a large target.
            if self._only is not None:
                weight_map = {name: weight_map[name] for name in self._only if name in weight_map}
            paths = {file: self.folder / Path(file).name for file in set(weight_map.values())}
            file_of = {name: paths[file] for name, file in weight_map.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _damaged(path, f"no weight_map in it ({error})") from error
        stored = {file: names_in(file) for file in sorted(set(paths.values()))}
        missing = next((name for name, file in file_of.items() if name not in stored[file]), None)
        if missing is not None:
            raise _damaged(file_of[missing], f"{missing} is not in it, although the index says so")
        return file_of

    def _names_in_pickle(self, path: Path) -> set[str]:
        """Also maps its tensors: a pickle cannot be read in part."""
        tensors = _load_pickle(path)
        self._pickled.update(tensors)
        return set(tensors)

    def _names_in(self, path: Path) -> set[str]:
        return set(self._file(path).keys())

    def _file(self, path: Path) -> safe_open:
        """An open, memory-mapped file; its header is parsed once."""
        if path not in self._opened:
            try:
                self._opened[path] = safe_open(path, framework="pt").__enter__()
            except (SafetensorError, OSError) as error:
                raise _damaged(path, str(error)) from error
        return self._opened[path]


def _load_pickle(path: Path) -> dict[str, Tensor]:
    """Tensors only: ``weights_only`` refuses any other object, so a hostile pickle cannot run code."""
    try:
        # Files from before PyTorch 1.6 are no archives and cannot be mapped.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # noqa: BLE001 - torch.load raises whatever the damaged archive provokes
        raise _damaged(path, str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    if not isinstance(state, dict) or not all(_is_named_tensor(*item) for item in state.items()):
        raise _damaged(path, "something else than a dictionary of dense tensors by name")
    return state


def _is_named_tensor(name: object, value: object) -> bool:
    return isinstance(name, str) and isinstance(value, Tensor) and value.layout == torch.strided


def _damaged(path: Path, what: str) -> Eagle3RefError:
    size = f"{path.stat().st_size:,} bytes" if path.exists() else "no such file"
    return Eagle3RefError(
        f"opening {path}",
        found=f"{what} ({size})",
        expected="a complete file",
        action="Download it again and compare the size and checksum with the source.",
    )
