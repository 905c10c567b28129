"""The k most probable of many logits, in plain PyTorch and without the host."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn.norm import at_least_float32

_INDEX_BITS = 32


def topk_probs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable along the last dimension: higher probability first, then lower index.

    ``sampling.topk_stable`` of the softmax, which refuses a NaN. Here that would take an answer from the device, so a
    row with a NaN has NaN probabilities, at indices that are within range.

    Args:
        logits: float [..., V].
        k: 1 <= k <= V.

    Returns:
        Probabilities [..., k], fp64 for fp64 logits and otherwise fp32, and indices int64 [..., k].

    Raises:
        Eagle3RefError: k out of range.
    """
    check_k(logits, k)
    return topk_on_device(logits.to(at_least_float32(logits.dtype)).softmax(-1), k)


def topk_on_device(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``sampling.topk_stable`` of scores that are not negative, without the host.

    ``torch.topk`` leaves open what it does with equals, so it is given none: the bits of a float that is not negative
    rise with it, and below them stands the index, falling.

    Args:
        scores: fp32 or fp64 [..., V], none negative.
        k: 1 <= k <= V.

    Returns:
        values [..., k] and indices int64 [..., k].
    """
    size = scores.shape[-1]
    if scores.dtype == torch.float64:  # no room for an index: the oracle's dtype is sorted instead
        values, order = scores.sort(dim=-1, descending=True, stable=True)
        return values[..., :k], order[..., :k]
    falling = torch.arange(size - 1, -1, -1, device=scores.device)
    keys = (scores.view(torch.int32).to(torch.int64) << _INDEX_BITS) | falling
    chosen = size - 1 - (keys.topk(k, dim=-1).values & (2**_INDEX_BITS - 1))
    return scores.gather(-1, chosen), chosen


def check_k(logits: Tensor, k: int) -> None:
    """Raises: Eagle3RefError, when there are no k logits."""
    size = logits.shape[-1]
    if not 1 <= k <= size:
        raise Eagle3RefError(
            "taking the most probable tokens",
            found=f"k = {k}",
            expected=f"1 <= k <= {size}, the number of logits",
            action="Ask for fewer, or for at least one.",
        )
