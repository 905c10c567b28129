"""Attention of new rows over shared rows and their group's own ones, whatever made queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from einops import rearrange
from torch import Tensor

from eagle3ref.nn.norm import at_least_float32

SCORES_AT_A_TIME = 2**24  # of all heads; 64 MiB in fp32, a few times that with what softmax makes of them


class Rows(NamedTuple):
    """What attention remembers of a row: keys and values (GQA), or the normed latent and the roped key (MLA).

    A prefix has shape [B, K, ...]; a group's own rows have shape [B, P, K, ...].
    """

    first: Tensor
    second: Tensor

    def append(self, new: Rows) -> Rows:
        """The own rows of a group followed by new ones of it."""
        return Rows(torch.cat((self.first, new.first), 2), torch.cat((self.second, new.second), 2))


class Stretch(NamedTuple):
    """Keys [B, (P,) K, G, D], their values [B, (P,) K, G, Dv], and a mask broadcastable to [B, P, Q, K]."""

    keys: Tensor
    values: Tensor
    mask: Tensor


class View(NamedTuple):
    """How the new rows of one layer look back.

    Args:
        keys_and_values: rows [..., K, ...] -> keys [..., K, G, D] and values [..., K, G, Dv].
        positions: int64 [B, P, Q], of the new rows.
        window: keys that lie so many positions back or more are not seen; None: all are.
        scale: factor on the scores.
    """

    keys_and_values: Callable[[Rows], tuple[Tensor, Tensor]]
    positions: Tensor
    window: int | None
    scale: float

    def windowed(self, mask: Tensor, key_positions: Tensor) -> Tensor:
        """``mask`` without the keys that the window leaves behind; key_positions [..., K]."""
        if self.window is None:
            return mask
        return mask & (key_positions.unsqueeze(-2) > self.positions.unsqueeze(-1) - self.window)


class SharedRows(Protocol):
    """Rows that groups share. They decide how new rows attend to them and to their group's own rows."""

    def attend(self, query: Tensor, own: list[Stretch], view: View) -> Tensor:
        """query [B, P, Q, H, D], and the stretch of the groups' own rows if there are any -> [B, P, Q, H, Dv]."""
        ...


class Prefix(NamedTuple):
    """Rows that all groups of a sequence share, and which of them each new row may attend to.

    Args:
        rows: [B, K, ...].
        mask: bool, broadcastable to [B, P, Q, K]; True = may attend.
    """

    rows: Rows
    mask: Tensor

    def attend(self, query: Tensor, own: list[Stretch], view: View) -> Tensor:
        """One softmax over the shared and the own rows."""
        key_positions = torch.arange(self.rows.first.shape[1], device=query.device)
        shared = Stretch(*view.keys_and_values(self.rows), view.windowed(self.mask, key_positions))
        return attend(query, [shared, *own], view.scale)


def attend(query: Tensor, parts: list[Stretch], scale: float) -> Tensor:
    """Softmax attention over the concatenation of several stretches of keys, which is never formed.

    Many queries are taken a few rows at a time, by their shape alone, so that scores are bounded.

    Args:
        query: [B, P, Q, H, D]; head h reads key-value head ``h // (H / G)``.
        parts: a stretch without the P axis is shared by all groups of a sequence.
        scale: factor on the scores.

    Returns:
        [B, P, Q, H, Dv].
    """
    wide = at_least_float32(query.dtype)
    parts = [Stretch(keys.to(wide), values, mask) for keys, values, mask in parts]
    batch, groups, num_rows, heads, _ = query.shape
    num_keys = sum(part.keys.shape[-3] for part in parts)
    rows = max(1, SCORES_AT_A_TIME // (batch * groups * heads * num_keys))
    if rows >= num_rows:
        return _attend(query, parts, scale)
    blocks = [slice(start, start + rows) for start in range(0, num_rows, rows)]
    return torch.cat([_attend(query[:, :, block], _of_rows(parts, block), scale) for block in blocks], 2)


def _of_rows(parts: list[Stretch], rows: slice) -> list[Stretch]:
    """The stretches as some of the query rows see them; a mask that all rows share stays as it is."""
    return [part if part.mask.shape[-2] == 1 else part._replace(mask=part.mask[..., rows, :]) for part in parts]


def _attend(query: Tensor, parts: list[Stretch], scale: float) -> Tensor:
    wide = at_least_float32(query.dtype)
    groups = rearrange(query.to(wide), "b p q (g h) d -> b p q g h d", g=parts[0].keys.shape[-2])
    scores = []
    for keys, _, mask in parts:
        per_group = "p" if keys.ndim == 5 else ""
        part_scores = torch.einsum(f"bpqghd,b{per_group}kgd->bpghqk", groups, keys) * scale
        scores.append(part_scores.masked_fill(~mask[..., None, None, :, :], float("-inf")))
    probs = torch.cat(scores, -1).softmax(-1).to(query.dtype)
    output = torch.zeros((), dtype=query.dtype, device=query.device)
    for (_, values, _), part_probs in zip(parts, probs.split([s.shape[-1] for s in scores], -1), strict=True):
        per_group = "p" if values.ndim == 5 else ""
        output = output + torch.einsum(f"bpghqk,b{per_group}kgd->bpqghd", part_probs, values)
    return rearrange(output, "b p q g h d -> b p q (g h) d")


def look_back(query: Tensor, own: list[Stretch], shared: SharedRows | None, view: View) -> Tensor:
    """Attend to the own rows, or as the shared ones decide -> [B, P, Q, H, Dv]."""
    return attend(query, own, view.scale) if shared is None else shared.attend(query, own, view)
