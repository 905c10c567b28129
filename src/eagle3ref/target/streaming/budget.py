"""How the memory bound is shared out: a pass takes what it must, and the rest reads ahead."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

import torch

from eagle3ref.config import KimiK25Config
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.checkpoint import Census, LayerCensus
from eagle3ref.target.kimi_head import HEAD_ROWS
from eagle3ref.target.kimi_walk import Work
from eagle3ref.target.placement import free_memory
from eagle3ref.target.streaming.memory import (
    KEPT,
    SLACK,
    activation_bytes,
    bound_onednn_caches,
    head_bytes,
    resident_bytes,
    stream_bytes,
    weights_bytes,
)
from eagle3ref.target.streaming.pieces import buffer_bytes, rows_of

UNBOUNDED = 2**62
_LARGEST_BUFFER = 256 * 2**20  # larger ones make no disk faster
_MARGIN = 48 * 2**20  # what the rest of the program may take between the question and the pass
_LEAST_BUFFERS = 2  # one is read while the other is used


class Buffers(NamedTuple):
    """What the reader gets: ``number`` buffers of ``size`` bytes."""

    number: int
    size: int


class Budget:
    """The memory bound of a process, and what may be done within it.

    Args:
        census: what the checkpoint holds.
        architecture: the text model's settings.
        dtype: of weights and activations.
        memory: bytes that the process may have in memory; None: no bound.
        on_host: weights are decoded and multiplied in the same memory, not on a GPU.
    """

    def __init__(
        self, census: Census, architecture: KimiK25Config, dtype: torch.dtype, memory: int | None, *, on_host: bool
    ) -> None:
        self._architecture, self._dtype, self.memory, self._on_host = architecture, dtype, memory, on_host
        self._folder, self._weights = census.folder, weights_bytes(census, dtype)
        self._program = resident_bytes()
        if memory is not None and on_host:
            bound_onednn_caches()
        head_piece = rows_of(census.lm_head, 0, min(HEAD_ROWS, census.lm_head.shape[0]))
        self._least_size = max(_largest_unit(layer) for layer in census.layers)
        self._least_size = max(self._least_size, buffer_bytes([head_piece]))
        self._largest_layer = max(_layer_bytes(layer) for layer in census.layers)

    def buffers(self, work: Work) -> Buffers:
        """For a walk whose streams are in memory already.

        Raises:
            Eagle3RefError: the bound leaves too little; tells the least that would do.
        """
        return self._shared(self._needed(work), self._streams(work.tokens))

    def head_buffers(self) -> Buffers:
        """For going through the output projection.

        Raises:
            Eagle3RefError: the bound leaves too little; tells the least that would do.
        """
        return self._shared(SLACK + (head_bytes(self._architecture, self._dtype) if self._on_host else 0))

    def parts(self, lengths: Sequence[int]) -> dict[str, int]:
        """What the memory is used for in a pass over whole sequences of these lengths, in bytes.

        Raises:
            Eagle3RefError: the bound leaves too little; tells the least that would do.
        """
        work = Work.of_sequences(lengths)
        streams = stream_bytes(self._architecture, self._dtype, work.tokens)
        weights, activations = self._costliest(work)
        on_host = {"residual streams": streams, "weights being decoded": weights, "activations": activations}
        buffers = self._shared(self._needed(work) + self._streams(work.tokens) + _MARGIN)
        program = resident_bytes()
        return {
            "program and libraries": program,
            **(on_host if self._on_host else {}),
            "a copy of the streams for the recorder": streams,
            "slack of the allocators and the program": self._taken(0) - program + SLACK + _MARGIN,
            "read buffers": buffers.number * buffers.size,
        }

    def max_tokens(self, longest: int, per_token: int) -> int:
        """How many tokens fit into one pass, the longest sequence having ``longest``; 0 if not even that one does."""
        if self.memory is None:
            return UNBOUNDED
        taken = self._taken(0) + _MARGIN

        def fits(tokens: int) -> bool:
            work = Work.of_sequences([longest])._replace(tokens=tokens)
            needed = taken + self._needed(work) + self._streams(tokens) + tokens * per_token
            needed += _LEAST_BUFFERS * self._least_size
            return needed <= (self.memory or 0)

        return bisect.bisect(range(self.memory), False, key=lambda tokens: not fits(tokens)) - 1 if fits(longest) else 0

    def _needed(self, work: Work) -> int:
        """Besides the streams: one copy of them for whoever records them, weights, activations."""
        on_host = sum(self._costliest(work)) if self._on_host else 0
        return on_host + stream_bytes(self._architecture, self._dtype, work.tokens) + SLACK

    def _costliest(self, work: Work) -> tuple[int, int]:
        """Weights and activations of the phase that takes the most of both."""
        activations = activation_bytes(self._architecture, self._dtype, work)
        return max(((weights, activations[phase]) for phase, weights in self._weights.items()), key=sum)

    def _streams(self, tokens: int) -> int:
        return stream_bytes(self._architecture, self._dtype, tokens) if self._on_host else 0

    def _taken(self, streams: int) -> int:
        """What is in memory, with what libraries keep from the first pass on: counted once, not in every pass anew."""
        return max(resident_bytes(), self._program + streams + KEPT)

    def _room(self, needed: int, streams: int) -> int:
        if self.memory is not None:
            return self.memory - self._taken(streams) - needed
        return max(_LEAST_BUFFERS * self._least_size, free_memory(torch.device("cpu")) // 4)

    def _shared(self, needed: int, streams: int = 0) -> Buffers:
        """What is left besides ``needed``; of what is in memory now, ``streams`` are known not to be the program's."""
        room = self._room(needed, streams)
        if room < _LEAST_BUFFERS * self._least_size:
            bound, least = self.memory or 0, (self.memory or 0) + _LEAST_BUFFERS * self._least_size - room
            raise Eagle3RefError(
                f"streaming {self._folder}",
                found=f"a memory bound of {bound / 2**20:,.0f} MiB",
                # Rounded up, and one more: the process is not of quite the same size when it is asked again.
                expected=f"at least {-(-least // 2**20) + 1:,} MiB for these tokens",
                action="Raise --memory, or run fewer or shorter sequences at a time.",
            )
        size = max(self._least_size, min(room // 4, _LARGEST_BUFFER, self._largest_layer // 2))
        number = min(room // size, -(-self._largest_layer // size) + 1)
        return Buffers(max(number, _LEAST_BUFFERS), size)


def _largest_unit(layer: LayerCensus) -> int:
    """Bytes of the largest weight of the layer, or of a whole routed expert."""
    units = [[weight] for weight in layer.weights.values()] + [list(expert.values()) for expert in layer.experts]
    return max(buffer_bytes(unit) for unit in units)


def _layer_bytes(layer: LayerCensus) -> int:
    experts = sum(buffer_bytes(expert.values()) for expert in layer.experts)
    return buffer_bytes(layer.weights.values()) + experts
