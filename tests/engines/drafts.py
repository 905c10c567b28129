"""The draft folder that a run serves: the committed one with the run's capture ids, and with one thing changed.

Engines read different keys of config.json. Whether an engine honours a variant is seen from its rounds: they are those
of the changed draft, or those of the draft without the change.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

GOLDEN = Path(__file__).parents[1] / "golden" / "engines"
TARGET, DRAFT = GOLDEN / "target", GOLDEN / "draft"
Config = dict[str, Any]
Tensors = dict[str, Tensor]
IDS_KEY = "eagle_aux_hidden_state_layer_ids"
FLAT_IDS = (1, 4, 6)


def write_draft(ids: tuple[int, ...], variant: str, folder: Path) -> Path:
    """Write the draft with these ids in ``eagle_config`` and this key of ``EDITS``, if any; return ``folder``."""
    config = json.loads((DRAFT / "config.json").read_text())
    tensors = load_file(DRAFT / "model.safetensors")
    config["eagle_config"][IDS_KEY] = list(ids)
    if variant:
        EDITS[variant](config, tensors, load_file(TARGET / "model.safetensors"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(tensors, folder / "model.safetensors")
    return folder


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(17)).to(torch.bfloat16)


def _norm_before_residual(config: Config, _tensors: Tensors, _target: Tensors) -> None:
    config["norm_before_residual"] = True


def _norm_before_fc(config: Config, tensors: Tensors, _target: Tensors) -> None:
    config["norm_before_fc"] = True
    tensors["input_norm.weight"] = 1 + 0.3 * _noise(3 * config["hidden_size"])


def _fc_norm(config: Config, tensors: Tensors, _target: Tensors) -> None:
    config["fc_norm"] = True
    for i, weight in enumerate((1 + 0.3 * _noise(3, config["hidden_size"])).unbind()):
        tensors[f"fc_norm.{i}.weight"] = weight.clone()


def _norm_output(config: Config, _tensors: Tensors, _target: Tensors) -> None:
    config["norm_output"] = True


def _fc_bias(config: Config, tensors: Tensors, _target: Tensors) -> None:
    config["bias"] = True
    tensors["fc.bias"] = 0.3 * _noise(config["hidden_size"])


def _attention_bias(config: Config, tensors: Tensors, _target: Tensors) -> None:
    """Biases of the inputs only; the output's, which the same key switches on, is zero."""
    config["attention_bias"] = True
    for name in [name for name in tensors if name.endswith("_proj.weight") and ".self_attn." in name]:
        scale = 0.0 if ".o_proj." in name else 0.5
        tensors[name.replace("weight", "bias")] = scale * _noise(len(tensors[name]))


def _own_embedding(_config: Config, tensors: Tensors, target: Tensors) -> None:
    embedding = target["model.embed_tokens.weight"]
    tensors["embed_tokens.weight"] = embedding + 0.3 * embedding.std() * _noise(*embedding.shape)


def _target_head(config: Config, tensors: Tensors, _target: Tensors) -> None:
    config["draft_vocab_size"] = None
    for name in ("lm_head.weight", "d2t", "t2d"):
        tensors.pop(name, None)


def _flat_ids(config: Config, _tensors: Tensors, _target: Tensors) -> None:
    config.pop("eagle_config")
    config[IDS_KEY] = list(FLAT_IDS)


EDITS: dict[str, Callable[[Config, Tensors, Tensors], None]] = {
    "norm_before_residual": _norm_before_residual,
    "norm_before_fc": _norm_before_fc,
    "fc_norm": _fc_norm,
    "norm_output": _norm_output,
    "fc_bias": _fc_bias,
    "attention_bias": _attention_bias,
    "own_embedding": _own_embedding,
    "target_head": _target_head,
    "flat_ids": _flat_ids,
}
