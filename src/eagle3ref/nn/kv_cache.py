"""Rows of committed tokens, layer by layer, for sequences of different lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.nn.attend import Prefix, Rows

_LEAST_GROWTH = 32  # rows


class KVCache:
    """Keeps the accepted rows of each forward and forgets the rest. Rows stay on the device that made them.

    Args:
        num_layers: layers that remember.
        batch_size: B sequences.
        device: where the lengths live.
    """

    def __init__(self, num_layers: int, batch_size: int, device: torch.device | str = "cpu") -> None:
        self.lengths = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self._layers: list[Rows | None] = [None] * num_layers
        self._pending: list[Rows] = []

    def prefixes(self, lengths: Tensor | None = None) -> list[Prefix] | None:
        """The committed rows of every layer; None while there are none.

        Args:
            lengths: int64 [B], show only the first so many rows of each sequence; all committed ones when None.
        """
        lengths = self.lengths if lengths is None else lengths
        longest = int(lengths.max())
        visible = (torch.arange(longest, device=lengths.device) < lengths[:, None])[:, None, None]  # [B, 1, 1, K]
        committed = [Rows(*(part[:, :longest] for part in rows)) for rows in self._layers if rows is not None]
        return [Prefix(rows, visible.to(rows.first.device)) for rows in committed] or None

    def offer(self, pending: list[Rows]) -> None:
        """Hold the new rows of every layer, each [B, 1, Q, ...], until ``keep``."""
        self._pending = pending

    def fill(self, layers: list[Rows], lengths: Tensor) -> None:
        """Commit whole sequences to an empty cache.

        Args:
            layers: of every layer, each [B, T, ...]; rows past a sequence's length mean nothing.
            lengths: int64 [B].
        """
        self._layers = list(layers)
        self.lengths = lengths.to(self.lengths.device)

    def keep(self, rows: Tensor, counts: Tensor) -> None:
        """Commit, for sequence b, the pending rows ``rows[b, :counts[b]]`` in that order; drop the others.

        Args:
            rows: int64 [B, n].
            counts: int64 [B].
        """
        batch = torch.arange(rows.shape[0], device=rows.device)[:, None]
        slots = self.lengths[:, None] + torch.arange(rows.shape[1], device=rows.device)
        needed = int(slots.max()) + 1
        if len(self._pending) != len(self._layers):
            raise ValueError(f"rows of {len(self._pending)} layers to keep from, not of {len(self._layers)}")
        # Each layer in the place of the old one, to which nothing else refers: only one is ever there twice.
        for index, pending in enumerate(self._pending):
            self._layers[index] = _written(self._layers[index], pending, (batch, slots, rows), needed)
        self._pending = []
        self.lengths = self.lengths + counts

    def select(self, sequences: Tensor) -> None:
        """Keep only these sequences, in this order, and no more room than the longest of them needs.

        Args:
            sequences: int64 [b], places in the batch, at least one.
        """
        self.lengths = self.lengths[sequences.to(self.lengths.device)]
        longest = int(self.lengths.max())
        for index, rows in enumerate(self._layers):
            if rows is not None:
                self._layers[index] = Rows(*(part[:, :longest][sequences.to(part.device)] for part in rows))
        self._pending = []

    @property
    def num_bytes(self) -> int:
        """Of the buffers of committed rows."""
        return sum(part.nbytes for rows in self._layers if rows is not None for part in rows)


def _written(committed: Rows | None, pending: Rows, places: tuple[Tensor, Tensor, Tensor], needed: int) -> Rows:
    """In place. Rows past a new length are leftovers: masks hide them and the next ``keep`` overwrites them."""
    batch, slots, rows = (place.to(pending.first.device) for place in places)
    return Rows(
        *(
            _with_room(buffer, new, needed).index_put_((batch, slots), new[:, 0][batch, rows])
            for buffer, new in zip(committed or (None, None), pending, strict=True)
        )
    )


def _with_room(buffer: Tensor | None, like: Tensor, needed: int) -> Tensor:
    """A buffer [B, capacity >= needed, ...]; a full one grows by an eighth, for a cache may be most of the memory."""
    if buffer is not None and buffer.shape[1] >= needed:
        return buffer
    capacity = needed if buffer is None else max(needed, buffer.shape[1] + max(_LEAST_GROWTH, buffer.shape[1] // 8))
    grown = like.new_zeros(like.shape[0], capacity, *like.shape[3:])
    if buffer is not None:
        grown[:, : buffer.shape[1]] = buffer
    return grown
