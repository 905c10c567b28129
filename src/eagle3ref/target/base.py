"""What the rest of the package needs of a target, whatever it is made of."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from eagle3ref.config import TargetConfig


@dataclass(frozen=True)
class TargetOutput:
    """What one target forward leaves behind.

    Args:
        aux_hidden_states: capture point -> [B, Q, C], the residual stream entering that layer.
        final_hidden_state: [B, Q, C] after the final norm; ``target.logits`` turns it into logits.
    """

    aux_hidden_states: dict[int, Tensor]
    final_hidden_state: Tensor


class TargetCache(Protocol):
    """Keys and values of the committed tokens of B sequences.

    The rows of a forward are *pending* until ``keep`` names the ones that were accepted; the rest are dropped.
    """

    @property
    def lengths(self) -> Tensor:
        """[B] int64, committed tokens of each sequence."""
        ...

    def keep(self, rows: Tensor, counts: Tensor) -> None:
        """Commit, for sequence b, the pending rows ``rows[b, :counts[b]]`` in that order.

        Args:
            rows: int64 [B, n], indices into the Q rows of the last forward.
            counts: int64 [B], how many of them are kept.
        """
        ...

    def select(self, sequences: Tensor) -> None:
        """Keep only these sequences, int64 [b], in this order; the others are forgotten."""
        ...


class Target(Protocol):
    """A causal language model with aux hidden states, a cache and tree attention."""

    @property
    def config(self) -> TargetConfig: ...

    def new_cache(self, batch_size: int) -> TargetCache: ...

    def forward(
        self,
        tokens: Tensor,
        *,
        cache: TargetCache | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        capture_points: Sequence[int] = (),
    ) -> TargetOutput:
        """Run Q new tokens of B sequences behind what the cache holds.

        Args:
            tokens: int64 [B, Q]. Sequences shorter than Q are padded on the right with any valid id.
            cache: from ``new_cache``; None when nothing came before and nothing follows.
            positions: int64 [B, Q], rope positions; ``lengths + arange(Q)`` when None.
            mask: bool [B, Q, Q], which new rows a new row may attend to (True = may attend), itself included;
                causal when None. Every row sees the whole committed prefix.
            capture_points: residual streams to return; 0 is the embedding output, ``num_layers`` the stream that
                enters the final norm.

        Raises:
            Eagle3RefError: a token id outside the vocabulary, or a capture point that the model does not have.
        """
        ...

    def logits(self, final_hidden_state: Tensor) -> Tensor:
        """[..., C] after the final norm -> [..., V]."""
        ...

    def embedding(self) -> Tensor:
        """[V, C], the input embedding, which most EAGLE-3 drafts share."""
        ...

    def lm_head(self) -> Tensor:
        """[V, C], the output projection."""
        ...


class Scores(NamedTuple):
    """What the head says of T positions and the tokens recorded behind them.

    Args:
        argmax: int64 [T], the most likely next token, the first of equal ones.
        logprob_gap: float32 [T], natural logarithm: log p(argmax) - log p(recorded token), at least 0.
    """

    argmax: Tensor
    logprob_gap: Tensor


@runtime_checkable
class LayerMajorTarget(Target, Protocol):
    """A target that runs many whole sequences through one layer before it turns to the next.

    Its weights need to be at hand for one layer at a time, so they may be streamed from a disk.
    """

    @property
    def device(self) -> torch.device:
        """Where token ids go in; ``embedding`` may lie elsewhere."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the residual stream; ``embedding`` may be in another one."""
        ...

    def embed(self, sequences: Sequence[Tensor]) -> list[Tensor]:
        """Token ids, int64 [T] each -> the residual streams entering layer 0, [T, C] each.

        Raises:
            Eagle3RefError: an empty sequence, or a token id outside the vocabulary.
        """
        ...

    def stream_layers(
        self, streams: list[Tensor], *, first_layer: int = 0, cache: TargetCache | None = None
    ) -> Generator[int, None, None]:
        """Run all sequences through layer after layer.

        Args:
            streams: [T, C] each, the residual streams entering ``first_layer``. The list always holds the current
                ones. They share one buffer that the next step overwrites: copy what you keep.
            first_layer: where to start; ``num_layers`` yields nothing.
            cache: empty, from ``new_cache(len(streams))``; filled when the last layer is done. Only from layer 0.

        Yields:
            The layer that ``streams`` now enter: ``first_layer + 1`` to ``num_layers``.

        Raises:
            Eagle3RefError: weights that cannot be read, or a pass that does not fit the target's memory bound.
        """
        ...

    def finish(self, streams: Sequence[Tensor]) -> list[Tensor]:
        """Streams after the last layer, [T, C] each -> final hidden states, after the final norm."""
        ...

    def score(self, final_states: Tensor, next_tokens: Tensor) -> Scores:
        """Final hidden states [T, C] and the tokens that follow, int64 [T]. The head is gone through once per call."""
        ...


def device_of(target: Target) -> torch.device:
    """Where a target takes its token ids."""
    return target.device if isinstance(target, LayerMajorTarget) else target.embedding().device


def dtype_of(target: Target) -> torch.dtype:
    """Of a target's activations, hence of the states that it hands out."""
    return target.dtype if isinstance(target, LayerMajorTarget) else target.embedding().dtype
