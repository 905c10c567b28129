"""The output projection, some rows of the vocabulary at a time: it need never be whole, nor the logits."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from eagle3ref.nn import BLOCK_ROWS
from eagle3ref.nn.norm import at_least_float32
from eagle3ref.sampling import argmax_first
from eagle3ref.target.base import Scores

HEAD_ROWS = 4096  # vocabulary entries at a time


def score(final_states: Tensor, next_tokens: Tensor, head: Iterable[Tensor]) -> Scores:
    """The best next token of each position, and how much likelier it is than the recorded one.

    The difference of two log-probabilities is that of the logits: the normalizer is the same.

    Args:
        final_states: [T, C], after the final norm.
        next_tokens: int64 [T], the recorded ones.
        head: the output projection [V, C] in pieces of consecutive rows, in the dtype of the states.

    Raises:
        Eagle3RefError: a NaN among the logits.
    """
    wide = at_least_float32(final_states.dtype)
    next_tokens = next_tokens.to(final_states.device)
    best = torch.full(next_tokens.shape, float("-inf"), dtype=wide, device=final_states.device)
    recorded, argmax = best.clone(), torch.zeros_like(next_tokens)
    first = 0
    for piece in head:
        for start in range(0, len(final_states), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            logits = functional.linear(final_states[rows], piece).to(wide)
            here = argmax_first(logits)
            top = logits.gather(-1, here[:, None])[:, 0]
            better = top > best[rows]  # a tie with an earlier piece is the earlier token's
            argmax[rows] = torch.where(better, here + first, argmax[rows])
            best[rows] = torch.where(better, top, best[rows])
            inside = (next_tokens[rows] >= first) & (next_tokens[rows] < first + len(piece))
            own = logits.gather(-1, (next_tokens[rows] - first).clamp(0, len(piece) - 1)[:, None])[:, 0]
            recorded[rows] = torch.where(inside, own, recorded[rows])
        first += len(piece)
    return Scores(argmax, (best - recorded).float())
