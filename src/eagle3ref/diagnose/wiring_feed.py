"""The committed draft rows under a wiring: other states, other tokens, rows that are not there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle3ref.diagnose.wiring import Stream, Wiring
from eagle3ref.errors import Eagle3RefError
from eagle3ref.replay.feed import Feed
from eagle3ref.replay.probabilities import final_states
from eagle3ref.trace import RecordedSequence

_INT8_MAX, _FP8_MAX = 127.0, 448.0
_NOISE = 2.0**-6  # about twice what a network of several layers in bf16 is off


class WiredFeed(Feed):
    """A ``Feed`` with the knobs of a wiring.

    Args:
        sequences: B of them.
        streams: handed over, in the order that ``fc`` takes them.
        device: of the draft.
        wiring: its knobs.
    """

    def __init__(
        self, sequences: Sequence[RecordedSequence], streams: Sequence[Stream], device: torch.device, wiring: Wiring
    ) -> None:
        super().__init__(sequences, (), device)
        self.streams, self.wiring = streams, wiring
        self.prompt_lengths = torch.tensor([sequence.prompt_length for sequence in sequences], device=device)

    def states(self, first: int, last: int) -> Tensor:
        """As ``Feed.states``."""
        rows = torch.arange(first, last).expand(len(self.sequences), -1)
        return self.states_at(rows)

    def states_at(self, rows: Tensor) -> Tensor:
        """[B, n, A * Ct], the states of the rows [B, n]; zero past the end of a sequence."""
        each = zip(self.sequences, rows.cpu(), strict=True)
        return torch.stack([self._states_of(sequence, some) for sequence, some in each]).to(self.device)

    def _states_of(self, sequence: RecordedSequence, rows: Tensor) -> Tensor:
        """Under a lag the first rows keep the first state."""
        source = (rows - self.wiring.state_lag).clamp_min(0)
        inside = source < len(sequence.tokens)
        parts = []
        for place, stream in enumerate(self.streams):
            recorded = final_states(sequence) if stream == "final" else sequence.aux_hidden_states[stream]
            part = _rounded(recorded[source.where(inside, 0)], self.wiring.rounding)
            part = rotated(part) if self.wiring.rotated else part
            parts.append(part * (inside[:, None] & (place not in self.wiring.zeroed)))
        return noisy(torch.cat(parts, -1), self.wiring.noise)

    def following(self, rows: Tensor) -> Tensor:
        """As ``Feed.following``."""
        tokens = self.token_at(rows + 1 - self.wiring.token_lag)
        if not self.wiring.wrong_token:
            return tokens
        return torch.where(self._is_mistaken(rows), self._mistaken(rows), tokens)

    def _is_mistaken(self, rows: Tensor) -> Tensor:
        """Bool [B, n], the rows that take a wrong next token."""
        last = self.prompt_lengths[:, None] - 1
        if self.wiring.wrong_token.startswith("prompt end"):
            return rows == last
        return ((rows + 1) % self.wiring.chunk == 0) & (rows < last)

    def _mistaken(self, rows: Tensor) -> Tensor:
        """int64 [B, n], the wrong tokens."""
        own = self.token_at(rows)
        if self.wiring.wrong_token == "prompt end: zero":
            return torch.zeros_like(own)
        if self.wiring.wrong_token == "chunk end: first choice":
            each = zip(self.sequences, rows.cpu().expand(own.shape), strict=True)
            return torch.stack([_first_choices(sequence, some) for sequence, some in each]).to(self.device)
        return own

    def sees(self, rows: Tensor, keys: Tensor) -> Tensor:
        """As ``Feed.sees``."""
        seen = super().sees(rows, keys)
        if self.wiring.window is not None:
            seen = seen & (keys > rows[..., None] - self.wiring.window)
        if self.wiring.cached_share:
            cached = cached_rows(self.prompt_lengths, self.wiring.cached_share)[:, None]
            # A cached row is never computed; it sees itself here only so that its softmax has something to sum.
            seen = seen & ((keys >= cached[..., None]) | (rows < cached)[..., None])
        return seen


def cached_rows(prompt_lengths: Tensor, share: float) -> Tensor:
    """int64 [B], rows without draft KV. An engine always computes the last token of a prompt itself."""
    return torch.minimum((prompt_lengths * share).long(), prompt_lengths - 1)


def _first_choices(sequence: RecordedSequence, rows: Tensor) -> Tensor:
    """int64 [n], the target's first choices after some rows; zero past the end."""
    if sequence.argmax is None:
        raise Eagle3RefError(
            f"replaying sequence {sequence.id!r} with a wrong token at the end of each chunk",
            found="no first choices in the record",
            expected="the target's first choice after every token",
            action="Record the trace with `capture`.",
        )
    inside = rows.cpu().clamp_max(len(sequence.argmax) - 1)
    return torch.where(rows.cpu() < len(sequence.argmax), sequence.argmax[inside], 0)


def _rounded(states: Tensor, rounding: str) -> Tensor:
    """Symmetric, one scale for each row."""
    if not rounding:
        return states
    wide = states.float()
    largest = wide.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    if rounding == "int8":
        scale = largest / _INT8_MAX
        return ((wide / scale).round() * scale).to(states.dtype)
    scale = largest / _FP8_MAX
    return ((wide / scale).to(torch.float8_e4m3fn).float() * scale).to(states.dtype)


def rotated(states: Tensor) -> Tensor:
    """[..., C] times a randomized Hadamard rotation, as QuaRot's (arXiv 2404.00456, §3); always the same one.

    The width need not be a power of two: the rotation works in blocks of the largest one that divides it.
    """
    width = states.shape[-1]
    signs = torch.randint(0, 2, (width,), generator=torch.Generator().manual_seed(0)).to(states) * 2 - 1
    hadamard = torch.ones(1, 1)
    while width % (2 * len(hadamard)) == 0:
        hadamard = torch.cat((torch.cat((hadamard, hadamard), 1), torch.cat((hadamard, -hadamard), 1)))
    block = len(hadamard)
    blocks = (states * signs).unflatten(-1, (-1, block))
    turned: Tensor = blocks @ (hadamard * block**-0.5).to(states)
    return turned.flatten(-2)


def noisy(states: Tensor, seed: int) -> Tensor:
    """[..., C], each channel a little larger or smaller, by one factor in every row; seed 0 leaves it as it is."""
    if not seed:
        return states
    factors = 1 + _NOISE * torch.randn(states.shape[-1], generator=torch.Generator().manual_seed(seed))
    return states * factors.to(states)
