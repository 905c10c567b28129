"""Prompts into a cache: layer by layer where the target can, else block by block; scores are bounded either way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from eagle3ref.target.base import LayerMajorTarget, Target, TargetCache, TargetOutput, device_of
from eagle3ref.target.inputs import check_capture_points

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
    device = device_of(target)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    padded = torch.nn.utils.rnn.pad_sequence(list(prompts), batch_first=True).to(device)
    done = 0
    for block in padded.split(BLOCK_ROWS, 1):
        yield target.forward(block, cache=cache, capture_points=capture_points)
        rows = torch.arange(block.shape[1], device=device).expand(block.shape)
        cache.keep(rows, (lengths - done).clamp(0, block.shape[1]))
        done += block.shape[1]


class PrefilledStates(NamedTuple):
    """What is left of prompts when they are in the cache.

    Args:
        last: [B, C], final hidden state at the last token of each prompt.
        aux: of each prompt [T, A * C], its capture points side by side; nothing when none were asked for.
    """

    last: Tensor
    aux: list[Tensor]


def prefill_states(
    target: Target, prompts: Sequence[Tensor], cache: TargetCache, *, capture_points: Sequence[int] = ()
) -> PrefilledStates:
    """Commit prompts to an empty cache; a ``LayerMajorTarget`` goes through its layers once for all of them.

    Args:
        target: the model.
        prompts: int64 [T] each, not empty.
        cache: from ``target.new_cache(len(prompts))``.
        capture_points: ascending, as in ``Target.forward``.

    Raises:
        Eagle3RefError: an empty prompt, a token id outside the vocabulary, or a capture point that is not there.
    """
    check_capture_points(capture_points, target.config.num_layers)
    if isinstance(target, LayerMajorTarget):
        return _layer_by_layer(target, prompts, cache, capture_points)
    last: list[Tensor | None] = [None] * len(prompts)
    aux: list[list[Tensor]] = [[] for _ in prompts]
    done = 0
    for block in prefill(target, prompts, cache, capture_points=capture_points):
        size = block.final_hidden_state.shape[1]
        for i, prompt in enumerate(prompts):
            rows = min(len(prompt) - done, size)
            if rows > 0:
                last[i] = block.final_hidden_state[i, rows - 1].clone()
            if rows > 0 and capture_points:
                aux[i].append(torch.cat([block.aux_hidden_states[point][i, :rows] for point in capture_points], -1))
        done += size
    states = torch.stack([state for state in last if state is not None])
    return PrefilledStates(states, [torch.cat(parts) for parts in aux] if capture_points else [])


def _layer_by_layer(
    target: LayerMajorTarget, prompts: Sequence[Tensor], cache: TargetCache, capture_points: Sequence[int]
) -> PrefilledStates:
    streams = target.embed(prompts)
    width = target.config.hidden_size
    aux = [stream.new_empty(len(stream), len(capture_points) * width) for stream in streams] if capture_points else []

    def capture(layer: int) -> None:
        if layer in capture_points:
            first = list(capture_points).index(layer) * width
            for states, stream in zip(aux, streams, strict=True):
                states[:, first : first + width] = stream

    capture(0)
    for layer in target.stream_layers(streams, cache=cache):
        capture(layer)
    last = torch.cat(target.finish([stream[-1:] for stream in streams]))
    return PrefilledStates(last, aux)
