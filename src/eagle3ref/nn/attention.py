"""What attention makes of rows, queries and outputs: grouped-query and multi-head latent."""

from __future__ import annotations

from functools import partial

import torch
from einops import rearrange
from torch import Tensor, nn

from eagle3ref.config import GQAConfig, MLAConfig
from eagle3ref.nn.absorption import LatentWork
from eagle3ref.nn.attend import Prefix, Rows, SharedRows, Stretch, View, look_back
from eagle3ref.nn.mlp import BLOCK_ROWS
from eagle3ref.nn.norm import RMSNorm, at_least_float32
from eagle3ref.nn.rope import RotaryEmbedding

EXPANDED_AT_ONCE = 2**27  # numbers, of all heads' keys and values of a prefix; 512 MiB in fp32


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
        self, x: Tensor, positions: Tensor, *, mask: Tensor, own: Rows | None = None, prefix: SharedRows | None = None
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
        new = self.remember(x, positions)
        rows = new if own is None else own.append(new)
        return self.look_back(self.query(x, positions), positions, (rows, mask), prefix), rows

    def query(self, x: Tensor, positions: Tensor) -> Tensor:
        """[B, P, Q, in_features] -> [B, P, Q, H, D], roped."""
        query = rearrange(self.q_proj(x), "b p q (h d) -> b p q h d", d=self.config.head_dim)
        if self.config.qk_norm_eps is not None:
            query = self.q_norm(query)
        return self.rope(query, positions)

    def remember(self, x: Tensor, positions: Tensor) -> Rows:
        """[B, P, Q, in_features] -> roped keys and values, each [B, P, Q, G, D]."""
        key, value = (
            rearrange(projection(x), "b p q (h d) -> b p q h d", d=self.config.head_dim)
            for projection in (self.k_proj, self.v_proj)
        )
        if self.config.qk_norm_eps is not None:
            key = self.k_norm(key)
        return Rows(self.rope(key, positions), value)

    def keys_and_values(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Keys [..., G, D] and values [..., G, Dv] of rows, which they are."""
        return rows.first, rows.second

    def look_back(
        self, query: Tensor, positions: Tensor, own: tuple[Rows, Tensor] | None, prefix: SharedRows | None
    ) -> Tensor:
        """Attend to shared rows, or to a group's own ones with their mask, or to both -> [B, P, Q, out_features]."""
        view = View(self.keys_and_values, positions, self.config.window, self.config.softmax_scale)
        stretches = []
        if own is not None:
            rows, mask = own
            stretches = [Stretch(*rows, view.windowed(mask, _own_positions(positions, rows.first.shape[2])))]
        output = look_back(query, stretches, prefix, view)
        attended: Tensor = self.o_proj(rearrange(output, "b p q h d -> b p q (h d)"))
        return attended


def _own_positions(positions: Tensor, num_rows: int) -> Tensor:
    """Positions [B, P, K] of the own rows, from those of the newest Q [B, P, Q]."""
    passes = -(-num_rows // positions.shape[-1])
    back = torch.arange(passes - 1, -1, -1, device=positions.device)
    return (positions.unsqueeze(-2) - back.unsqueeze(-1)).flatten(-2)[..., -num_rows:]


class MLAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, §2.1).

    Naive: every remembered row is expanded to keys and values of all heads. Absorbed: the expansion is moved into the
    query and the output, and the rows serve as they are, as one key-value head. Both give the same result. Without a
    prefix naive is cheaper. Behind a ``Prefix`` the one of fewer operations is taken, absorbed for the few rows of a
    tree, or absorbed where expanded rows would need much memory. Other shared rows are attended to in the form in which
    ``keys_and_values`` gives them. ``absorbed`` forces one of the two.
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
        self, x: Tensor, positions: Tensor, *, mask: Tensor, own: Rows | None = None, prefix: SharedRows | None = None
    ) -> tuple[Tensor, Rows]:
        """As ``GQAttention.forward``; rows are latents [B, P, K, R] and roped keys [B, P, K, Dr]."""
        new = self.remember(x, positions)
        rows = new if own is None else own.append(new)
        return self.look_back(self.query(x, positions), positions, (rows, mask), prefix), rows

    def look_back(
        self, query: Tensor, positions: Tensor, own: tuple[Rows, Tensor] | None, prefix: SharedRows | None
    ) -> Tensor:
        """As ``GQAttention.look_back``; query as of ``query``."""
        absorbed = self._absorbs(query, None if own is None else own[0], prefix)
        view = View(partial(self.keys_and_values, absorbed=absorbed), positions, None, self.config.softmax_scale)
        stretches = [] if own is None else [Stretch(*view.keys_and_values(own[0]), own[1])]
        return self._attended(query, stretches, prefix, view, absorbed=absorbed)

    def causal(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Rows]:
        """Whole sequences from their first rows, block by block of ``BLOCK_ROWS`` query rows.

        One block is ``forward`` with a causal mask. Several are the same result without the keys that lie ahead.

        Args:
            x: [B, P, Q, in_features].
            positions: int64 [B, P, Q], rope positions.

        Returns:
            The output [B, P, Q, out_features], and the rows.
        """
        rows = self.remember(x, positions)
        absorbed = self.absorbed is True
        keys, values = self.keys_and_values(rows, absorbed=absorbed)
        keys = keys.to(at_least_float32(keys.dtype))  # once, not in every block
        row = torch.arange(x.shape[2], device=x.device)
        blocks = []
        for start in range(0, len(row), BLOCK_ROWS):
            block = slice(start, min(start + BLOCK_ROWS, len(row)))
            view = View(self.keys_and_values, positions[:, :, block], None, self.config.softmax_scale)
            mask = (row[block, None] >= row[: block.stop]).expand(*x.shape[:2], -1, -1)
            seen = Stretch(keys[:, :, : block.stop], values[:, :, : block.stop], mask)
            query = self.query(x[:, :, block], view.positions)
            blocks.append(self._attended(query, [seen], None, view, absorbed=absorbed))
        return torch.cat(blocks, 2), rows

    def _attended(
        self, query: Tensor, own: list[Stretch], prefix: SharedRows | None, view: View, *, absorbed: bool
    ) -> Tensor:
        if not absorbed:
            output = look_back(query, own, prefix, view)
        else:
            key_up, value_up = self.up_projections()
            query_nope, query_rope = query.split((self.config.qk_nope_head_dim, self.config.qk_rope_head_dim), -1)
            query = torch.cat((torch.einsum("bpqhn,hnr->bpqhr", query_nope, key_up), query_rope), -1)
            latent = look_back(query, own, prefix, view)
            output = torch.einsum("bpqhr,hvr->bpqhv", latent, value_up)
        attended: Tensor = self.o_proj(rearrange(output, "b p q h d -> b p q (h d)"))
        return attended

    def query(self, x: Tensor, positions: Tensor) -> Tensor:
        """[B, P, Q, in_features] -> [B, P, Q, H, Dnope + Dr], the last Dr features roped."""
        projected = (
            self.q_proj(x) if self.config.q_lora_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        )
        heads = rearrange(projected, "b p q (h d) -> b p q h d", d=self.config.qk_head_dim)
        nope, rope = heads.split((self.config.qk_nope_head_dim, self.config.qk_rope_head_dim), -1)
        return torch.cat((nope, self.rope(rope, positions)), -1)

    def remember(self, x: Tensor, positions: Tensor) -> Rows:
        """The normed latent, and the key part with rope, which is one head for all and not normed."""
        latent, key = self.kv_a_proj_with_mqa(x).split((self.config.kv_lora_rank, self.config.qk_rope_head_dim), -1)
        return Rows(self.kv_a_layernorm(latent), self.rope(key.unsqueeze(-2), positions).squeeze(-2))

    def keys_and_values(self, rows: Rows, *, absorbed: bool | None = None) -> tuple[Tensor, Tensor]:
        """Keys [..., G, D] and values [..., G, Dv] of rows: latents as one head, or expanded to all heads.

        Args:
            rows: latents and roped keys.
            absorbed: the former; None for the form in which shared rows other than a ``Prefix`` are kept.
        """
        if absorbed is None:
            absorbed = self.absorbed is not False
        if absorbed:
            return torch.cat(rows, -1).unsqueeze(-2), rows.first.unsqueeze(-2)
        heads = rearrange(self.kv_b_proj(rows.first), "... (h d) -> ... h d", h=self.config.num_heads)
        key_nope, value = heads.split((self.config.qk_nope_head_dim, self.config.v_head_dim), -1)
        key_rope = rows.second.unsqueeze(-2).expand(*key_nope.shape[:-1], -1)
        return torch.cat((key_nope, key_rope), -1), value

    def up_projections(self) -> tuple[Tensor, Tensor]:
        """``kv_b_proj`` as latent -> key [H, Dnope, R] and latent -> value [H, Dv, R]."""
        weight = rearrange(self.kv_b_proj.weight, "(h d) r -> h d r", h=self.config.num_heads)
        key_up, value_up = weight.split((self.config.qk_nope_head_dim, self.config.v_head_dim), 1)
        return key_up, value_up

    def _absorbs(self, query: Tensor, own: Rows | None, prefix: SharedRows | None) -> bool:
        if self.absorbed is not None:
            return self.absorbed
        if not isinstance(prefix, Prefix):
            return prefix is not None
        batch, groups, queries = query.shape[:3]
        shared = prefix.rows.first.shape[1]
        work = LatentWork(queries, shared, 0 if own is None else own.first.shape[2], groups)
        expanded = batch * shared * self.config.num_heads * (self.config.qk_head_dim + self.config.v_head_dim)
        return expanded > EXPANDED_AT_ONCE or work.absorbed_is_cheaper(self.config)


def make_attention(
    in_features: int, out_features: int, config: GQAConfig | MLAConfig, latent_norm_eps: float
) -> GQAttention | MLAttention:
    """The attention that ``config`` describes."""
    if isinstance(config, MLAConfig):
        return MLAttention(in_features, out_features, config, latent_norm_eps)
    return GQAttention(in_features, out_features, config)
