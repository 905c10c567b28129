"""What is read at a time: weights that share one buffer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from eagle3ref.target.checkpoint import StoredTensor, StoredWeight

_ALIGNMENT = 64  # of each tensor in a buffer: enough for any dtype and for vector loads


@dataclass(frozen=True)
class Piece:
    """Weights that are read into one buffer together.

    Args:
        weights: in the order in which they are used.
        device: where they go then.
    """

    weights: tuple[StoredWeight, ...]
    device: torch.device

    def runs(self) -> list[list[StoredTensor]]:
        """In file order; tensors that touch each other in a file are one run, which is one read."""
        parts = sorted(
            (part for weight in self.weights for part in weight.parts), key=lambda part: (part.path, part.start)
        )
        runs = [parts[:1]]
        for before, part in zip(parts, parts[1:], strict=False):
            if part.path == before.path and part.start == before.start + before.num_bytes:
                runs[-1].append(part)
            else:
                runs.append([part])
        return runs


def buffer_bytes(weights: Iterable[StoredWeight]) -> int:
    """What weights take in a buffer."""
    return sum(aligned(part.num_bytes) for weight in weights for part in weight.parts)


def aligned(num_bytes: int) -> int:
    """Where the next tensor may start."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def grouped(units: Sequence[Sequence[StoredWeight]], limit: int) -> list[list[int]]:
    """Indices of consecutive units, as many together as fit into a buffer of ``limit`` bytes; none exceeds it."""
    groups: list[list[int]] = []
    room = 0
    for index, unit in enumerate(units):
        size = buffer_bytes(unit)
        if not groups or size > room:
            groups.append([])
            room = limit
        groups[-1].append(index)
        room -= size
    return groups


def rows_of(weight: StoredWeight, first: int, count: int) -> StoredWeight:
    """Consecutive rows of a plain matrix, as a weight of its own."""
    (stored,) = weight.parts
    row_bytes = stored.num_bytes // stored.shape[0]
    shape = (count, *stored.shape[1:])
    start = stored.start + first * row_bytes
    part = replace(stored, shape=shape, start=start, num_bytes=count * row_bytes)
    return replace(weight, shape=shape, parts=(part,))
