"""config.json of an exported draft, in each format."""

from __future__ import annotations

from typing import Any

from eagle3ref.config import DraftConfig, GQAConfig, MLAConfig, TargetConfig
from eagle3ref.config.draft import CAPTURE_IDS_KEY
from eagle3ref.draft.export.layouts import ExportFormat, LayerKind, layer_kind
from eagle3ref.draft.export.rope_json import partial_rotary_factor, rope_scaling
from eagle3ref.draft.model import Eagle3Draft
from eagle3ref.version import __version__

# Not deepseek_v3: vLLM takes a draft of that type for DeepSeek's own MTP layer (config/speculative.py).
_MODEL_TYPE: dict[LayerKind, str] = {"llama": "llama", "qwen3": "qwen3", "mla": "kimi_k2"}
_SGLANG_ARCHITECTURE: dict[LayerKind, str] = {
    "llama": "LlamaForCausalLMEagle3",
    "mla": "Eagle3DeepseekV2ForCausalLM",
}
_VLLM_ARCHITECTURE: dict[LayerKind, str] = {
    "llama": "Eagle3LlamaForCausalLM",
    "qwen3": "Eagle3Qwen3ForCausalLM",
    "mla": "Eagle3DeepseekV2ForCausalLM",
}
_NUM_SPECULATIVE_TOKENS = 3  # what a server drafts when it is told nothing else: the three steps drafts are trained for


def config_json(
    draft: Eagle3Draft, format: ExportFormat, ids: tuple[int, ...], target: TargetConfig | None
) -> dict[str, Any]:
    """All of config.json.

    Args:
        draft: with nothing that the format cannot hold.
        format: which one.
        ids: the capture ids, in the numbering of the format's reader.
        target: named in speculators' format, where servers look for it.
    """
    own = {"version": __version__, "capture_points": list(draft.capture_points)}
    if format == "speculators":
        return {**_speculators(draft, ids, target), "eagle3ref": own}
    kind = layer_kind(draft)
    architecture = (_SGLANG_ARCHITECTURE if format == "sglang" else _VLLM_ARCHITECTURE)[kind]
    config = draft.config
    theta = {"rope_theta": config.attention.rope.theta, "rope_scaling": rope_scaling(config.attention.rope)}
    flags = {key: True for key, value in _norm_flags(config).items() if value}
    widths = (
        {} if config.target_hidden_size == config.hidden_size else {"target_hidden_size": config.target_hidden_size}
    )
    return {
        "architectures": [architecture],
        **_layer(draft),
        **theta,
        **_rotated_share(config),
        "draft_vocab_size": config.draft_vocab_size,
        **widths,
        **flags,
        **({"bias": True} if config.fc_bias else {}),
        **({"logit_scale": config.logit_scale} if config.logit_scale != 1 else {}),
        **_capture(format, ids),
        "eagle3ref": own,
    }


def _capture(format: ExportFormat, ids: tuple[int, ...]) -> dict[str, Any]:
    if format == "sglang":
        return {"eagle_config": {CAPTURE_IDS_KEY: list(ids), "use_aux_hidden_state": True}}
    # vLLM's Llama class counts the states without looking at the ids at top level.
    return {"num_aux_hidden_states": len(ids), CAPTURE_IDS_KEY: list(ids)}


def _norm_flags(config: DraftConfig) -> dict[str, bool]:
    return {
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
    }


def _layer(draft: Eagle3Draft) -> dict[str, Any]:
    """What every format says of the decoder layers, the rope aside."""
    config = draft.config
    return {
        "model_type": _MODEL_TYPE[layer_kind(draft)],
        "torch_dtype": str(draft.fc.weight.dtype).removeprefix("torch."),
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": len(draft.layers),
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": False,
        "mlp_bias": config.mlp_bias,
        "attention_bias": isinstance(config.attention, GQAConfig) and config.attention.bias,
        **attention_keys(config.attention),
        **_windows(config),
    }


def attention_keys(attention: GQAConfig | MLAConfig) -> dict[str, Any]:
    """Heads and widths, as transformers, SGLang and vLLM read them; rope and biases aside."""
    if isinstance(attention, GQAConfig):
        return {
            "num_attention_heads": attention.num_heads,
            "num_key_value_heads": attention.num_kv_heads,
            "head_dim": attention.head_dim,
        }
    return {
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_heads,
        "q_lora_rank": attention.q_lora_rank,
        "kv_lora_rank": attention.kv_lora_rank,
        "qk_nope_head_dim": attention.qk_nope_head_dim,
        "qk_rope_head_dim": attention.qk_rope_head_dim,
        "v_head_dim": attention.v_head_dim,
        **({} if attention.interleaved else {"rope_interleave": False}),
    }


def _windows(config: DraftConfig) -> dict[str, Any]:
    windows = config.layer_windows
    if not any(windows):
        return {}
    types = ["full_attention" if window is None else "sliding_attention" for window in windows]
    window = next(window for window in windows if window is not None)
    return {"layer_types": types, "sliding_window": window, "use_sliding_window": True}


def _rotated_share(config: DraftConfig) -> dict[str, float]:
    attention = config.attention
    if isinstance(attention, MLAConfig) or attention.rope.dim == attention.head_dim:
        return {}
    return {"partial_rotary_factor": partial_rotary_factor(attention.rope, attention.head_dim)}


def _speculators(draft: Eagle3Draft, ids: tuple[int, ...], target: TargetConfig | None) -> dict[str, Any]:
    """Every switch is written out: vLLM reads a missing norm_before_residual as true, speculators as false."""
    config = draft.config
    share = _rotated_share(config)
    # transformers reads the share for every type but default; linear by 1 is the same rope.
    plain = {"rope_type": "linear", "factor": 1.0} if share else {"rope_type": "default"}
    rope = {"rope_theta": config.attention.rope.theta, **share, **(rope_scaling(config.attention.rope) or plain)}
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": _NUM_SPECULATIVE_TOKENS,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    verifier = {"name_or_path": target.path or target.name, "architectures": []} if target else None
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": verifier or {"name_or_path": None, "architectures": []},
        },
        "draft_vocab_size": config.draft_vocab_size,
        **_norm_flags(config),
        "target_hidden_size": None,
        "embed_requires_grad": False,
        CAPTURE_IDS_KEY: list(ids),
        "tie_word_embeddings": False,
        "transformer_layer_config": {**_layer(draft), "rope_parameters": rope},
    }
