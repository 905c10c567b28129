"""How a weight is stored: as it is, as packed INT4, or as FP8 in blocks. The names of the tensors decide, each time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from eagle3ref.target.checkpoint.header import StoredTensor
from eagle3ref.target.checkpoint.layout import Shape
from eagle3ref.target.fp8 import FP8_BLOCK
from eagle3ref.target.int4 import GROUP_SIZE

Kind = Literal["plain", "int4", "fp8_block"]

_FLOATS = ("BF16", "F16", "F32")
_FP8 = "F8_E4M3"


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """One parameter of the model and the tensors it is made of.

    Args:
        name: of the parameter in the checkpoint, ending in ``.weight`` or ``.e_score_correction_bias``.
        shape: of the parameter, [out, in] or [size].
        kind: ``plain`` (bf16, fp16 or fp32), ``int4`` (Moonshot's packing) or ``fp8_block`` (128 x 128 blocks).
        parts: (weight), (packed, scale, shape) or (weight, scale).
    """

    name: str
    shape: Shape
    kind: Kind
    parts: tuple[StoredTensor, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes on disk, scales included."""
        return sum(part.num_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    dtypes: tuple[str, ...]
    shape: Shape


class WeightFinder:
    """Finds the tensors of one weight after the other, and remembers what does not fit.

    Args:
        tensors: of the checkpoint, by name.

    ``problems`` has a sentence for each fault; ``used`` the names that some weight is made of.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self._tensors = tensors
        self.problems: list[str] = []
        self.used: set[str] = set()

    def find(self, name: str, shape: Shape) -> StoredWeight:
        """The weight of that name. After a problem its parts may be incomplete: look at ``problems`` first."""
        kind, wanted = self._parts(name, shape)
        found = tuple(tensor for part in wanted if (tensor := self._take(part)) is not None)
        return StoredWeight(name, shape, kind, found)

    def _parts(self, name: str, shape: Shape) -> tuple[Kind, tuple[_Part, ...]]:
        plain = self._tensors.get(name)
        if "_proj" not in name:  # embedding, head, router and norms are quantized in none of the formats that are read
            return "plain", (_Part(name, _FLOATS, shape),)
        rows, columns = shape
        packed = (
            _Part(f"{name}_packed", ("I32",), (rows, columns // 8)),
            _Part(f"{name}_scale", ("BF16",), (rows, columns // GROUP_SIZE)),
            _Part(f"{name}_shape", ("I32", "I64"), (2,)),
        )
        if packed[0].name in self._tensors or (plain is None and any(part.name in self._tensors for part in packed)):
            if plain is not None:
                self.used.add(name)
                self.problems.append(f"both {name} and {packed[0].name}")
            if columns % GROUP_SIZE:
                self.problems.append(f"{name} is INT4, although {columns} columns are not whole groups of {GROUP_SIZE}")
            return "int4", packed
        if plain is not None and plain.dtype == _FP8:
            blocks = (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
            return "fp8_block", (_Part(name, (_FP8,), shape), _Part(f"{name}_scale_inv", ("F32",), blocks))
        return "plain", (_Part(name, _FLOATS, shape),)

    def _take(self, part: _Part) -> StoredTensor | None:
        tensor = self._tensors.get(part.name)
        self.used.add(part.name)
        if tensor is None:
            self.problems.append(f"no tensor {part.name}")
        elif tensor.dtype not in part.dtypes or tensor.shape != part.shape:
            dtype = tensor.dtype if tensor.dtype in part.dtypes else " or ".join(part.dtypes)
            expected = f"{dtype} {list(part.shape)}"
            self.problems.append(f"{tensor.name} is {tensor.dtype} {list(tensor.shape)}, not {expected}")
        return tensor
