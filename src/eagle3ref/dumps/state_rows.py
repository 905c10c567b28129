"""Rows of hidden states as nested lists of numbers: the block of a prefill, then a row for each token decoded."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError

# In the order of trying: text holds a number of each so that it comes back as it was.
_EXACT = (torch.bfloat16, torch.float16, torch.float32)


class StateRows(NamedTuple):
    """The rows of one response.

    Args:
        values: float64 [R, W].
        num_prompt: how many of them came as blocks of a prefill.
    """

    values: Tensor
    num_prompt: int


def state_rows(states: list[Any], doing: str) -> StateRows:
    """The rows of ``hidden_states``: a list of rows for each prefill, and plain rows behind.

    Raises:
        Eagle3RefError: another nesting, rows of different widths, or something else than numbers.
    """
    kinds = [isinstance(part, list) and bool(part) and isinstance(part[0], list) for part in states]
    num_blocks = kinds.index(False) if False in kinds else len(kinds)
    if any(kinds[num_blocks:]):
        at = num_blocks + kinds[num_blocks:].index(True)
        _refuse(doing, f"a block of prefill rows as element {at}, behind rows of decoding", "blocks first")
    rows = [row for part, is_block in zip(states, kinds, strict=True) for row in (part if is_block else [part])]
    widths = [len(row) if isinstance(row, list) else 0 for row in rows]
    odd = next((i for i, width in enumerate(widths) if width != widths[0] or not width), None)
    if odd is not None:
        _refuse(doing, f"row {odd} {widths[odd]} wide and row 0 {widths[0]}", "rows of one width")
    return StateRows(_numbers(rows, doing), sum(len(part) for part in states[:num_blocks]))


def exact_dtype(values: Tensor) -> torch.dtype | None:
    """The narrowest float that has all the numbers; None when they were rounded, and no float has them."""
    return next((dtype for dtype in _EXACT if _changed(values, dtype) is None), None)


def as_written(values: Tensor, dtype: torch.dtype, doing: str, first_row: int) -> Tensor:
    """The numbers in the dtype that the whole dump has.

    Raises:
        Eagle3RefError: a number that this dtype does not have, so that another model or run wrote it.
    """
    changed = _changed(values, dtype)
    if changed is not None:
        name = str(dtype).removeprefix("torch.")
        found = f"{values[changed].item()!r} at position {first_row + changed[0]}, column {changed[1]}"
        _refuse(doing, found, f"numbers that {name} has, as in the first sequence of the dump")
    return values.to(dtype)


def _changed(values: Tensor, dtype: torch.dtype) -> tuple[int, int] | None:
    """The first number that ``dtype`` does not have."""
    differs = (values.to(dtype).to(values.dtype) != values) & ~values.isnan()
    return None if not differs.any() else (int((at := differs.nonzero()[0])[0]), int(at[1]))


def _numbers(rows: list[list[Any]], doing: str) -> Tensor:
    try:
        return torch.tensor(rows, dtype=torch.float64)
    except (TypeError, ValueError):
        pass
    try:  # null is what JSON has for NaN and infinity
        rows = [[float("nan") if number is None else number for number in row] for row in rows]
        return torch.tensor(rows, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        _refuse(doing, f"hidden states that are no numbers ({error})", "lists of numbers")


def _refuse(doing: str, found: str, expected: str) -> NoReturn:
    raise Eagle3RefError(doing, found=found, expected=expected, action="Keep responses as they came; record again.")
