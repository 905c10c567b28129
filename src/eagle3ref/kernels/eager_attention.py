"""Tree attention in plain PyTorch: a shared prefix of its own length per group, and own rows by packed bitmask.

A group is one round of one request: Q queries, a prefix row of which it reads the first ``prefix_lengths`` rows, and N
own rows. Query q sees own row j where bit ``j % 32`` of word ``j // 32`` of ``ancestors[g, q]`` is set. Both forms are
one softmax over prefix and own rows together.

Nothing here waits for the device, so values are not checked: a group whose prefix length or prefix row is out of range
gives NaN, here and in the Triton twins. A query that sees no row at all gives zeros. Prefix rows behind a length may
hold anything; own rows are read whether a query sees them or not, and have to be finite.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

from eagle3ref.kernels.attention_shapes import WORD_BITS, check_attention, check_attention_mla
from eagle3ref.nn.norm import at_least_float32


def tree_attention(
    query: Tensor,
    prefix_keys: Tensor,
    prefix_values: Tensor,
    prefix_lengths: Tensor,
    own_keys: Tensor,
    own_values: Tensor,
    ancestors: Tensor,
    scale: float,
    *,
    prefix_of: Tensor | None = None,
) -> Tensor:
    """Grouped-query attention of tree nodes; head h reads key-value head ``h // (H / Hkv)``.

    Args:
        query: [G, Q, H, D].
        prefix_keys: [B, T, Hkv, D], with positions applied.
        prefix_values: [B, T, Hkv, Dv].
        prefix_lengths: int32 or int64 [G], 0 to T: how many prefix rows the group reads.
        own_keys: [G, N, Hkv, D].
        own_values: [G, N, Hkv, Dv].
        ancestors: int32 [G, Q, W], W >= N / 32, as ``pack_mask`` makes it; bits from N on are not read.
        scale: factor on the scores.
        prefix_of: int32 or int64 [G], the prefix row of each group; None when G = B and each has its own.

    Returns:
        [G, Q, H, Dv] in the dtype of the query.

    Raises:
        Eagle3RefError: shapes, dtypes or devices that do not fit.
    """
    check_attention(query, prefix_keys, prefix_values, prefix_lengths, own_keys, own_values, ancestors, prefix_of)
    prefix = _PrefixRows(prefix_keys, prefix_lengths, prefix_of)
    visible = torch.cat((prefix.visible(query.shape[1]), _unpacked(ancestors, own_keys.shape[1])), -1)  # [G, Q, T + N]
    keys = torch.cat((prefix.read(prefix_keys), own_keys), 1)  # [G, T + N, Hkv, D]
    values = torch.cat((prefix.read(prefix_values), own_values), 1)
    wide = at_least_float32(query.dtype)
    heads = rearrange(query.to(wide), "g q (k r) d -> g k r q d", k=keys.shape[2])
    scores = torch.einsum("gkrqd,gtkd->gkrqt", heads, keys.to(wide)) * scale
    probs = _softmax(scores, visible[:, None, None]).to(query.dtype)
    output = rearrange(torch.einsum("gkrqt,gtkd->gkrqd", probs, values), "g k r q d -> g q (k r) d")
    return prefix.poison(output)


def tree_attention_mla(
    query_latent: Tensor,
    query_rope: Tensor,
    prefix_latent: Tensor,
    prefix_rope: Tensor,
    prefix_lengths: Tensor,
    own_latent: Tensor,
    own_rope: Tensor,
    ancestors: Tensor,
    scale: float,
    *,
    prefix_of: Tensor | None = None,
) -> Tensor:
    """Multi-head latent attention of tree nodes, absorbed (arXiv 2405.04434, section 2.1): all heads read one latent.

    The score is ``query_latent . latent + query_rope . rope``, and the latent is the value too. What comes back is
    still to be multiplied by the value half of ``kv_b_proj``.

    Args:
        query_latent: [G, Q, H, R], the query after the key half of ``kv_b_proj``.
        query_rope: [G, Q, H, Dr].
        prefix_latent: [B, T, R], normed.
        prefix_rope: [B, T, Dr], with positions applied.
        prefix_lengths: as in ``tree_attention``, like ``ancestors``, ``scale`` and ``prefix_of``.
        own_latent: [G, N, R].
        own_rope: [G, N, Dr].

    Returns:
        [G, Q, H, R] in the dtype of the query.

    Raises:
        Eagle3RefError: shapes, dtypes or devices that do not fit.
    """
    check_attention_mla(
        query_latent,
        query_rope,
        prefix_latent,
        prefix_rope,
        prefix_lengths,
        own_latent,
        own_rope,
        ancestors,
        prefix_of,
    )
    prefix = _PrefixRows(prefix_latent, prefix_lengths, prefix_of)
    own = _unpacked(ancestors, own_latent.shape[1])
    visible = torch.cat((prefix.visible(query_latent.shape[1]), own), -1)  # [G, Q, T + N]
    latent = torch.cat((prefix.read(prefix_latent), own_latent), 1)  # [G, T + N, R]
    rope = torch.cat((prefix.read(prefix_rope), own_rope), 1)
    wide = at_least_float32(query_latent.dtype)
    scores = torch.einsum("gqhr,gtr->ghqt", query_latent.to(wide), latent.to(wide))
    scores = (scores + torch.einsum("gqhd,gtd->ghqt", query_rope.to(wide), rope.to(wide))) * scale
    probs = _softmax(scores, visible[:, None]).to(query_latent.dtype)
    return prefix.poison(torch.einsum("ghqt,gtr->gqhr", probs, latent))


def pack_mask(mask: Tensor) -> Tensor:
    """A mask as bits: column j is bit ``j % 32`` of word ``j // 32``. Runs on the mask's device without waiting for it.

    Args:
        mask: bool [..., N], True = may attend; ``DraftTree.tree_mask`` is one.

    Returns:
        int32 [..., W], W = N / 32 rounded up; bits from N on are 0.
    """
    padded = torch.nn.functional.pad(mask, (0, -mask.shape[-1] % WORD_BITS)).unflatten(-1, (-1, WORD_BITS))
    place = torch.arange(WORD_BITS, dtype=torch.int32, device=mask.device)
    words: Tensor = (padded.to(torch.int32) << place).sum(-1, dtype=torch.int32)  # distinct bits: no sum carries
    return words


class _PrefixRows:
    """Which prefix rows each group reads.

    Args:
        prefix: [B, T, ...], for its shape.
        lengths: [G].
        prefix_of: [G] or None.
    """

    def __init__(self, prefix: Tensor, lengths: Tensor, prefix_of: Tensor | None) -> None:
        num_prefixes, num_tokens = prefix.shape[:2]
        rows = torch.arange(len(lengths), device=lengths.device) if prefix_of is None else prefix_of.long()
        self.valid = (rows >= 0) & (rows < num_prefixes) & (lengths >= 0) & (lengths <= num_tokens)  # [G]
        self.rows = rows.where(self.valid, 0)
        self.readable = torch.arange(num_tokens, device=lengths.device) < lengths[:, None]  # [G, T]

    def read(self, prefix: Tensor) -> Tensor:
        """[B, T, ...] -> [G, T, ...]. What lies behind a length may be anything, NaN too, and becomes 0."""
        readable = self.readable.view(*self.readable.shape, *[1] * (prefix.ndim - 2))
        return prefix[self.rows].where(readable, 0)

    def visible(self, num_queries: int) -> Tensor:
        """bool [G, Q, T]."""
        return self.readable[:, None].expand(-1, num_queries, -1)

    def poison(self, output: Tensor) -> Tensor:
        """[G, ...] with NaN for the groups that asked for what is not there."""
        return output.where(self.valid.view(-1, *[1] * (output.ndim - 1)), float("nan"))


def _unpacked(ancestors: Tensor, num_own: int) -> Tensor:
    """int32 [G, Q, W] -> bool [G, Q, N]."""
    place = torch.arange(WORD_BITS, dtype=torch.int32, device=ancestors.device)
    return ((ancestors.unsqueeze(-1) >> place) & 1).flatten(-2)[..., :num_own].bool()


def _softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Probabilities over the last axis; a query that sees nothing has none."""
    return scores.masked_fill(~visible, float("-inf")).softmax(-1).where(visible, 0.0)
