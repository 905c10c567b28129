"""Small random checkpoints on disk: a Kimi-K2.5-shaped target, and drafts with the names that published files have."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3ref.config import KimiK25Config, MLAConfig, MoEConfig, TargetConfig
from eagle3ref.nano.export import save_target
from eagle3ref.nano.train_target import ROPE
from eagle3ref.target.kimi_k25 import KimiK25Target

VOCAB, WIDTH, NUM_LAYERS, DRAFT_VOCAB = 96, 32, 7, 48
CAPTURE_POINTS = (2, 3, 4)
YARN = {
    "type": "yarn",
    "factor": 64.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_MLA = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}


def random_target(seed: int = 0, num_dense_layers: int = 1) -> KimiK25Target:
    """In memory, fp32: 7 layers, 4 heads, 4 experts of which 2 are used, norms and router bias that are not trivial."""
    attention = MLAConfig(4, 24, 16, 8, 4, 8, replace(ROPE, dim=4))
    moe = MoEConfig(4, 2, 1, intermediate_size=32, routed_scaling_factor=2.0, normalize_weights=True)
    architecture = KimiK25Config(NUM_LAYERS, WIDTH, VOCAB, 64, num_dense_layers, 1e-5, attention, moe)
    target = KimiK25Target(
        TargetConfig("tiny", "", "kimi_k25", NUM_LAYERS, WIDTH, VOCAB, 4096, (VOCAB - 1,)), architecture
    )
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in target.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = 1 + 0.2 * noise if name.endswith("norm.weight") else 0.15 * noise
    return target.requires_grad_(False).eval()


def target_folder(folder: Path, seed: int = 0) -> Path:
    """``random_target`` written in Moonshot's layout; its experts are rounded to INT4 on the way."""
    save_target(random_target(seed), folder, special_ids={"bos": VOCAB - 3, "eos": VOCAB - 1, "pad": VOCAB - 2})
    return folder


def draft_parts(
    kind: str = "gqa", *, num_layers: int = 1, seed: int = 0, **keys: Any
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and tensors of a random draft, SpecForge's names for ``gqa`` and Kimi's for ``mla``.

    Args:
        kind: ``gqa`` (4 heads over 2, its own embedding, d2t and t2d) or ``mla`` (full vocabulary).
        num_layers: decoder layers; the norm before attention of the later ones is called input_layernorm.
        seed: of the weights.
        keys: more keys of config.json; those that need tensors (fc_norm, attention_bias, …) get them.
    """
    gqa = kind == "gqa"
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3" if gqa else "Eagle3DeepseekV2ForCausalLM"],
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB if gqa else VOCAB,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 4], "use_aux_hidden_state": True},
        **({"num_key_value_heads": 2, "head_dim": 10} if gqa else _MLA),
        **keys,
    }
    config = {key: value for key, value in config.items() if value is not ...}
    generator = torch.Generator().manual_seed(seed)
    shapes = _shapes(config, num_layers, gqa=gqa)
    tensors = {name: _random(name, shape, generator) for name, shape in shapes.items()}
    if gqa and config.get("draft_vocab_size", VOCAB) < VOCAB:
        ids = torch.randperm(VOCAB, generator=generator)[:DRAFT_VOCAB].sort().values
        tensors["d2t"] = ids - torch.arange(DRAFT_VOCAB)
        tensors["t2d"] = torch.isin(torch.arange(VOCAB), ids)
    return config, tensors


def write_draft(folder: Path, config: Any, tensors: dict[str, Tensor], container: str = "safetensors") -> Path:
    """Write a draft folder as one safetensors file, as two shards with an index, or as ``pytorch_model.bin``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if container == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    elif container == "sharded":
        names = sorted(tensors)
        files = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
        for file in sorted(set(files.values())):
            save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


def draft_folder(folder: Path, kind: str = "gqa", **keys: Any) -> Path:
    """``draft_parts`` in a folder, one safetensors file."""
    return write_draft(folder, *draft_parts(kind, **keys))


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    is_norm = len(shape) == 1 and not name.endswith("bias")
    return 1 + 0.3 * noise if is_norm else noise * (0.5 if len(shape) == 1 else shape[-1] ** -0.5 * 1.5)


def _shapes(config: dict[str, Any], num_layers: int, *, gqa: bool) -> dict[str, tuple[int, ...]]:
    width, fused = config["hidden_size"], 3 * (config.get("target_hidden_size") or config["hidden_size"])
    shapes = {
        "fc.weight": (width, fused),
        "norm.weight": (width,),
        "embed_tokens.weight": (VOCAB, width),
        "lm_head.weight": (config.get("draft_vocab_size") or VOCAB, width),
    }
    if config.get("bias"):
        shapes["fc.bias"] = (width,)
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (fused,)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (fused // 3,) for i in range(3)}
    for i in range(num_layers):
        layer = ("midlayer." if gqa else "layers.0.") if i == 0 else f"layers.{i}."
        shapes |= {layer + name: shape for name, shape in _layer_shapes(config, i, gqa=gqa).items()}
    return shapes


def _layer_shapes(config: dict[str, Any], index: int, *, gqa: bool) -> dict[str, tuple[int, ...]]:
    width, inner = config["hidden_size"], config["intermediate_size"]
    norms = ["input_layernorm", "post_attention_layernorm"] + (["hidden_norm"] if index == 0 else [])
    shapes: dict[str, tuple[int, ...]] = {f"{norm}.weight": (width,) for norm in norms}
    projections = _gqa_shapes(config) if gqa else _mla_shapes(config)
    for name, (rows, columns) in projections.items():
        if columns == 0:
            columns = 2 * width if index == 0 else width
        shapes[f"self_attn.{name}.weight"] = (rows, columns)
        if config.get("attention_bias") or (config.get("qkv_bias") and name != "o_proj"):
            shapes[f"self_attn.{name}.bias"] = (rows,)
    if not gqa:
        shapes["self_attn.kv_a_layernorm.weight"] = (config["kv_lora_rank"],)
        if config.get("q_lora_rank"):
            shapes["self_attn.q_a_layernorm.weight"] = (config["q_lora_rank"],)
    for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
        shapes[f"mlp.{name}_proj.weight"] = shape
        if config.get("mlp_bias"):
            shapes[f"mlp.{name}_proj.bias"] = shape[:1]
    return shapes


def _gqa_shapes(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Rows and columns of each projection; 0 columns stand for the layer's input width."""
    heads, head = config["num_attention_heads"], config.get("head_dim") or config["hidden_size"] // 4
    keys = config.get("num_key_value_heads", heads) * head
    query = heads * head
    return {"q_proj": (query, 0), "k_proj": (keys, 0), "v_proj": (keys, 0), "o_proj": (config["hidden_size"], query)}


def _mla_shapes(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    heads, rank, rope = config["num_attention_heads"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value, query_rank = config["qk_nope_head_dim"], config["v_head_dim"], config.get("q_lora_rank")
    query = heads * (nope + rope)
    low_rank = {"q_a_proj": (query_rank, 0), "q_b_proj": (query, query_rank)}
    return {
        **(low_rank if query_rank else {"q_proj": (query, 0)}),
        "kv_a_proj_with_mqa": (rank + rope, 0),
        "kv_b_proj": (heads * (nope + value), rank),
        "o_proj": (config["hidden_size"], heads * value),
    }
