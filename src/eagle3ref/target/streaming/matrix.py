"""A matrix in a file that is never whole in memory: looked up by rows, or mapped."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.target.checkpoint import StoredWeight, as_tensor, read_tensor
from eagle3ref.target.streaming.files import CheckpointFiles
from eagle3ref.target.streaming.pieces import rows_of


def read_rows(
    files: CheckpointFiles, matrix: StoredWeight, indices: Tensor, *, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Rows of a plain matrix [V, C] for int64 indices [...] -> [..., C]. A row that occurs often is read once.

    Raises:
        Eagle3RefError: the file was cut short, changed, or cannot be read.
    """
    wanted, place = indices.cpu().unique(return_inverse=True)
    (rows,) = rows_of(matrix, 0, len(wanted)).parts
    row_bytes = rows.num_bytes // len(wanted)
    data = torch.empty(len(wanted), row_bytes, dtype=torch.uint8)
    with files.open() as opened:
        for row, index in zip(data, wanted.tolist(), strict=True):
            start = rows.start + index * row_bytes
            opened.read(rows.path, start, [row.numpy().data])
            opened.forget(rows.path, start, row_bytes)
        opened.check(rows.path)
    return as_tensor(rows, data.flatten()).to(device, dtype)[place.to(device)]


def mapped(matrix: StoredWeight) -> Tensor:
    """A plain matrix [V, C], as stored, that takes memory only where it is looked at."""
    (stored,) = matrix.parts
    if stored.start % _itemsize(matrix):
        return read_tensor(stored)  # not aligned to its dtype: it cannot be looked at in place
    end = stored.start + stored.num_bytes
    data = torch.from_file(str(stored.path), shared=False, size=end, dtype=torch.uint8)
    return as_tensor(stored, data[stored.start :])


def _itemsize(matrix: StoredWeight) -> int:
    (stored,) = matrix.parts
    return stored.num_bytes // (matrix.shape[0] * matrix.shape[1])
