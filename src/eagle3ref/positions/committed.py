"""The draft rows of committed tokens, many sequences in one pass without padding: the twin of ``replay.batch``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from eagle3ref.draft import Eagle3Draft
from eagle3ref.draft.model import DraftLayer
from eagle3ref.nn.packed import Groups, PackedPrefix, SequenceKeys
from eagle3ref.trace import RecordedSequence

ROWS_AT_ONCE = 1024  # enough for full matrix products
_FEATURES_AT_ONCE = 2**19  # rows times hidden size that stay in the caches, activations and all


def rows_at_once(draft: Eagle3Draft) -> int:
    """Rows of a forward that neither pays for calls more than for products, nor falls out of the caches."""
    return max(ROWS_AT_ONCE, _FEATURES_AT_ONCE // draft.config.hidden_size)


class _Span(NamedTuple):
    """Rows ``first`` to ``last - 1`` of a sequence."""

    sequence: int
    first: int
    last: int


@dataclass(frozen=True)
class CommittedRows:
    """B recorded sequences with the draft rows that lead to their roots, and the keys and values of all rows before.

    Row p takes the target's states at p and token p + 1, and sees rows 0 to p, as a right server feeds its draft (see
    ``replay.feed.Feed``). Root L, one of prompt_length .. T-2, has the rows 0 .. L-1, and row L-1 leads to it.

    Args:
        tokens: int64 [B, T], prompts and answers; -1 past the end.
        lengths: int64 [B], T of each sequence.
        prompt_lengths: int64 [B].
        keys: per layer, of rows 0 .. T-3.
        state: [R, C], recurrent state of the rows that lead to a root, in order of sequence, then root.
        normed: [R, C], the same as the head reads it.
        num_rows: draft rows that were run; those of a prompt stop in the last layer after their keys and values.
    """

    tokens: Tensor
    lengths: Tensor
    prompt_lengths: Tensor
    keys: list[SequenceKeys]
    state: Tensor
    normed: Tensor
    num_rows: int

    @classmethod
    def of(cls, sequences: Sequence[RecordedSequence], draft: Eagle3Draft) -> CommittedRows:
        """Run the draft over the committed rows of these sequences; memory grows with them."""
        device = draft.target_ids.device
        tokens = torch.nn.utils.rnn.pad_sequence([s.tokens for s in sequences], batch_first=True, padding_value=-1)
        tokens = tokens.to(device)
        prompt_lengths = torch.tensor([s.prompt_length for s in sequences], device=device)
        keys: list[SequenceKeys] = []
        outputs: list[tuple[Tensor, Tensor]] = []
        num_rows = 0
        for spans in _blocks([_num_rows(sequence) for sequence in sequences], rows_at_once(draft)):
            rows = _Rows.of(spans, tokens, prompt_lengths)
            fused = draft.fuse(_states(sequences, spans, draft.capture_points).to(device))
            outputs.append(draft.read_out(_run(draft, fused, rows, keys, (len(sequences), tokens.shape[1]))))
            num_rows += len(fused)
        lengths = torch.tensor([len(sequence.tokens) for sequence in sequences], device=device)
        nothing = draft.fc.weight.new_empty(0, draft.config.hidden_size)
        state, normed = (torch.cat(parts) for parts in zip((nothing, nothing), *outputs, strict=True))
        return cls(tokens, lengths, prompt_lengths, keys, state, normed, num_rows)

    def roots(self) -> tuple[Tensor, Tensor]:
        """Sequence and token index, int64 [R] each, of all roots in order of sequence, then index."""
        counts = self._counts()
        sequence = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
        place = torch.arange(len(sequence), device=counts.device)
        return sequence, place - self._starts()[sequence] + self.prompt_lengths[sequence]

    def first_rows(self, sequence: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """state and normed [n, C] of the rows that lead to these roots, int64 [n] each."""
        place = self._starts()[sequence] + root - self.prompt_lengths[sequence]
        return self.state[place], self.normed[place]

    def prefixes(self, sequence: Tensor, root: Tensor) -> list[PackedPrefix]:
        """Per layer, the rows that a flat batch of groups with these roots, int64 [n] each, looks back to.

        Neighbors should be of one sequence and of similar roots.
        """
        groups = Groups(sequence, root)
        return [PackedPrefix(layer, groups) for layer in self.keys]

    def recorded(self, sequence: Tensor, position: Tensor) -> Tensor:
        """int64 [n], the tokens at these indices of sequences [n]; -1, no token, past the end."""
        found = self.tokens[sequence, position.clamp_max(self.tokens.shape[1] - 1)]
        return torch.where(position < self.tokens.shape[1], found, -1)

    def _counts(self) -> Tensor:
        """int64 [B], roots of each sequence."""
        return (self.lengths - 1 - self.prompt_lengths).clamp_min(0)

    def _starts(self) -> Tensor:
        """int64 [B], place of the first root of each sequence among all."""
        counts = self._counts()
        return counts.cumsum(0) - counts


class _Rows(NamedTuple):
    """The rows of one block.

    Args:
        spans: of the sequences, in this order.
        sequence, position: int64 [n].
        following: int64 [n], the token that goes with each row.
        leading: int64 [m], which of them lead to a root.
    """

    spans: list[_Span]
    sequence: Tensor
    position: Tensor
    following: Tensor
    leading: Tensor

    @classmethod
    def of(cls, spans: list[_Span], tokens: Tensor, prompt_lengths: Tensor) -> _Rows:
        sequence = torch.cat([torch.full((span.last - span.first,), span.sequence) for span in spans])
        position = torch.cat([torch.arange(span.first, span.last) for span in spans])
        sequence, position = sequence.to(tokens.device), position.to(tokens.device)
        leading = (position + 1 >= prompt_lengths[sequence]).nonzero()[:, 0]
        return cls(spans, sequence, position, tokens[sequence, position + 1], leading)


def _num_rows(sequence: RecordedSequence) -> int:
    """Rows 0 .. T-3 lead to the last root, T-2; an answer of one token has no root at all."""
    length = len(sequence.tokens)
    return length - 2 if sequence.prompt_length < length - 1 else 0


def _blocks(num_rows: Sequence[int], at_once: int) -> Iterator[list[_Span]]:
    """All rows, in order, in blocks of at most ``at_once``."""
    block: list[_Span] = []
    free = at_once
    for sequence, count in enumerate(num_rows):
        first = 0
        while first < count:
            last = min(count, first + free)
            block.append(_Span(sequence, first, last))
            free -= last - first
            first = last
            if not free:
                yield block
                block, free = [], at_once
    if block:
        yield block


def _states(sequences: Sequence[RecordedSequence], spans: list[_Span], points: Sequence[int]) -> Tensor:
    """[n, A * Ct], the recorded states of these rows; only they are read from disk."""
    return torch.cat(
        [
            torch.cat([sequences[span.sequence].aux_hidden_states[point][span.first : span.last] for span in spans])
            for point in points
        ],
        -1,
    )


def _run(draft: Eagle3Draft, fused: Tensor, rows: _Rows, keys: list[SequenceKeys], room: tuple[int, int]) -> Tensor:
    """The stream [m, C] after the last layer of the rows that lead to a root; keys and values of all go to ``keys``.

    Rows of a block see those of the blocks before through ``keys``, and each other through it too: it is written before
    it is read.
    """
    stream = fused[None, :, None]  # every row is a group of its own: [1, n, 1, C]
    embedded = draft.embed_tokens(rows.following)[None, :, None].to(stream.dtype)
    position = rows.position[None, :, None]
    groups = Groups(rows.sequence, rows.position + 1)
    for i, layer in enumerate(cast(list[DraftLayer], list(draft.layers))):
        attention = layer.self_attn
        residual, x = layer.attention_input(stream, embedded)
        new = attention.keys_and_values(attention.remember(x, position))
        if i == len(keys):
            keys.append(SequenceKeys.room_for(new, *room))
        _write(keys[i], rows.spans, new)
        if i == len(draft.layers) - 1:
            kept = rows.leading
            residual, x, position = residual[:, kept], x[:, kept], position[:, kept]
            groups = Groups(rows.sequence[kept], rows.position[kept] + 1)
        attended = attention.look_back(attention.query(x, position), position, None, PackedPrefix(keys[i], groups))
        stream = layer.after_attention(residual, attended)
    return stream[0, :, 0]


def _write(keys: SequenceKeys, spans: list[_Span], new: tuple[Tensor, Tensor]) -> None:
    """Keys and values [1, n, 1, G, D] of the rows of these spans."""
    start = 0
    for sequence, first, last in spans:
        end = start + last - first
        keys.write(sequence, first, (new[0][0, start:end, 0], new[1][0, start:end, 0]))
        start = end
