"""Tiny MLA drafts in Kimi's layout, made from a seed, for the peer and for this package alike. Needs numpy only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

WIDTH, INNER, VOCAB, NUM_ROWS = 24, 20, 16, 10
HEADS, NOPE, ROPE, VALUE, LATENT, QUERY_LATENT = 3, 6, 8, 5, 12, 14
POSITIONS = 7 * np.arange(NUM_ROWS)  # far enough apart for the slow frequencies to show
_KIMI = {
    "type": "yarn",
    "factor": 64.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_SHORT = {**_KIMI, "factor": 8.0, "original_max_position_embeddings": 32}

# name -> keys of config.json that differ from Kimi-K2.5's own rope
VARIANTS: dict[str, dict[str, Any]] = {
    "kimi": {},
    "one beta": {"rope_scaling": {**_KIMI, "beta_fast": 1.0}},
    "short original context": {"rope_scaling": _SHORT},
    "two temperatures": {"rope_scaling": {**_SHORT, "mscale": 0.7, "mscale_all_dim": 1.3}},
    "no temperature": {"rope_scaling": {**_SHORT, "mscale": 0.0, "mscale_all_dim": 0.0}},
    "no scaling": {"rope_scaling": None, "rope_theta": 100.0},
    "no query latent": {"q_lora_rank": None},
    "half-split pairs": {"rope_interleave": False},
}


def config(variant: str) -> dict[str, Any]:
    """config.json of a variant. 1e-6 is the eps that the peer writes into its latent norms whatever the config says."""
    return {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "q_lora_rank": QUERY_LATENT,
        "kv_lora_rank": LATENT,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": VALUE,
        "vocab_size": VOCAB,
        "draft_vocab_size": VOCAB,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "max_position_embeddings": 262144,
        "rope_theta": 50000.0,
        "rope_scaling": _KIMI,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 4]},
        **VARIANTS[variant],
    }


def attention(variant: str) -> dict[str, np.ndarray]:
    """The weights of the attention, named as in the published files after ``self_attn.``."""
    rank, query = config(variant)["q_lora_rank"], HEADS * (NOPE + ROPE)
    shapes: dict[str, tuple[int, ...]] = {
        "kv_a_layernorm.weight": (LATENT,),
        "kv_a_proj_with_mqa.weight": (LATENT + ROPE, 2 * WIDTH),
        "kv_b_proj.weight": (HEADS * (NOPE + VALUE), LATENT),
        "o_proj.weight": (WIDTH, HEADS * VALUE),
    }
    if rank is None:
        shapes["q_proj.weight"] = (query, 2 * WIDTH)
    else:
        shapes |= {"q_a_proj.weight": (rank, 2 * WIDTH), "q_a_layernorm.weight": (rank,)}
        shapes["q_b_proj.weight"] = (query, rank)
    return _random(shapes, variant)


def inputs(variant: str) -> np.ndarray:
    """What the attention reads, the normed embedding and the normed state side by side: [NUM_ROWS, 2 * WIDTH]."""
    return _random({"x": (NUM_ROWS, 2 * WIDTH)}, variant)["x"] * 3


def write(variant: str, folder: Path) -> Path:
    """A whole draft folder in fp32 with that attention."""
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (WIDTH,),
        "hidden_norm.weight": (WIDTH,),
        "post_attention_layernorm.weight": (WIDTH,),
        "mlp.gate_proj.weight": (INNER, WIDTH),
        "mlp.up_proj.weight": (INNER, WIDTH),
        "mlp.down_proj.weight": (WIDTH, INNER),
    }
    rest: dict[str, tuple[int, ...]] = {
        "fc.weight": (WIDTH, 3 * WIDTH),
        "norm.weight": (WIDTH,),
        "embed_tokens.weight": (VOCAB, WIDTH),
        "lm_head.weight": (VOCAB, WIDTH),
    }
    named = {f"layers.0.self_attn.{name}": value for name, value in attention(variant).items()}
    named |= {f"layers.0.{name}": value for name, value in _random(layer, variant).items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(variant), indent=2))
    save_file(named | _random(rest, variant), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _random(shapes: dict[str, tuple[int, ...]], variant: str) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        noise = np.random.default_rng(list(f"{variant} {name}".encode())).standard_normal(shape)
        is_norm = len(shape) == 1
        found[name] = (is_norm + noise * (0.3 if is_norm else 1.5 * shape[-1] ** -0.5)).astype(np.float32)
    return found
