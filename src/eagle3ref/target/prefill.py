"""Prompts through a target, block by block, so that attention scores are bounded by the block and not by the prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from eagle3ref.target.base import Target, TargetCache, TargetOutput

BLOCK_ROWS = 512


def prefill(
    target: Target, prompts: Sequence[Tensor], cache: TargetCache, *, capture_points: Sequence[int] = ()
) -> Iterator[TargetOutput]:
    """Run prompts of different lengths and commit them to an empty cache.

    Args:
        target: the model.
        prompts: int64 [T] each, not empty.
        cache: from ``target.new_cache(len(prompts))``.
        capture_points: as in ``Target.forward``.

    Yields:
        The output of each block of at most ``BLOCK_ROWS`` rows; the rows past a prompt's end mean nothing.
    """
    device = target.embedding().device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    padded = torch.nn.utils.rnn.pad_sequence(list(prompts), batch_first=True).to(device)
    done = 0
    for block in padded.split(BLOCK_ROWS, 1):
        yield target.forward(block, cache=cache, capture_points=capture_points)
        rows = torch.arange(block.shape[1], device=device).expand(block.shape)
        cache.keep(rows, (lengths - done).clamp(0, block.shape[1]))
        done += block.shape[1]
