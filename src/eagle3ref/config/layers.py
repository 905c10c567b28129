"""Settings of the attention and the experts that targets and drafts share."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Literal

from eagle3ref.config.json_fields import JsonFields
from eagle3ref.config.rope import RopeConfig, yarn_mscale
from eagle3ref.errors import Eagle3RefError

AttentionKind = Literal["gqa", "mla"]


@dataclass(frozen=True)
class GQAConfig:
    """Grouped-query attention, Llama style, with half-split (NeoX) rotary pairs.

    ``bias`` is that of the query, key and value projections, ``output_bias`` that of the output projection.
    ``qk_norm_eps``: every query and key head is normed before the rope (Qwen3); None is no such norm. ``window``: a row
    sees so many positions, its own included; None is all.
    """

    kind: ClassVar[AttentionKind] = "gqa"

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig
    bias: bool = False
    output_bias: bool = False
    qk_norm_eps: float | None = None
    window: int | None = None

    @classmethod
    def from_json(cls, fields: JsonFields, *, qk_norm: bool = False, biased: Collection[str] = ()) -> GQAConfig:
        """Read ``num_attention_heads``, ``num_key_value_heads``, ``head_dim``, the biases and the rope.

        Args:
            fields: config.json.
            qk_norm: queries and keys are normed, with ``rms_norm_eps``.
            biased: projections (``q_proj`` ...) that have a bias in the file. Qwen2's have one and no key that says so.
        """
        heads = fields.size("num_attention_heads")
        kv_heads = fields.size("num_key_value_heads", heads)
        head_dim = fields.optional_size("head_dim") or fields.size("hidden_size") // heads
        if heads % kv_heads:
            raise Eagle3RefError(
                f"reading the attention of {fields.where}",
                found=f"{heads} heads over {kv_heads} key-value heads",
                expected="a whole number of heads per key-value head",
                action="Correct num_key_value_heads.",
            )
        everywhere = fields.flag("attention_bias")
        return cls(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rope=RopeConfig.from_json(fields, head_dim),
            bias=everywhere or fields.flag("qkv_bias") or "q_proj" in biased,
            output_bias=everywhere or "o_proj" in biased,
            qk_norm_eps=fields.number("rms_norm_eps") if qk_norm else None,
        )

    @property
    def softmax_scale(self) -> float:
        """``head_dim ** -0.5``."""
        return float(self.head_dim**-0.5)


@dataclass(frozen=True)
class MLAConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, §2.1), with interleaved rotary pairs."""

    kind: ClassVar[AttentionKind] = "mla"

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
        rope_dim = fields.size("qk_rope_head_dim")
        return cls(
            num_heads=fields.size("num_attention_heads"),
            q_lora_rank=fields.optional_size("q_lora_rank"),
            kv_lora_rank=fields.size("kv_lora_rank"),
            qk_nope_head_dim=fields.size("qk_nope_head_dim"),
            qk_rope_head_dim=rope_dim,
            v_head_dim=fields.size("v_head_dim"),
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
        plain = {"n_group": 1, "topk_group": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
        fields.require(plain, "as in every Kimi-K2 model", "Load this model through transformers instead.")
        num_experts = fields.size("n_routed_experts")
        return cls(
            num_experts=num_experts,
            num_experts_per_token=fields.size("num_experts_per_tok", highest=num_experts),
            num_shared_experts=fields.size("n_shared_experts", 0, lowest=0),
            intermediate_size=fields.size("moe_intermediate_size"),
            routed_scaling_factor=fields.number("routed_scaling_factor", 1.0),
            normalize_weights=fields.flag("norm_topk_prob", True),
        )
