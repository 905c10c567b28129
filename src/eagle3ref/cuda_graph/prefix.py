"""The committed rows of a batch as the draft's layers see them, attended to by the kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from eagle3ref.draft import Eagle3Draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels import Ops
from eagle3ref.nn import Rows
from eagle3ref.nn.attend import Stretch, View


class TreePrefix(NamedTuple):
    """``nn.SharedRows`` on ``ops.tree_attention`` and ``ops.tree_attention_mla``, for one group a sequence.

    The mask of the own rows, which a layer hands on as it is, is here the packed ancestors, int32 [B, 1, Q, W].

    Args:
        rows: [B, T, ...], keys and values (GQA), or latents and roped keys (MLA).
        lengths: int64 [B], how many of them each sequence has.
        ops: whose attention it is.
    """

    rows: Rows
    lengths: Tensor
    ops: Ops

    def attend(self, query: Tensor, own: list[Stretch], view: View) -> Tensor:
        """query [B, 1, Q, H, D], of MLA absorbed, and the stretch of own rows -> [B, 1, Q, H, Dv]."""
        query, keys, values, ancestors = (part.squeeze(1) for part in (query, *own[0]))
        if self.rows.first.ndim == 4:
            after = (self.lengths, keys, values, ancestors, view.scale)
            output: Tensor = self.ops.tree_attention(query, *self.rows, *after)
        else:
            sizes = [self.rows.first.shape[-1], self.rows.second.shape[-1]]  # latent, then the part with rope
            latents, ropes = zip(*(part.split(sizes, -1) for part in (query, keys.squeeze(-2))), strict=True)
            after = (self.lengths, latents[1], ropes[1], ancestors, view.scale)
            output = self.ops.tree_attention_mla(latents[0], ropes[0], *self.rows, *after)
        return output.unsqueeze(1)


def without_host_reads(draft: Eagle3Draft) -> Eagle3Draft:
    """The same tensors as a network that never looks at a value: a dynamic rope, which does, becomes the plain one that
    it is within its range.

    Raises:
        Eagle3RefError: a sliding window, which the kernels do not have.
    """
    windows = [window for window in draft.config.layer_windows if window is not None]
    if windows:
        raise Eagle3RefError(
            "setting up the draft loop",
            found=f"a sliding window of {windows[0]} rows",
            expected="layers that see their whole prefix, as tree_attention does",
            action="Run this draft with propose.",
        )
    attention = draft.config.attention
    if attention.rope.type != "dynamic":
        return draft
    plain = replace(attention, rope=replace(attention.rope, type="default"))
    return draft.rewired(replace(draft.config, attention=plain))


def longest_prefix(draft: Eagle3Draft, num_steps: int) -> int | None:
    """Rows that a prefix may have so that every pass stays within a dynamic rope; None is no limit."""
    rope = draft.config.attention.rope
    return rope.original_max_position_embeddings - num_steps + 1 if rope.type == "dynamic" else None
