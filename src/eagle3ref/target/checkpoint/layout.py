"""Names and shapes of Kimi-K2's parameters, from its settings alone."""

from __future__ import annotations

from eagle3ref.config import KimiK25Config, MLAConfig

Shape = tuple[int, ...]

# Whatever the other weights are stored in: routes flip when these are rounded, so they are kept in fp32.
FLOAT32_PARAMETERS = ("mlp.gate.weight", "mlp.gate.e_score_correction_bias")


def layer_shapes(architecture: KimiK25Config, index: int) -> dict[str, Shape]:
    """Every parameter of decoder layer ``index`` but its routed experts, as ``KimiLayer`` names them."""
    width = architecture.hidden_size
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        **{f"self_attn.{name}": shape for name, shape in _attention_shapes(architecture.attention, width).items()},
    }
    if index < architecture.num_dense_layers:
        return shapes | _named("mlp.", mlp_shapes(width, architecture.intermediate_size))
    moe = architecture.moe
    shapes["mlp.gate.weight"] = (moe.num_experts, width)
    shapes["mlp.gate.e_score_correction_bias"] = (moe.num_experts,)
    if moe.num_shared_experts:
        shared = mlp_shapes(width, moe.intermediate_size * moe.num_shared_experts)
        shapes |= _named("mlp.shared_experts.", shared)
    return shapes


def num_experts(architecture: KimiK25Config, index: int) -> int:
    """Routed experts of layer ``index``; none in the dense layers."""
    return 0 if index < architecture.num_dense_layers else architecture.moe.num_experts


def mlp_shapes(width: int, inner: int) -> dict[str, Shape]:
    """The three matrices of a gated MLP, [out, in]: a dense layer, a shared or a routed expert."""
    return {"gate_proj.weight": (inner, width), "up_proj.weight": (inner, width), "down_proj.weight": (width, inner)}


def expert_shapes(architecture: KimiK25Config) -> dict[str, Shape]:
    """The matrices of one routed expert."""
    return mlp_shapes(architecture.hidden_size, architecture.moe.intermediate_size)


def _attention_shapes(attention: MLAConfig, width: int) -> dict[str, Shape]:
    heads, query_rank, rank = attention.num_heads, attention.q_lora_rank, attention.kv_lora_rank
    query = heads * attention.qk_head_dim
    shapes: dict[str, Shape] = (
        {"q_proj.weight": (query, width)}
        if query_rank is None
        else {
            "q_a_proj.weight": (query_rank, width),
            "q_a_layernorm.weight": (query_rank,),
            "q_b_proj.weight": (query, query_rank),
        }
    )
    return shapes | {
        "kv_a_proj_with_mqa.weight": (rank + attention.qk_rope_head_dim, width),
        "kv_a_layernorm.weight": (rank,),
        "kv_b_proj.weight": (heads * (attention.qk_nope_head_dim + attention.v_head_dim), rank),
        "o_proj.weight": (width, heads * attention.v_head_dim),
    }


def _named(prefix: str, shapes: dict[str, Shape]) -> dict[str, Shape]:
    return {prefix + name: shape for name, shape in shapes.items()}
