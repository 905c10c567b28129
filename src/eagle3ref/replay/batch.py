"""Some sequences side by side: their tokens, and the draft rows that target states give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from eagle3ref.draft import Eagle3Draft
from eagle3ref.nn import KVCache
from eagle3ref.trace import RecordedSequence

_BLOCK_ROWS = 256  # query rows of a sequence per prefix forward; bounds the attention scores of long sequences


class Outcome(NamedTuple):
    """One round of B sequences, whatever the rule.

    Args:
        num_accepted: int64 [B], drafts kept.
        proposed: int64 [B, S], drafts offered at each depth.
        expected: float64 [B, S], as ``SequenceRounds.expected_at``; all nan without the target's probabilities.
    """

    num_accepted: Tensor
    proposed: Tensor
    expected: Tensor


@dataclass(frozen=True)
class Batch:
    """B recorded sequences with their draft rows.

    Args:
        tokens: int64 [B, T], prompts and answers; -1 past the end.
        lengths: int64 [B].
        cache: draft rows 0 .. T-2 of every sequence.
        state: [B, T-1, C], the recurrent state of these rows.
        normed: [B, T-1, C], the same after the final norm, for the head.
    """

    tokens: Tensor
    lengths: Tensor
    cache: KVCache
    state: Tensor
    normed: Tensor

    @classmethod
    def of(cls, sequences: list[RecordedSequence], draft: Eagle3Draft) -> Batch:
        """Run the draft over every committed row: row p on the target's states at p and the token p + 1.

        After every verification a server rebuilds the committed rows from target states (SGLang 0.5.23,
        eagle_worker_v2.py), so they depend on the trajectory only. Row L-1 leads to the drafts of root L.
        """
        device = draft.target_ids.device
        tokens = torch.nn.utils.rnn.pad_sequence(
            [sequence.tokens for sequence in sequences], batch_first=True, padding_value=-1
        ).to(device)
        batch, longest = tokens.shape
        cache = KVCache(len(draft.layers), batch, device)
        states, normed = [], []
        for start in range(0, longest - 1, _BLOCK_ROWS):
            rows = torch.arange(start, min(start + _BLOCK_ROWS, longest - 1), device=device)
            output = draft(
                draft.fuse(_aux_block(sequences, draft, rows)).unsqueeze(1),
                tokens[:, None, rows + 1].clamp_min(0),
                rows.expand(batch, 1, -1),
                mask=rows[:, None] >= rows,
                prefix=cache.prefixes(),
            )
            cache.offer(output.rows)
            cache.keep((rows - start).expand(batch, -1), torch.full((batch,), len(rows), device=device))
            states.append(output.state[:, 0])
            normed.append(output.normed[:, 0])
        lengths = torch.tensor([len(sequence.tokens) for sequence in sequences], device=device)
        return cls(tokens, lengths, cache, torch.cat(states, 1), torch.cat(normed, 1))

    def before(self, root: Tensor) -> tuple[Tensor, Tensor]:
        """state and normed [B, 1, C] of the last draft row before each root [B]."""
        sequence = torch.arange(len(root), device=root.device)
        return self.state[sequence, root - 1, None], self.normed[sequence, root - 1, None]


def _aux_block(sequences: list[RecordedSequence], draft: Eagle3Draft, rows: Tensor) -> Tensor:
    """[B, rows, A * Ct], zero past the end of a sequence; only this block is read from disk."""
    first, last = int(rows[0]), int(rows[-1]) + 1
    blocks = []
    for sequence in sequences:
        states = [sequence.aux_hidden_states[point][first:last] for point in draft.capture_points]
        block = torch.cat(states, -1)
        blocks.append(torch.nn.functional.pad(block, (0, 0, 0, len(rows) - len(block))))
    return torch.stack(blocks).to(rows.device)
