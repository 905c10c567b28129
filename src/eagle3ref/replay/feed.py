"""What the committed draft rows are made of: states, tokens, and the rows before that each one sees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle3ref.trace import RecordedSequence


class Feed:
    """As a right server feeds its draft: row p takes the target's states at p and token p + 1, and sees rows 0 to p.

    After every verification a server rebuilds the committed rows from target states (SGLang 0.5.23,
    eagle_worker_v2.py), so they depend on the trajectory only.

    Args:
        sequences: B of them.
        capture_points: the streams of a row, in the order that ``fc`` takes them.
        device: of the draft.

    Attributes:
        tokens: int64 [B, T], prompts and answers; -1 past the end.
    """

    def __init__(
        self, sequences: Sequence[RecordedSequence], capture_points: Sequence[int], device: torch.device
    ) -> None:
        self.sequences, self.capture_points, self.device = sequences, capture_points, device
        self.tokens = torch.nn.utils.rnn.pad_sequence(
            [sequence.tokens for sequence in sequences], batch_first=True, padding_value=-1
        ).to(device)

    def states(self, first: int, last: int) -> Tensor:
        """[B, last - first, A * Ct], zero past the end of a sequence; only these rows are read from disk."""
        blocks = []
        for sequence in self.sequences:
            states = [sequence.aux_hidden_states[point][first:last] for point in self.capture_points]
            block = torch.cat(states, -1)
            blocks.append(torch.nn.functional.pad(block, (0, 0, 0, last - first - len(block))))
        return torch.stack(blocks).to(self.device)

    def following(self, rows: Tensor) -> Tensor:
        """int64 [B, n], the token that goes with each of the rows [n] or [B, n]."""
        return self.token_at(rows + 1)

    def token_at(self, positions: Tensor) -> Tensor:
        """int64 [B, n], the tokens at these indices [n] or [B, n]; some valid id past the end of a sequence."""
        return self.tokens.gather(1, positions.expand(len(self.tokens), -1)).clamp_min(0)

    def sees(self, rows: Tensor, keys: Tensor) -> Tensor:
        """Bool, broadcastable to [B, n, K]: whether rows [n] or [B, n] may attend to rows ``keys`` [K]."""
        return rows[..., None] >= keys
