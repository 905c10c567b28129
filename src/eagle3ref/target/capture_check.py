"""Checks that every target makes of what it is given."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from eagle3ref.errors import Eagle3RefError


def check_tokens(tokens: Tensor, vocab_size: int) -> None:
    """Refuse ids outside the vocabulary.

    Raises:
        Eagle3RefError: with the first bad id and its place.
    """
    outside = (tokens < 0) | (tokens >= vocab_size)
    if bool(outside.any()):
        sequence, position = outside.nonzero()[0].tolist()
        raise Eagle3RefError(
            "running the target",
            found=f"token id {int(tokens[sequence, position])} (sequence {sequence}, position {position})",
            expected=f"ids 0 to {vocab_size - 1}",
            action="Tokenize with the target's own tokenizer; image placeholders have no embedding row.",
        )


def check_capture_points(capture_points: Sequence[int], num_layers: int) -> None:
    """Refuse capture points that the model does not have.

    Raises:
        Eagle3RefError: a point below 0 or above ``num_layers``, or a list that is not strictly ascending.
    """
    ascending = list(capture_points) == sorted(set(capture_points))
    if not ascending or any(not 0 <= point <= num_layers for point in capture_points):
        raise Eagle3RefError(
            "capturing aux hidden states",
            found=f"capture points {tuple(capture_points)}",
            expected=f"strictly ascending points from 0 (embedding output) to {num_layers} (entering the final norm)",
            action="A capture point is the layer whose *input* is recorded; an id in 'output of layer' numbering is one less.",
        )
