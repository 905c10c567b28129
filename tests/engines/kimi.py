"""The embedded Kimi-shaped pair in a form that engines serve on a CPU.

Packed INT4 experts are multiplied out, since neither engine multiplies them on this kind of CPU. And the latents get
the only size that vLLM's CPU attention is compiled for, Kimi's own: 512 wide and 64 for rope. What is added is zero,
and the pairs for rope keep their frequencies: of 64 / 2 pairs, every fourth is one of 16 / 2.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import eagle3ref as e3
from eagle3ref.target.int4 import dequantize_int4
from eagle3ref.weights import Weights

LATENT, ROPE = 512, 64
PREFIX, PACKED = "language_model.", ".weight_packed"
Config = dict[str, Any]


def write_target(folder: Path) -> Path:
    """Write the target as a plain ``DeepseekV3ForCausalLM``, and return ``folder``."""
    source = Path(e3.nano.target_path())
    config = json.loads((source / "config.json").read_text())["text_config"]
    config.pop("quantization_config")
    config["model_type"] = "deepseek_v3"
    weights, tensors = Weights(source), {}
    for name in weights.names:
        plain = name.removeprefix(PREFIX)
        if name.endswith(PACKED):
            stem = name.removesuffix(PACKED)
            parts = [weights.read(f"{stem}.weight_{part}") for part in ("packed", "scale", "shape")]
            tensors[plain.removesuffix(PACKED) + ".weight"] = dequantize_int4(*parts, name)
        elif not name.endswith((".weight_scale", ".weight_shape")):
            tensors[plain] = weights.read(name)
    return _write(config, tensors, folder)


def write_draft(ids: tuple[int, ...], folder: Path) -> Path:
    """Write the MLA draft with these capture ids, and return ``folder``."""
    source = Path(e3.nano.mla_draft_path())
    config = json.loads((source / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list(ids)
    return _write(config, load_file(source / "model.safetensors"), folder)


def _write(config: Config, tensors: dict[str, Tensor], folder: Path) -> Path:
    tensors = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    for name in list(tensors):
        if name.endswith("self_attn.q_b_proj.weight"):
            _widen(config, tensors, name.removesuffix("q_b_proj.weight"))
    config |= {"kv_lora_rank": LATENT, "qk_rope_head_dim": ROPE, "max_position_embeddings": 4096, "dtype": "float32"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _widen(config: Config, tensors: dict[str, Tensor], at: str) -> None:
    """Zeros for the latent's and the rope's new columns, and what the wider norms divide by taken back."""
    latent, rope, nope = config["kv_lora_rank"], config["qk_rope_head_dim"], config["qk_nope_head_dim"]
    query = tensors[f"{at}q_b_proj.weight"].unflatten(0, (config["num_attention_heads"], nope + rope))
    query = torch.cat((query[:, :nope], _spread(query[:, nope:], rope)), 1).flatten(0, 1)
    tensors[f"{at}q_b_proj.weight"] = query * ((nope + ROPE) / (nope + rope)) ** 0.5  # the softmax scale
    down = tensors[f"{at}kv_a_proj_with_mqa.weight"]
    padded = torch.nn.functional.pad(down[:latent], (0, 0, 0, LATENT - latent))
    tensors[f"{at}kv_a_proj_with_mqa.weight"] = torch.cat((padded, _spread(down[None, latent:], rope)[0]))
    norm = tensors[f"{at}kv_a_layernorm.weight"] * (latent / LATENT) ** 0.5
    tensors[f"{at}kv_a_layernorm.weight"] = torch.nn.functional.pad(norm, (0, LATENT - latent))
    up = tensors[f"{at}kv_b_proj.weight"]
    tensors[f"{at}kv_b_proj.weight"] = torch.nn.functional.pad(up, (0, LATENT - latent))


def _spread(rows: Tensor, rope: int) -> Tensor:
    """[heads, rope, in] -> [heads, ROPE, in]: neighbouring rows are a pair, and pairs stand further apart."""
    wide = rows.new_zeros(len(rows), rope // 2, ROPE // rope, 2, rows.shape[-1])
    wide[:, :, 0] = rows.unflatten(1, (-1, 2))
    return wide.flatten(1, 3)


def prompts(count: int) -> list[list[int]]:
    """Token ids of the first embedded prompts."""
    read, _ = e3.read_prompts(e3.nano.prompts_path(), e3.nano.target_path())
    return [prompt.tokens.tolist() for prompt in read[:count]]
