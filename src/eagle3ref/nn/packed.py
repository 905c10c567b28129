"""A twin of ``Prefix`` for many sequences at once: keys are kept once, and no mask of rows x keys is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from eagle3ref.nn.attend import Stretch, View
from eagle3ref.nn.norm import at_least_float32

_GROUPS_AT_ONCE = 32  # of a sequence; they share the keys up to the longest prefix among them
_SCORES_AT_ONCE = 2**20  # of sequences side by side


class SequenceKeys(NamedTuple):
    """Keys [B, G, T, D] and values [B, G, T, Dv] of B sequences, finite throughout. Heads come first for ``bmm``."""

    keys: Tensor
    values: Tensor

    @classmethod
    def room_for(cls, like: tuple[Tensor, Tensor], batch: int, longest: int) -> SequenceKeys:
        """Zeros for ``longest`` rows of each sequence, of the kind of these keys and values [..., G, D]."""
        return cls(*(part.new_zeros(batch, part.shape[-2], longest, part.shape[-1]) for part in like))

    def write(self, sequence: int, first: int, new: tuple[Tensor, Tensor]) -> None:
        """Keys and values [n, G, D] of the rows ``first``, ``first + 1``, ... of a sequence."""
        for buffer, part in zip(self, new, strict=True):
            buffer[sequence, :, first : first + len(part)] = part.transpose(0, 1)


class _Block(NamedTuple):
    """Groups that attend together: up to g of each of b sequences. A sequence with fewer repeats its last, one with
    none has another's.

    Args:
        sequences: that they belong to; a slice where they are neighbors, so that their keys are not copied.
        groups: int64 [b, g].
        lengths: int64 [b, g], of their prefixes.
        shortest, longest: of these lengths.
        real: int64 [m], places in b * g that are no repetition.
        targets: int64 [m], the groups at these places.
    """

    sequences: slice | Tensor
    groups: Tensor
    lengths: Tensor
    shortest: int
    longest: int
    real: Tensor
    targets: Tensor


class Groups:
    """The groups of a flat batch: where each looks back.

    Args:
        sequence: int64 [n], each group's sequence.
        lengths: int64 [n], the group sees the first so many rows of its sequence.
    """

    def __init__(self, sequence: Tensor, lengths: Tensor) -> None:
        self.lengths = lengths
        key = (sequence * (1 + int(lengths.max() if len(lengths) else 0)) + lengths).cpu()
        self._order = key.argsort(stable=True)
        self._sorted_lengths = lengths.cpu()[self._order]
        self._counts = torch.bincount(sequence.cpu())
        self._starts = self._counts.cumsum(0) - self._counts
        self._made: dict[int, list[_Block]] = {}

    def blocks(self, scores_per_key: int) -> list[_Block]:
        """All groups, in blocks of at most ``_SCORES_AT_ONCE`` scores where one sequence has no more.

        Args:
            scores_per_key: heads times rows of a group.
        """
        if scores_per_key not in self._made:
            self._made[scores_per_key] = list(self._make(scores_per_key))
        return self._made[scores_per_key]

    def _make(self, scores_per_key: int) -> Iterator[_Block]:
        most = int(self._counts.max()) if len(self._counts) else 0
        for first in range(0, most, _GROUPS_AT_ONCE):
            left = (self._counts - first).clamp(0, _GROUPS_AT_ONCE)
            active = (left > 0).nonzero()[:, 0]
            longest = int(self._sorted_lengths[(self._starts + first + left - 1)[active]].max())
            cost = scores_per_key * int(left.max()) * max(longest, 1)
            for sequences in active.split(max(1, _SCORES_AT_ONCE // cost)):
                neighbors = _filled_up(sequences)
                yield self._block(neighbors, first, left[neighbors])

    def _block(self, sequences: Tensor, first: int, counts: Tensor) -> _Block:
        column = torch.arange(int(counts.max()))
        last = (counts[:, None] - 1).clamp_min(0)
        place = (self._starts[sequences] + first)[:, None] + torch.minimum(column, last)  # [b, g]
        place = place.clamp_max(len(self._order) - 1)  # those of a sequence that has none are another's
        groups, lengths = self._order[place], self._sorted_lengths[place]
        real = (column < counts[:, None]).flatten().nonzero()[:, 0]
        low, high = int(sequences[0]), int(sequences[-1]) + 1
        device = self.lengths.device
        return _Block(
            slice(low, high) if high - low == len(sequences) else sequences.to(device),
            groups.to(device),
            lengths.to(device),
            int(lengths.flatten()[real].min()),
            int(lengths.flatten()[real].max()),
            real.to(device),
            groups.flatten()[real].to(device),
        )


def _filled_up(sequences: Tensor) -> Tensor:
    """Neighbors instead of these, int64 [b] ascending, if most are: a copy of their keys would cost more."""
    low, high = int(sequences[0]), int(sequences[-1]) + 1
    return torch.arange(low, high) if high - low < 2 * len(sequences) else sequences


@dataclass(frozen=True)
class PackedPrefix:
    """Shared rows of a flat batch: B = 1, and each of its P groups has a sequence and a prefix length of its own.

    As ``Prefix`` with a mask of ``key < length``: one softmax over shared and own rows, with the same roundings. Blocks
    of groups read their sequence's keys up to the longest prefix among them, and only keys past the shortest prefix are
    compared with lengths.

    Args:
        rows: of all sequences.
        groups: [P], of the flat batch.
    """

    rows: SequenceKeys
    groups: Groups

    def attend(self, query: Tensor, own: list[Stretch], view: View) -> Tensor:
        """As ``SharedRows.attend``, with B = 1."""
        num_groups, num_rows, num_heads = query.shape[1:4]
        heads = self.rows.keys.shape[1]
        grouped = rearrange(query[0], "n q (k h) d -> n k h q d", k=heads)
        own_scores = [_own_scores(grouped, stretch, view.scale) for stretch in own]
        own_probs = [torch.empty_like(scores, dtype=query.dtype) for scores in own_scores]
        output = query.new_empty(num_groups, heads, num_heads // heads, num_rows, self.rows.values.shape[-1])
        for block in self.groups.blocks(num_heads * num_rows):
            scores, values = self._shared_scores(grouped, block, view)
            num_keys = scores.shape[-1]
            joint = torch.cat((scores, *(_of_block(part, block) for part in own_scores)), -1)
            probs = joint.softmax(-1).to(query.dtype)
            for target, part in zip(own_probs, (probs[..., num_keys:],) if own else (), strict=True):
                _put(target, part, block)
            _put(output, torch.bmm(probs[..., :num_keys].to(values.dtype), values).to(query.dtype), block)
        for probs, stretch in zip(own_probs, own, strict=True):
            own_values = rearrange(stretch.values[0], "n j k d -> n k j d").to(at_least_float32(query.dtype))
            attended = torch.matmul(probs.flatten(2, 3).to(own_values.dtype), own_values)
            output += attended.to(query.dtype).view_as(output)
        return rearrange(output, "n k h q d -> 1 n q (k h) d")

    def _shared_scores(self, grouped: Tensor, block: _Block, view: View) -> tuple[Tensor, Tensor]:
        """Scores [b * G, rows, keys], -inf where hidden, and the values [b * G, keys, Dv] of these keys.

        Both in at least fp32, whose products need no code of their own for every shape, as those of bf16 on a CPU do.
        """
        wide = at_least_float32(grouped.dtype)
        low, unseen = 0, None
        if view.window is not None:  # keys below are out of a row's window
            unseen = (view.positions[0] - view.window + 1)[block.groups]  # [b, g, Q]
            low = min(max(int(unseen.min()), 0), block.longest)
        keys, values = (part[block.sequences, :, low : block.longest].flatten(0, 1).to(wide) for part in self.rows)
        rows = rearrange(grouped[block.groups].to(wide), "b g k h q d -> (b k) (h g q) d")
        scores = torch.baddbmm(rows.new_empty(()), rows, keys.mT, beta=0, alpha=view.scale)
        (b, g), num_rows = block.groups.shape, grouped.shape[3]
        by_group = scores.view(b, *grouped.shape[1:3], g, num_rows, block.longest - low)
        past = torch.arange(max(block.shortest, low), block.longest, device=scores.device)
        if len(past):
            hidden = past >= block.lengths[..., None]  # [b, g, keys]
            by_group[..., -len(past) :].masked_fill_(hidden[:, None, None, :, None], float("-inf"))
        if unseen is not None:
            left = torch.arange(low, min(max(int(unseen.max()), low), block.longest), device=scores.device)
            hidden = left < unseen[..., None]  # [b, g, Q, keys]
            by_group[..., : len(left)].masked_fill_(hidden[:, None, None], float("-inf"))
        return scores, values


def _own_scores(grouped: Tensor, own: Stretch, scale: float) -> Tensor:
    """[n, G, h, Q, J] over the groups' own rows, -inf where hidden."""
    wide = at_least_float32(grouped.dtype)
    keys = rearrange(own.keys[0].to(wide), "n j k d -> n k d j")
    scores = torch.matmul(grouped.to(wide).flatten(2, 3), keys) * scale
    by_row = scores.view(*grouped.shape[:-1], keys.shape[-1])
    mask = own.mask.expand(1, len(grouped), grouped.shape[3], keys.shape[-1])[0]
    return by_row.masked_fill_(~mask[:, None, None], float("-inf"))


def _of_block(scores: Tensor, block: _Block) -> Tensor:
    """[n, G, h, Q, J] -> [b * G, h * g * Q, J]."""
    return rearrange(scores[block.groups], "b g k h q j -> (b k) (h g q) j")


def _put(target: Tensor, part: Tensor, block: _Block) -> None:
    """[b * G, h * g * Q, X] into its groups of target [n, G, h, Q, X]."""
    (b, g), (_, heads, per_head, rows, _) = block.groups.shape, target.shape
    by_group = rearrange(part, "(b k) (h g q) x -> (b g) k h q x", b=b, g=g, k=heads, h=per_head, q=rows)
    target[block.targets] = by_group[block.real]
