"""Rows of a matrix that are equal, found by a hash of their bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from eagle3ref.inspection.finding import Finding
from eagle3ref.inspection.stored import by_row, wide

_WORD_BYTES = 8
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ODD = -7046029254386353131  # 2**64 over the golden ratio, as a signed integer


@dataclass(frozen=True)
class EqualRows:
    """Of a matrix [N, C].

    Args:
        num_rows: N.
        zeros: rows of zeros.
        repeated: other rows that equal an earlier one.
        adjacent: other rows that equal the row before.
        example: two rows that are equal, and not zeros; None without any.
    """

    num_rows: int
    zeros: int
    repeated: int
    adjacent: int
    example: tuple[int, int] | None

    def __str__(self) -> str:
        return f"{self.num_rows:,} rows: {self.zeros:,} zero, {self.repeated:,} repeated, {self.adjacent:,} adjacent"


def row_hashes(matrix: Tensor) -> Tensor:
    """int64 [N]: equal rows have equal hashes, others differ but for one chance in 2**64 a pair.

    Args:
        matrix: [N, C], of any float dtype; -0 counts as 0.
    """
    num_words = -(-matrix.shape[1] * matrix.element_size() // _WORD_BYTES)
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**63), 2**63 - 1, (num_words,), generator=generator) | 1
    return by_row(matrix, lambda rows: _hashed(rows, factors), torch.int64)


def equal_rows(matrix: Tensor) -> EqualRows:
    """How many rows of a matrix [N, C] are equal to others."""
    is_zero = by_row(matrix, lambda rows: ~wide(rows).any(1), torch.bool)
    indices = (~is_zero).nonzero().flatten()
    hashes = row_hashes(matrix)
    kept, order = hashes[indices].sort(stable=True)
    again = (kept[1:] == kept[:-1]).nonzero().flatten()
    adjacent = (hashes[1:] == hashes[:-1]) & ~is_zero[1:]
    first = again[:1].tolist()
    example = (int(indices[order[first[0]]]), int(indices[order[first[0] + 1]])) if first else None
    return EqualRows(len(matrix), int(is_zero.sum()), len(again), int(adjacent.sum()), example)


def check_head_rows(rows: EqualRows, is_reduced: bool) -> Iterator[Finding]:
    """Rows of a head that cannot be told apart.

    Args:
        rows: of the head.
        is_reduced: the draft's vocabulary is a part of the target's, so every row was chosen to be used. A full one
            has rows for tokens that no text contains, and those may well be equal.
    """
    few = max(1, rows.num_rows // 100)
    if rows.repeated and rows.example and (is_reduced or rows.adjacent > few):
        yield Finding(
            "lm_head.weight",
            f"has {rows.repeated:,} rows that equal others, {rows.adjacent:,} of them the row before; e.g. "
            f"{rows.example[0]} and {rows.example[1]}",
            "tokens with one row have one score: at most one of them is ever proposed first, and its twins are lost.",
            "If the head was cut from a larger one, check the index: id + d2t[id], not d2t[id].",
            rows.adjacent > few,
        )
    if 0 < rows.zeros < rows.num_rows and is_reduced:
        yield Finding(
            "lm_head.weight",
            f"has {rows.zeros:,} rows of zeros",
            "their tokens have score 0, which is above most others in some contexts: they were never trained.",
            "Check that the head was written whole, and that its size is draft_vocab_size without padding.",
            rows.zeros > few,
        )


def _hashed(block: Tensor, factors: Tensor) -> Tensor:
    values = block + 0.0 if block.element_size() > 1 else block  # makes 0 of -0, whose bits differ
    per_word = _WORD_BYTES // values.element_size()
    padded = pad(values.contiguous().view(_BITS[values.element_size()]), (0, -values.shape[1] % per_word))
    words = padded.view(torch.int64)
    # Products wrap around; mixing the bits first keeps patterns of small integers apart.
    mixed = (words ^ (words >> 32)) * _ODD
    return ((mixed ^ (mixed >> 29)) * factors).sum(1)
