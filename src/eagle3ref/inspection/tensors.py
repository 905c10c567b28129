"""What a checkpoint stores, by the headers of its files; no tensor is read."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from eagle3ref.weights import Weights

_INT4_PER_INT32 = 8


@dataclass(frozen=True)
class TensorGroup:
    """Tensors whose names differ only in numbers, of one shape and dtype.

    Args:
        name: with every number (layer, expert) as ``*``.
        count: how many there are.
        shape: of each.
        dtype: as stored.
        num_bytes: of all of them.
        num_parameters: of all of them. Packed INT4 counts its weights; scales, shapes and vocabulary maps are none.
    """

    name: str
    count: int
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    num_parameters: int


def tensor_groups(weights: Weights) -> tuple[TensorGroup, ...]:
    """All tensors of a checkpoint, grouped, in the order of their names."""
    groups: dict[tuple[str, tuple[int, ...], str], TensorGroup] = {}
    for name in sorted(weights.names):
        group = _group_of_one(name, weights.shape(name), weights.dtype(name))
        key = (group.name, group.shape, group.dtype)
        seen = groups.get(key)
        groups[key] = group if seen is None else _merge(seen, group)
    return tuple(groups.values())


def _group_of_one(name: str, shape: tuple[int, ...], dtype: str) -> TensorGroup:
    bits = re.search(r"\d+", dtype)  # BOOL has none and takes a byte
    elements = math.prod(shape)
    num_bytes = elements * (int(bits.group()) if bits else 8) // 8
    return TensorGroup(
        re.sub(r"\.\d+(?=\.)", ".*", name), 1, shape, dtype, num_bytes, _num_parameters(name, elements, dtype)
    )


def _num_parameters(name: str, elements: int, dtype: str) -> int:
    if name.endswith(".weight_packed"):
        return elements * _INT4_PER_INT32
    is_float = dtype.lower().startswith(("f", "bf"))
    return elements if is_float and not name.endswith((".weight_scale", ".weight_scale_inv")) else 0


def _merge(group: TensorGroup, other: TensorGroup) -> TensorGroup:
    return replace(
        group,
        count=group.count + other.count,
        num_bytes=group.num_bytes + other.num_bytes,
        num_parameters=group.num_parameters + other.num_parameters,
    )
