"""Settings of the layers that targets and drafts share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eagle3ref.config.json_fields import JsonFields
from eagle3ref.errors import Eagle3RefError

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def yarn_mscale(factor: float, mscale: float) -> float:
    """YaRN's attention temperature, ``0.1 * mscale * ln(factor) + 1`` (arXiv 2309.00071, eq. 22)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding of ``dim`` features.

    ``attention_factor`` multiplies cos and sin. ``mscale_all_dim`` is DeepSeek's extra: it moves the temperature
    into the softmax scale of MLA (see ``MLAConfig.softmax_scale``).
    """

    dim: int
    theta: float
    type: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale_all_dim: float = 0.0
    attention_factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    truncate: bool = True

    @classmethod
    def from_json(cls, fields: JsonFields, dim: int) -> RopeConfig:
        """Read ``rope_theta`` + ``rope_scaling``, or transformers 5's ``rope_parameters``.

        Raises:
            Eagle3RefError: a rope type that is not implemented, or a missing number.
        """
        scaling = fields.object("rope_parameters") or fields.object("rope_scaling")
        theta = fields.optional_float("rope_theta")
        if theta is None:
            theta = scaling.float("rope_theta", 10000.0) if scaling else 10000.0
        if scaling is None:
            return cls(dim, theta)
        kind = scaling.str("rope_type", scaling.values.get("type", "default"))
        kind = {"deepseek_yarn": "yarn"}.get(kind, kind)
        if kind not in ROPE_TYPES:
            raise Eagle3RefError(
                f"reading the rope of {fields.where}",
                found=f"rope type {kind!r}",
                expected=f"one of {', '.join(ROPE_TYPES)}",
                action="This rope is not implemented; a wrong one would only lower the acceptance silently.",
            )
        if kind == "default":
            return cls(dim, theta)
        factor = scaling.float("factor")
        if kind == "linear":
            return cls(dim, theta, kind, factor)
        original = scaling.optional_int("original_max_position_embeddings") or fields.int("max_position_embeddings")
        return cls(
            dim,
            theta,
            kind,
            factor,
            original,
            beta_fast=scaling.float("beta_fast", 32.0),
            beta_slow=scaling.float("beta_slow", 1.0),
            mscale_all_dim=scaling.float("mscale_all_dim", 0.0),
            attention_factor=_yarn_attention_factor(scaling, factor) if kind == "yarn" else 1.0,
            low_freq_factor=scaling.float("low_freq_factor", 1.0),
            high_freq_factor=scaling.float("high_freq_factor", 4.0),
            truncate=scaling.flag("truncate", True),
        )


def _yarn_attention_factor(scaling: JsonFields, factor: float) -> float:
    given = scaling.optional_float("attention_factor")
    if given is not None:
        return given
    mscale, all_dim = scaling.float("mscale", 0.0), scaling.float("mscale_all_dim", 0.0)
    if mscale and all_dim:
        return yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim)
    return yarn_mscale(factor, 1.0)


@dataclass(frozen=True)
class GQAConfig:
    """Grouped-query attention, Llama style, with half-split (NeoX) rotary pairs."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig
    bias: bool = False

    @classmethod
    def from_json(cls, fields: JsonFields) -> GQAConfig:
        """Read ``num_attention_heads``, ``num_key_value_heads``, ``head_dim``, the biases and the rope."""
        heads = fields.int("num_attention_heads")
        kv_heads = fields.int("num_key_value_heads", heads)
        head_dim = fields.optional_int("head_dim") or fields.int("hidden_size") // heads
        if kv_heads < 1 or heads % kv_heads:
            raise Eagle3RefError(
                f"reading the attention of {fields.where}",
                found=f"{heads} heads over {kv_heads} key-value heads",
                expected="a whole number of heads per key-value head",
                action="Correct num_key_value_heads.",
            )
        bias = fields.flag("attention_bias") or fields.flag("qkv_bias")
        return cls(heads, kv_heads, head_dim, RopeConfig.from_json(fields, head_dim), bias)

    @property
    def softmax_scale(self) -> float:
        """``head_dim ** -0.5``."""
        return float(self.head_dim**-0.5)


@dataclass(frozen=True)
class MLAConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, §2.1), with interleaved rotary pairs."""

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rope: RopeConfig
    interleaved: bool = True

    @classmethod
    def from_json(cls, fields: JsonFields) -> MLAConfig:
        """Read DeepSeek's keys. ``rope_interleave`` is true when absent, as in SGLang and vLLM."""
        rope_dim = fields.int("qk_rope_head_dim")
        return cls(
            num_heads=fields.int("num_attention_heads"),
            q_lora_rank=fields.optional_int("q_lora_rank"),
            kv_lora_rank=fields.int("kv_lora_rank"),
            qk_nope_head_dim=fields.int("qk_nope_head_dim"),
            qk_rope_head_dim=rope_dim,
            v_head_dim=fields.int("v_head_dim"),
            rope=RopeConfig.from_json(fields, rope_dim),
            interleaved=fields.flag("rope_interleave", True),
        )

    @property
    def qk_head_dim(self) -> int:
        """Width of a query or key head: the part without rope, then the part with rope."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """``qk_head_dim ** -0.5``, times YaRN's squared temperature when ``mscale_all_dim`` is set."""
        mscale = yarn_mscale(self.rope.factor, self.rope.mscale_all_dim) if self.rope.mscale_all_dim else 1.0
        return float(self.qk_head_dim**-0.5 * mscale**2)


@dataclass(frozen=True)
class MoEConfig:
    """Routed experts with sigmoid scores and a selection bias (DeepSeek-V3, arXiv 2412.19437, §2.1.2)."""

    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    intermediate_size: int
    routed_scaling_factor: float
    normalize_weights: bool

    @classmethod
    def from_json(cls, fields: JsonFields) -> MoEConfig:
        """Read DeepSeek-V3's keys.

        Raises:
            Eagle3RefError: group-limited or softmax routing, which no Kimi-K2 model uses.
        """
        routing = (
            fields.int("n_group", 1),
            fields.int("topk_group", 1),
            fields.str("scoring_func", "sigmoid"),
            fields.str("topk_method", "noaux_tc"),
        )
        if routing != (1, 1, "sigmoid", "noaux_tc"):
            raise Eagle3RefError(
                f"reading the routing of {fields.where}",
                found=f"n_group, topk_group, scoring_func, topk_method = {routing}",
                expected="(1, 1, 'sigmoid', 'noaux_tc'), as in every Kimi-K2 model",
                action="Load this model through transformers instead.",
            )
        return cls(
            num_experts=fields.int("n_routed_experts"),
            num_experts_per_token=fields.int("num_experts_per_tok"),
            num_shared_experts=fields.int("n_shared_experts", 0),
            intermediate_size=fields.int("moe_intermediate_size"),
            routed_scaling_factor=fields.float("routed_scaling_factor", 1.0),
            normalize_weights=fields.flag("norm_topk_prob", True),
        )
