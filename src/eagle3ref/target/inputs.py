"""What the arguments of ``Target.forward`` mean, checked: the same for every target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from eagle3ref.config import TargetConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import KVCache
from eagle3ref.target.base import TargetCache


class Inputs(NamedTuple):
    """The arguments of one forward with every default filled in.

    Args:
        cache: None when nothing came before and nothing follows.
        positions: int64 [B, Q], rope positions.
        mask: bool [B, Q, Q], True = may attend.
    """

    cache: KVCache | None
    positions: Tensor
    mask: Tensor


def checked_inputs(
    config: TargetConfig,
    tokens: Tensor,
    cache: TargetCache | None,
    positions: Tensor | None,
    mask: Tensor | None,
    capture_points: Sequence[int],
) -> Inputs:
    """The arguments of ``Target.forward``, for a target whose ``new_cache`` is a ``KVCache``.

    Raises:
        Eagle3RefError: a token id outside the vocabulary, or capture points that the model does not have.
        TypeError: a cache of another kind of target.
    """
    if cache is not None and not isinstance(cache, KVCache):
        raise TypeError(f"a cache from this target's new_cache, not {type(cache).__name__}")
    check_tokens(tokens, config.vocab_size)
    check_capture_points(capture_points, config.num_layers)
    row = torch.arange(tokens.shape[1], device=tokens.device)
    if positions is None:
        positions = row.expand(tokens.shape) if cache is None else cache.lengths[:, None] + row
    if mask is None:
        mask = (row[:, None] >= row).expand(len(tokens), -1, -1)
    return Inputs(cache, positions, mask)


def check_tokens(tokens: Tensor, vocab_size: int, first_sequence: int = 0) -> None:
    """Refuse token ids outside the vocabulary.

    Args:
        tokens: int64 [B, Q].
        vocab_size: V.
        first_sequence: number of sequence 0, for the message.

    Raises:
        Eagle3RefError: names the first of them.
    """
    outside = (tokens < 0) | (tokens >= vocab_size)
    if bool(outside.any()):
        sequence, position = outside.nonzero()[0].tolist()
        raise Eagle3RefError(
            "running the target",
            found=f"token id {int(tokens[sequence, position])} (sequence {sequence + first_sequence}, "
            f"position {position})",
            expected=f"ids 0 to {vocab_size - 1}",
            action="Tokenize with the target's own tokenizer; image placeholders have no embedding row.",
        )


def check_capture_points(capture_points: Sequence[int], num_layers: int) -> None:
    """Refuse capture points that the model does not have, and lists that are not strictly ascending.

    Raises:
        Eagle3RefError: tells the range.
    """
    ascending = list(capture_points) == sorted(set(capture_points))
    if not ascending or any(not 0 <= point <= num_layers for point in capture_points):
        raise Eagle3RefError(
            "capturing aux hidden states",
            found=f"capture points {tuple(capture_points)}",
            expected=f"ascending points from 0 (embedding output) to {num_layers} (entering the final norm)",
            action="A capture point is the layer whose *input* is recorded; 'output of layer' numbering is one less.",
        )
