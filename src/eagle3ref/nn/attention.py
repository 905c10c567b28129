"""Attention of new rows over a shared prefix and their group's own rows: grouped-query and multi-head latent."""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from eagle3ref.config import GQAConfig, MLAConfig
from eagle3ref.nn.norm import RMSNorm, at_least_float32
from eagle3ref.nn.rope import RotaryEmbedding


class Rows(NamedTuple):
    """What attention remembers of a row: keys and values (GQA), or the normed latent and the roped key (MLA).

    A prefix has shape [B, K, ...]; a group's own rows have shape [B, P, K, ...].
    """

    first: Tensor
    second: Tensor

    def append(self, new: Rows) -> Rows:
        """The own rows of a group followed by new ones of it."""
        return Rows(torch.cat((self.first, new.first), 2), torch.cat((self.second, new.second), 2))


class Prefix(NamedTuple):
    """Rows that all groups of a sequence share, and which of them each new row may attend to.

    Args:
        rows: [B, K, ...].
        mask: bool, broadcastable to [B, P, Q, K]; True = may attend.
    """

    rows: Rows
    mask: Tensor


class _Part(NamedTuple):
    """One stretch of keys: keys [B, (P,) K, G, D], values [B, (P,) K, G, Dv], mask as in ``Prefix``."""

    keys: Tensor
    values: Tensor
    mask: Tensor


def attend(query: Tensor, parts: list[_Part], scale: float) -> Tensor:
    """Softmax attention over the concatenation of several stretches of keys, which is never formed.

    Args:
        query: [B, P, Q, H, D]; head h reads key-value head ``h // (H / G)``.
        parts: a stretch without the P axis is shared by all groups of a sequence.
        scale: factor on the scores.

    Returns:
        [B, P, Q, H, Dv].
    """
    wide = at_least_float32(query.dtype)
    groups = rearrange(query.to(wide), "b p q (g h) d -> b p q g h d", g=parts[0].keys.shape[-2])
    scores = []
    for keys, _, mask in parts:
        per_group = "p" if keys.ndim == 5 else ""
        part_scores = torch.einsum(f"bpqghd,b{per_group}kgd->bpghqk", groups, keys.to(wide)) * scale
        scores.append(part_scores.masked_fill(~mask[..., None, None, :, :], float("-inf")))
    probs = torch.cat(scores, -1).softmax(-1).to(query.dtype)
    output = torch.zeros((), dtype=query.dtype, device=query.device)
    for (_, values, _), part_probs in zip(parts, probs.split([s.shape[-1] for s in scores], -1), strict=True):
        per_group = "p" if values.ndim == 5 else ""
        output = output + torch.einsum(f"bpghqk,b{per_group}kgd->bpqghd", part_probs, values)
    return rearrange(output, "b p q g h d -> b p q (g h) d")


class GQAttention(nn.Module):
    """Grouped-query attention (arXiv 2305.13245) with half-split rotary pairs, as in Llama."""

    def __init__(self, in_features: int, out_features: int, config: GQAConfig) -> None:
        super().__init__()
        self.config = config
        self.rope = RotaryEmbedding(config.rope, interleaved=False)
        query_size, key_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(in_features, query_size, bias=config.bias)
        self.k_proj = nn.Linear(in_features, key_size, bias=config.bias)
        self.v_proj = nn.Linear(in_features, key_size, bias=config.bias)
        self.o_proj = nn.Linear(query_size, out_features, bias=config.output_bias)
        if config.qk_norm_eps is not None:
            self.q_norm = RMSNorm(config.head_dim, config.qk_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.qk_norm_eps)

    def forward(
        self, x: Tensor, positions: Tensor, *, mask: Tensor, own: Rows | None = None, prefix: Prefix | None = None
    ) -> tuple[Tensor, Rows]:
        """Attend with Q new rows per group.

        With a window, the rows of a prefix stand at the positions 0, 1, 2, ... and earlier own rows were made in passes
        of Q, each one position before the next.

        Args:
            x: [B, P, Q, in_features].
            positions: int64 [B, P, Q], rope positions.
            mask: bool, broadcastable to [B, P, Q, K], over the group's own rows, the Q new ones last.
            own: earlier own rows of the groups, [B, P, K - Q, G, D].
            prefix: rows shared by the groups of a sequence.

        Returns:
            The output [B, P, Q, out_features], and the own rows with the new ones appended.
        """
        query, key, value = (
            rearrange(projection(x), "b p q (h d) -> b p q h d", d=self.config.head_dim)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.config.qk_norm_eps is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        new = Rows(self.rope(key, positions), value)
        rows = new if own is None else own.append(new)
        parts = [_Part(*rows, self._windowed(mask, positions, _own_positions(positions, rows.first.shape[2])))]
        if prefix is not None:
            prefix_positions = torch.arange(prefix.rows.first.shape[1], device=x.device)
            parts.insert(0, _Part(*prefix.rows, self._windowed(prefix.mask, positions, prefix_positions)))
        output = attend(self.rope(query, positions), parts, self.config.softmax_scale)
        return self.o_proj(rearrange(output, "b p q h d -> b p q (h d)")), rows

    def _windowed(self, mask: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor:
        """``mask`` without the keys that lie ``window`` positions or more back."""
        if self.config.window is None:
            return mask
        return mask & (key_positions.unsqueeze(-2) > positions.unsqueeze(-1) - self.config.window)


def _own_positions(positions: Tensor, num_rows: int) -> Tensor:
    """Positions [B, P, K] of the own rows, from those of the newest Q [B, P, Q]."""
    passes = -(-num_rows // positions.shape[-1])
    back = torch.arange(passes - 1, -1, -1, device=positions.device)
    return (positions.unsqueeze(-2) - back.unsqueeze(-1)).flatten(-2)[..., -num_rows:]


class MLAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, §2.1).

    Naive: every remembered row is expanded to keys and values of all heads. Absorbed: the expansion is moved into the
    query and the output, and the rows serve as they are, as one key-value head. Both give the same result; naive is
    cheaper without a prefix, absorbed with one. ``absorbed`` forces one of the two.
    """

    def __init__(self, in_features: int, out_features: int, config: MLAConfig, latent_norm_eps: float) -> None:
        super().__init__()
        self.config = config
        self.absorbed: bool | None = None
        self.rope = RotaryEmbedding(config.rope, interleaved=config.interleaved)
        query_size = config.num_heads * config.qk_head_dim
        if config.q_lora_rank is None:
            self.q_proj = nn.Linear(in_features, query_size, bias=False)
        else:
            self.q_a_proj = nn.Linear(in_features, config.q_lora_rank, bias=False)
            self.q_a_layernorm = RMSNorm(config.q_lora_rank, latent_norm_eps)
            self.q_b_proj = nn.Linear(config.q_lora_rank, query_size, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(in_features, config.kv_lora_rank + config.qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = RMSNorm(config.kv_lora_rank, latent_norm_eps)
        expanded = config.num_heads * (config.qk_nope_head_dim + config.v_head_dim)
        self.kv_b_proj = nn.Linear(config.kv_lora_rank, expanded, bias=False)
        self.o_proj = nn.Linear(config.num_heads * config.v_head_dim, out_features, bias=False)

    def forward(
        self, x: Tensor, positions: Tensor, *, mask: Tensor, own: Rows | None = None, prefix: Prefix | None = None
    ) -> tuple[Tensor, Rows]:
        """As ``GQAttention.forward``; rows are latents [B, P, K, R] and roped keys [B, P, K, Dr]."""
        query_nope, query_rope = self._query(x, positions)
        new = self._remember(x, positions)
        rows = new if own is None else own.append(new)
        stretches = [(rows, mask)] if prefix is None else [prefix, (rows, mask)]
        absorbed = (prefix is not None) if self.absorbed is None else self.absorbed
        scale = self.config.softmax_scale
        if not absorbed:
            query = torch.cat((query_nope, query_rope), -1)
            output = attend(query, [self._expand(*stretch) for stretch in stretches], scale)
        else:
            key_up, value_up = self._up_projections()
            query = torch.cat((torch.einsum("bpqhn,hnr->bpqhr", query_nope, key_up), query_rope), -1)
            latent = attend(query, [_as_one_head(*stretch) for stretch in stretches], scale)
            output = torch.einsum("bpqhr,hvr->bpqhv", latent, value_up)
        return self.o_proj(rearrange(output, "b p q h d -> b p q (h d)")), rows

    def _query(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        projected = (
            self.q_proj(x) if self.config.q_lora_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        )
        heads = rearrange(projected, "b p q (h d) -> b p q h d", d=self.config.qk_head_dim)
        nope, rope = heads.split((self.config.qk_nope_head_dim, self.config.qk_rope_head_dim), -1)
        return nope, self.rope(rope, positions)

    def _remember(self, x: Tensor, positions: Tensor) -> Rows:
        """The normed latent, and the key part with rope, which is one head for all and not normed."""
        latent, key = self.kv_a_proj_with_mqa(x).split((self.config.kv_lora_rank, self.config.qk_rope_head_dim), -1)
        return Rows(self.kv_a_layernorm(latent), self.rope(key.unsqueeze(-2), positions).squeeze(-2))

    def _expand(self, rows: Rows, mask: Tensor) -> _Part:
        heads = rearrange(self.kv_b_proj(rows.first), "... (h d) -> ... h d", h=self.config.num_heads)
        key_nope, value = heads.split((self.config.qk_nope_head_dim, self.config.v_head_dim), -1)
        key_rope = rows.second.unsqueeze(-2).expand(*key_nope.shape[:-1], -1)
        return _Part(torch.cat((key_nope, key_rope), -1), value, mask)

    def _up_projections(self) -> tuple[Tensor, Tensor]:
        """``kv_b_proj`` as latent -> key [H, Dnope, R] and latent -> value [H, Dv, R]."""
        weight = rearrange(self.kv_b_proj.weight, "(h d) r -> h d r", h=self.config.num_heads)
        key_up, value_up = weight.split((self.config.qk_nope_head_dim, self.config.v_head_dim), 1)
        return key_up, value_up


def _as_one_head(rows: Rows, mask: Tensor) -> _Part:
    return _Part(torch.cat(rows, -1).unsqueeze(-2), rows.first.unsqueeze(-2), mask)


def make_attention(
    in_features: int, out_features: int, config: GQAConfig | MLAConfig, latent_norm_eps: float
) -> GQAttention | MLAttention:
    """The attention that ``config`` describes."""
    if isinstance(config, MLAConfig):
        return MLAttention(in_features, out_features, config, latent_norm_eps)
    return GQAttention(in_features, out_features, config)
