"""What the two ways of latent attention cost, in floating-point operations, for one sequence and one layer."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3ref.config import MLAConfig


@dataclass(frozen=True)
class LatentWork:
    """Queries and the rows that they attend to.

    Args:
        queries: Q of each group.
        shared: rows that all groups share, the prefix.
        own: rows of each group, the new ones among them.
        groups: P.
    """

    queries: int
    shared: int
    own: int
    groups: int = 1

    def naive_flops(self, config: MLAConfig) -> int:
        """Expand every row once to keys and values of all heads, then attend in their width."""
        pair = config.num_heads * (config.qk_head_dim + config.v_head_dim)
        return 2 * ((self.shared + self.groups * self.own) * _through_kv_b(config) + self._pairs * pair)

    def absorbed_flops(self, config: MLAConfig) -> int:
        """Take every query to the latent space and its result back, and attend there."""
        pair = config.num_heads * (2 * config.kv_lora_rank + config.qk_rope_head_dim)
        return 2 * (self.groups * self.queries * _through_kv_b(config) + self._pairs * pair)

    def absorbed_is_cheaper(self, config: MLAConfig) -> bool:
        """For Kimi-K2.5 behind 1,000 rows: up to 145 queries."""
        return self.absorbed_flops(config) < self.naive_flops(config)

    @property
    def _pairs(self) -> int:
        return self.groups * self.queries * (self.shared + self.own)


def _through_kv_b(config: MLAConfig) -> int:
    """Multiplications by ``kv_b_proj`` for a row, or by its two halves for a query and its result."""
    return config.num_heads * (config.qk_nope_head_dim + config.v_head_dim) * config.kv_lora_rank
