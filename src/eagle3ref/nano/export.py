"""Writing the nano pair as published checkpoints are written: Moonshot's layout for the target, SGLang's for drafts."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from eagle3ref.config import GQAConfig, KimiK25Config, MLAConfig, RopeConfig
from eagle3ref.config.draft import CAPTURE_IDS_KEY
from eagle3ref.draft import Eagle3Draft
from eagle3ref.draft.export.config_json import attention_keys
from eagle3ref.target.int4 import pack_int4, quantize_int4
from eagle3ref.target.kimi_k25 import KimiK25Target

_PREFIX = "language_model."
_NUM_SHARDS = 4


def save_target(target: KimiK25Target, folder: Path, *, special_ids: dict[str, int]) -> None:
    """Write config.json, the shards and their index. Routed experts are packed INT4, the rest is bf16.

    Args:
        target: with weights in fp32.
        folder: made if need be.
        special_ids: ``bos``, ``eos`` and ``pad`` token ids.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {f"{_PREFIX}lm_head.weight": _bf16(target.lm_head())}
    for name, parameter in target.model.named_parameters():
        if ".mlp.experts." in name:
            tensors |= _packed(f"{_PREFIX}model.{name}", parameter)
        elif name.endswith("e_score_correction_bias"):
            tensors[f"{_PREFIX}model.{name}"] = parameter.detach().float().clone()
        else:
            tensors[f"{_PREFIX}model.{name}"] = _bf16(parameter)
    _save_shards(folder, tensors)
    _write_json(folder / "config.json", _target_config(target.architecture, special_ids))


def save_draft(draft: Eagle3Draft, folder: Path, *, kind: str) -> None:
    """Write config.json and model.safetensors in bf16, without the embedding, which is the target's.

    Args:
        draft: the trained draft.
        folder: made if need be.
        kind: ``gqa`` writes SpecForge's names (``midlayer.``, d2t, t2d), ``mla`` Kimi's (``layers.0.``, d2t).
    """
    folder.mkdir(parents=True, exist_ok=True)
    layer = "midlayer." if kind == "gqa" else "layers.0."
    tensors = {
        name.replace("layers.0.", layer): _bf16(parameter)
        for name, parameter in draft.named_parameters()
        if name != "embed_tokens.weight"
    }
    tensors["d2t"] = draft.target_ids - torch.arange(len(draft.target_ids))
    if kind == "gqa":
        tensors["t2d"] = torch.isin(torch.arange(draft.config.vocab_size), draft.target_ids)
    _save(tensors, folder / "model.safetensors")
    _write_json(folder / "config.json", _draft_config(draft))


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    path.write_bytes(save(tensors, metadata={"format": "pt"}))


def _bf16(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.bfloat16).contiguous().clone()


def _packed(name: str, weight: Tensor) -> dict[str, Tensor]:
    values, scale = quantize_int4(weight.detach())
    shape = torch.tensor(weight.shape, dtype=torch.int32)
    return {f"{name}_packed": pack_int4(values), f"{name}_scale": scale, f"{name}_shape": shape}


def _save_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    names = list(tensors)
    cuts = [len(names) * shard // _NUM_SHARDS for shard in range(_NUM_SHARDS + 1)]
    weight_map: dict[str, str] = {}
    for shard, (start, end) in enumerate(itertools.pairwise(cuts), 1):
        part = names[start:end]
        file = f"model-{shard:05d}-of-{_NUM_SHARDS:06d}.safetensors"
        _save({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(folder / "model.safetensors.index.json", index)


def _target_config(config: KimiK25Config, special_ids: dict[str, int]) -> dict[str, Any]:
    ids = {f"{name}_token_id": value for name, value in special_ids.items()}
    text = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "dtype": "bfloat16",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "first_k_dense_replace": config.num_dense_layers,
        "moe_layer_freq": 1,
        "rms_norm_eps": config.rms_norm_eps,
        "hidden_act": "silu",
        "max_position_embeddings": 262144,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
        **_attention_keys(config.attention),
        **ids,
        "n_routed_experts": config.moe.num_experts,
        "num_experts_per_tok": config.moe.num_experts_per_token,
        "n_shared_experts": config.moe.num_shared_experts,
        "moe_intermediate_size": config.moe.intermediate_size,
        "routed_scaling_factor": config.moe.routed_scaling_factor,
        "norm_topk_prob": config.moe.normalize_weights,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "quantization_config": _QUANTIZATION,
    }
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        **ids,
        "text_config": text,
        "vision_config": {},
    }


def _draft_config(draft: Eagle3Draft) -> dict[str, Any]:
    config = draft.config
    attention = config.attention
    return {
        "architectures": [config.architecture],
        "model_type": "kimi_k2" if attention.kind == "mla" else "llama",
        "dtype": "bfloat16",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": len(draft.layers),
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "attention_bias": False,
        "tie_word_embeddings": False,
        **_attention_keys(attention),
        "eagle_config": {
            CAPTURE_IDS_KEY: list(config.capture_ids or ()),
            "use_aux_hidden_state": True,
        },
    }


def _attention_keys(attention: GQAConfig | MLAConfig) -> dict[str, Any]:
    rope = {"rope_theta": attention.rope.theta, "rope_scaling": _rope_scaling(attention.rope)}
    return {**attention_keys(attention), **rope}


def _rope_scaling(rope: RopeConfig) -> dict[str, Any] | None:
    if rope.type == "default":
        return None
    return {
        "type": rope.type,
        "factor": rope.factor,
        "original_max_position_embeddings": rope.original_max_position_embeddings,
        "beta_fast": rope.beta_fast,
        "beta_slow": rope.beta_slow,
        "mscale": rope.mscale_all_dim,
        "mscale_all_dim": rope.mscale_all_dim,
    }


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


_QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "group_size": 32,
                "strategy": "group",
                "symmetric": True,
                "dynamic": False,
            },
            "input_activations": None,
            "output_activations": None,
        }
    },
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
    "kv_cache_scheme": None,
}
