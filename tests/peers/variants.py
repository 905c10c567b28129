"""Tiny drafts in speculators' layout, made from a seed: the peer and this package get the same files.

Needs numpy and safetensors only, so that it runs in the peer's environment too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

WIDTH, INNER, VOCAB, DRAFT_VOCAB = 32, 40, 48, 16
NUM_ROWS, NUM_STEPS = 8, 3
LLAMA, QWEN3 = {"model_type": "llama"}, {"model_type": "qwen3"}
_YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# name -> (keys of the draft, keys of its transformer layer). A value of None leaves the key out.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": ({}, LLAMA),
    "qwen3 by default": ({}, {}),
    "qwen3, normed residual": ({"norm_before_residual": True}, QWEN3),
    "llama, normed residual, full vocabulary": ({"norm_before_residual": True, "draft_vocab_size": VOCAB}, LLAMA),
    "keys left out": ({"norm_before_residual": None, "eagle_aux_hidden_state_layer_ids": None}, LLAMA),
    "older architecture name": ({"architectures": ["Eagle3Speculator"], "speculators_version": "0.1.0.dev14"}, LLAMA),
    "norm before fc": ({"norm_before_fc": True}, LLAMA),
    "fc norms": ({"fc_norm": True}, QWEN3),
    "normed state": ({"norm_output": True}, LLAMA),
    "EAGLE-3.1": ({"norm_output": True, "fc_norm": True, "norm_before_residual": True}, QWEN3),
    "two layers": ({}, {**LLAMA, "num_hidden_layers": 2}),
    "three qwen3 layers": ({"norm_before_residual": True}, {**QWEN3, "num_hidden_layers": 3}),
    "two aux states": ({"eagle_aux_hidden_state_layer_ids": [2, 5]}, LLAMA),
    "one key head": ({}, {**LLAMA, "num_key_value_heads": 1}),
    "every head its own": ({}, {**QWEN3, "num_key_value_heads": 4}),
    "wide heads": ({}, {**LLAMA, "head_dim": 12}),
    "no head_dim": ({}, {**LLAMA, "head_dim": None}),
    "attention biases": ({}, {**LLAMA, "attention_bias": True}),
    "qwen3 biases": ({}, {**QWEN3, "attention_bias": True}),
    "MLP biases": ({}, {**LLAMA, "mlp_bias": True}),
    "linear rope": ({}, {**LLAMA, "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}}),
    "llama3 rope": ({}, {**LLAMA, "rope_parameters": _LLAMA3}),
    "llama3 rope, older keys": (
        {},
        {
            **LLAMA,
            "rope_parameters": None,
            "rope_theta": 500000.0,
            "rope_scaling": {key: value for key, value in _LLAMA3.items() if key != "rope_theta"},
        },
    ),
    "yarn": ({}, {**LLAMA, "rope_parameters": _YARN}),
    "yarn with mscale": ({}, {**QWEN3, "rope_parameters": {**_YARN, "mscale": 0.7, "mscale_all_dim": 1.3}}),
    "yarn, not truncated": (
        {},
        {**LLAMA, "rope_parameters": {**_YARN, "truncate": False, "attention_factor": 1.1, "beta_fast": 4.0}},
    ),
    "part of the head rotated": (
        {},
        {
            **LLAMA,
            "rope_parameters": {
                "rope_type": "linear",
                "rope_theta": 100.0,
                "factor": 3.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    # transformers leaves the share out when the type is default, and rotates the whole head.
    "part of the head, default rope": (
        {},
        {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
    ),
    "sliding window": (
        {},
        {
            **QWEN3,
            "num_hidden_layers": 2,
            "use_sliding_window": True,
            "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "small eps": ({}, {**LLAMA, "rms_norm_eps": 1e-2}),
}


def config(variant: str) -> dict[str, Any]:
    """config.json of a variant."""
    outer, inner = VARIANTS[variant]
    layer = {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
    }
    greedy = {
        "proposal_type": "greedy",
        "speculative_tokens": NUM_STEPS,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    whole = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {"name_or_path": None, "architectures": ["LlamaForCausalLM"]},
        },
        "draft_vocab_size": DRAFT_VOCAB,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 6],
        "tie_word_embeddings": False,
        **outer,
        "transformer_layer_config": _without_none({**layer, **inner}),
    }
    return _without_none(whole)


def write(variant: str, folder: Path) -> Path:
    """A draft folder: config.json and model.safetensors in fp32."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(variant), indent=2))
    save_file(tensors(variant), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tensors(variant: str) -> dict[str, np.ndarray]:
    """The weights of a variant, and d2t and t2d where the draft vocabulary is a part of the target's."""
    draft, generator = config(variant), _generator(variant)
    found: dict[str, np.ndarray] = {}
    for name, shape in sorted(_shapes(draft).items()):
        noise = generator.standard_normal(shape)
        is_norm = "norm" in name
        scale = 0.3 if is_norm else 0.5 if name.endswith("bias") else 1.5 * shape[-1] ** -0.5
        found[name] = (is_norm + scale * noise).astype(np.float32)
    size = draft["draft_vocab_size"]
    if size < VOCAB:
        ids = np.sort(generator.permutation(VOCAB)[:size])
        found["d2t"] = ids - np.arange(size)
        found["t2d"] = np.isin(np.arange(VOCAB), ids)
    return found


def inputs(variant: str) -> tuple[np.ndarray, np.ndarray]:
    """Aux hidden states [NUM_ROWS, A * WIDTH] and the tokens after them, int64 [NUM_ROWS]."""
    generator = _generator(variant + " inputs")
    aux = generator.standard_normal((NUM_ROWS, num_aux_states(config(variant)) * WIDTH))
    return aux.astype(np.float32), generator.integers(0, VOCAB, NUM_ROWS)


def num_aux_states(draft: dict[str, Any]) -> int:
    """How many states ``fc`` takes side by side."""
    return len(draft.get("eagle_aux_hidden_state_layer_ids") or (2, 4, 6))


def _shapes(draft: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    layer = draft["transformer_layer_config"]
    fused = num_aux_states(draft) * WIDTH
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (WIDTH, fused),
        "norm.weight": (WIDTH,),
        "embed_tokens.weight": (VOCAB, WIDTH),
        "lm_head.weight": (draft["draft_vocab_size"], WIDTH),
    }
    if draft.get("norm_before_fc"):
        shapes["input_norm.weight"] = (fused,)
    if draft.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (WIDTH,) for i in range(fused // WIDTH)}
    for i in range(layer["num_hidden_layers"]):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in _layer_shapes(layer, first=i == 0).items()}
    return shapes


def _layer_shapes(layer: dict[str, Any], *, first: bool) -> dict[str, tuple[int, ...]]:
    width = 2 * WIDTH if first else WIDTH
    head_dim = layer.get("head_dim") or WIDTH // layer["num_attention_heads"]
    query, keys = (layer[f"num_{kind}_heads"] * head_dim for kind in ("attention", "key_value"))
    norms = ["input_layernorm", "post_attention_layernorm"] + ["hidden_norm"] * first
    shapes: dict[str, tuple[int, ...]] = {f"{norm}.weight": (WIDTH,) for norm in norms}
    projections = {"q_proj": (query, width), "k_proj": (keys, width), "v_proj": (keys, width), "o_proj": (WIDTH, query)}
    for name, shape in projections.items():
        shapes[f"self_attn.{name}.weight"] = shape
        if layer["attention_bias"]:
            shapes[f"self_attn.{name}.bias"] = shape[:1]
    if layer.get("model_type", "qwen3") == "qwen3":
        shapes |= {f"self_attn.{name}_norm.weight": (head_dim,) for name in "qk"}
    for name, shape in (("gate", (INNER, WIDTH)), ("up", (INNER, WIDTH)), ("down", (WIDTH, INNER))):
        shapes[f"mlp.{name}_proj.weight"] = shape
        if layer.get("mlp_bias"):
            shapes[f"mlp.{name}_proj.bias"] = shape[:1]
    return shapes


def _generator(text: str) -> np.random.Generator:
    return np.random.default_rng(list(text.encode()))


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
