"""Rows of committed tokens, layer by layer, for sequences of different lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.nn.attend import Prefix, Rows


class KVCache:
    """Keeps the accepted rows of each forward and forgets the rest.

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
        committed = [rows for rows in self._layers if rows is not None]
        return [Prefix(Rows(*(part[:, :longest] for part in rows)), visible) for rows in committed] or None

    def offer(self, pending: list[Rows]) -> None:
        """Hold the new rows of every layer, each [B, 1, Q, ...], until ``keep``."""
        self._pending = pending

    def keep(self, rows: Tensor, counts: Tensor) -> None:
        """Commit, for sequence b, the pending rows ``rows[b, :counts[b]]`` in that order; drop the others.

        Args:
            rows: int64 [B, n].
            counts: int64 [B].
        """
        self._layers = [
            self._written(committed, pending, rows)
            for committed, pending in zip(self._layers, self._pending, strict=True)
        ]
        self._pending = []
        self.lengths = self.lengths + counts

    def _written(self, committed: Rows | None, pending: Rows, rows: Tensor) -> Rows:
        """In place. Rows past a new length are leftovers: masks hide them and the next ``keep`` overwrites them."""
        batch = torch.arange(rows.shape[0], device=rows.device)[:, None]
        slots = self.lengths[:, None] + torch.arange(rows.shape[1], device=rows.device)
        needed = int(slots.max()) + 1
        return Rows(
            *(
                _with_room(buffer, new, needed).index_put_((batch, slots), new[:, 0][batch, rows])
                for buffer, new in zip(committed or (None, None), pending, strict=True)
            )
        )


def _with_room(buffer: Tensor | None, like: Tensor, needed: int) -> Tensor:
    """A buffer [B, capacity >= needed, ...], doubled when it is full."""
    if buffer is not None and buffer.shape[1] >= needed:
        return buffer
    capacity = needed if buffer is None else max(needed, 2 * buffer.shape[1])
    grown = like.new_zeros(like.shape[0], capacity, *like.shape[3:])
    if buffer is not None:
        grown[:, : buffer.shape[1]] = buffer
    return grown
