"""What the rest of the package needs of a target, whatever it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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
