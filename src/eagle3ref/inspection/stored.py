"""The tensors of a draft by plain name, a block of rows at a time: a head is 163,840 x 7,168."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle3ref.config.json_fields import JsonFields
from eagle3ref.draft.quantized import dequantize
from eagle3ref.weights import Weights

# Elements of a block: 4 MiB in fp32, whatever the size of the tensor.
BLOCK_ELEMENTS = 1 << 20
_SCALES = (".weight_scale", ".weight_scale_inv")


@dataclass(frozen=True)
class StoredDraft:
    """Weights as the file has them, mapped rather than read; 8-bit weights are scaled back one tensor at a time.

    Args:
        weights: of the draft.
        names: plain name -> stored name.
        config: config.json, for the block size of 8-bit weights.
    """

    weights: Weights
    names: dict[str, str]
    config: JsonFields
    _scaled: dict[str, Tensor] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def raw(self, name: str) -> Tensor:
        """A tensor in the dtype that it is stored in."""
        return self.weights.read(self.names[name])

    def tensor(self, name: str) -> Tensor:
        """A tensor with its scale applied.

        Raises:
            Eagle3RefError: an 8-bit weight without a usable scale, or packed weights.
        """
        if name not in self._scaled:
            related = (name, *(name.removesuffix(".weight") + suffix for suffix in _SCALES))
            parts = {part: self.raw(part) for part in related if part in self}
            self._scaled[name] = dequantize(parts, self.config, str(self.weights.folder))[0][name]
        return self._scaled[name]

    def floats(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of a float dtype, as stored, in the order of their names."""
        for name in sorted(self.names):
            tensor = self.raw(name)
            if tensor.is_floating_point():
                yield name, tensor

    def matrices(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight matrix, scaled back."""
        for name in sorted(self.names):
            if name.endswith(".weight") and len(self.weights.shape(self.names[name])) == 2:
                yield name, self.tensor(name)


def blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors [N, ...] of one length, cut into the same rows, so that a block's work fits into the memory."""
    width = max(tensor[0].numel() for tensor in tensors) if len(tensors[0]) else 1
    for start in range(0, len(tensors[0]), rows := max(1, BLOCK_ELEMENTS // max(1, width))):
        yield tuple(tensor[start : start + rows] for tensor in tensors)


def by_row(matrix: Tensor, measure: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
    """[N], what ``measure`` makes of each row of a matrix [N, C], given a block of them.

    Filled in place: small results kept between large blocks would leave the heap in pieces.
    """
    found = torch.empty(len(matrix), dtype=dtype)
    for rows, places in blocks(matrix, found):
        places.copy_(measure(rows))
    return found


def wide(tensor: Tensor) -> Tensor:
    """A block in fp32; 8-bit floats know neither isfinite nor any."""
    return tensor.to(torch.float32)


def value_range(tensor: Tensor) -> tuple[float, float]:
    """Least and greatest value of a tensor; NaN in it makes both NaN."""
    if tensor.element_size() == 1:  # 8-bit floats have no order in torch
        ends = [wide(block).aminmax() for (block,) in blocks(tensor)]
        lows, highs = (torch.stack(column) for column in zip(*ends, strict=True))
        return float(lows.min()), float(highs.max())
    low, high = tensor.aminmax()
    return float(low), float(high)
