"""What a search asks of a draft: rows of any branches of any roots, in one flat list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from eagle3ref.nn import Rows


class Branches(NamedTuple):
    """P rows that were run, in any mixture of roots and branches.

    Args:
        state: [P, C], the recurrent state after each.
        probs: [P, K], of the best next tokens, best first.
        tokens: int64 [P, K], those tokens.
        own: per layer, the rows [1, P, passes, ...] that a row which follows one of them would see of its own; empty
            for the committed rows that roots start from.
    """

    state: Tensor
    probs: Tensor
    tokens: Tensor
    own: list[Rows]

    @classmethod
    def join(cls, parts: Sequence[Branches]) -> Branches:
        """One list after the other."""
        if len(parts) == 1:
            return parts[0]
        own = [
            Rows(*(torch.cat(pieces, 1) for pieces in zip(*layer, strict=True)))
            for layer in zip(*(part.own for part in parts), strict=True)
        ]
        state, probs, tokens = (torch.cat(pieces) for pieces in list(zip(*parts, strict=True))[:3])
        return cls(state, probs, tokens, own)


class BranchRows(Protocol):
    """What a search asks of a draft. Roots are named by their index in a list of n."""

    def first(self, which: Tensor) -> Branches:
        """The committed rows before these roots [P]: they give the first level."""

    def run(self, which: Tensor, step: int, state: Tensor, tokens: Tensor, own: list[Rows]) -> Branches:
        """Rows of pass ``step``: P tokens int64 [P] of depth ``step + 1``, each after a row of that state [P, C].

        ``own`` holds the earlier rows that each one sees of its own, [1, P, step, ...].
        """

    def wanted(self, which: Tensor, depth: int) -> Tensor:
        """int64 [P], the recorded token of that depth below these roots; -1 if the draft cannot give it."""


def take(own: list[Rows], rows: Tensor) -> list[Rows]:
    """The own rows [1, P, ...] of those at these indices of P."""
    return [Rows(*(part[:, rows] for part in layer)) for layer in own]
