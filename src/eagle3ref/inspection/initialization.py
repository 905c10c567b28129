"""Whether a matrix still is what an initializer drew: training leaves rows, columns and means that differ."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from eagle3ref.inspection.stored import blocks

_MIN_ROWS, _MIN_COLUMNS = 128, 64
_STANDARD_ERRORS = 5.0
_MODEL_ERROR = 0.05  # bf16 rounding and truncated tails move the three ratios a little


class Spread(NamedTuple):
    """How a matrix [V, C] compares with independent draws from one distribution of mean 0, where each ratio is 1.

    Args:
        rows: variance of the rows' mean squares over its expectation.
        columns: the same of columns.
        mean_row: square of the mean row over its expectation; what all rows have in common.
    """

    rows: float
    columns: float
    mean_row: float


def looks_initialised(matrix: Tensor) -> bool | None:
    """Whether all three ratios are 1 within sampling error; None if the matrix is too small to tell.

    Of a trained head the ratios are far off: 8, 52 and 183 in the nano draft's.
    """
    num_rows, num_columns = matrix.shape
    if num_rows < _MIN_ROWS or num_columns < _MIN_COLUMNS:
        return None
    found = spread(matrix)
    sizes = (num_rows, num_columns, num_columns)
    return all(
        abs(ratio - 1) < _STANDARD_ERRORS * math.sqrt(2 / size) + _MODEL_ERROR
        for ratio, size in zip(found, sizes, strict=True)
    )


def spread(matrix: Tensor) -> Spread:
    """The three ratios of a matrix [V, C], in one pass over it.

    For independent draws with variance s2 and kurtosis k, the mean square of a row varies by ``s2^2 (k - 1) / C``, of a
    column by ``s2^2 (k - 1) / V``, and the mean row has mean square ``s2 / V``. A matrix of equal absolute values has
    k = 1, and a matrix of zeros no s2: their ratios are infinite, which no draw is.
    """
    num_rows, num_columns = matrix.shape
    rows = torch.empty(num_rows, dtype=torch.float64)
    column_squares = torch.zeros(num_columns, dtype=torch.float64)
    column_sums, fourth = torch.zeros(num_columns, dtype=torch.float64), 0.0
    for block, mean_squares in blocks(matrix, rows):  # fp32 within a block, fp64 over them
        values = block.to(torch.float32)
        squares = values.square()
        mean_squares.copy_(squares.mean(1))
        column_squares += squares.sum(0)
        column_sums += values.sum(0)
        fourth += float(squares.square_().sum())
    columns = column_squares / num_rows
    variance = float(rows.mean())
    if variance == 0:
        return Spread(math.inf, math.inf, math.inf)
    excess = fourth / matrix.numel() - variance**2
    mean_row = float((column_sums / num_rows).square().mean()) / (variance / num_rows)
    if excess <= 0:
        return Spread(math.inf, math.inf, mean_row)
    return Spread(float(rows.var()) * num_columns / excess, float(columns.var()) * num_rows / excess, mean_row)
