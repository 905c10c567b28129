"""Checkpoints that are no EAGLE-3 drafts are refused by the name of what they are, with the evidence."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import save_file

from eagle3ref.draft import DraftWarning, load_draft
from eagle3ref.errors import Eagle3RefError

ONE = torch.ones(1)


def folder_of(path: Path, config: dict[str, Any], names: Iterable[str]) -> Path:
    """A folder with these keys and with tensors of these names; without names, no weight file."""
    (path / "config.json").write_text(json.dumps(config))
    if tensors := dict.fromkeys(names, ONE):
        save_file({name: value.clone() for name, value in tensors.items()}, path / "model.safetensors")
    return path


EAGLE_1_LAYER = ("layers.0.self_attn.q_proj.weight", "layers.0.post_attention_layernorm.weight", "fc.weight", "fc.bias")
LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_size": 32, "vocab_size": 96}
NOT_EAGLE_3: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "EAGLE-1 by architecture": ({"architectures": ["LlamaForCausalLMEagle"]}, (), r"EAGLE-1 or .*flag is EAGLE, not"),
    "EAGLE-1 by tensors": (LLAMA, EAGLE_1_LAYER, r"EAGLE-1 or EAGLE-2 draft \(HASS.*: tensor fc\.weight"),
    "EAGLE-1 in vLLM's old wrapper": (
        {"architectures": ["EAGLEModel"], "model_type": "eagle", "model": LLAMA},
        EAGLE_1_LAYER,
        r"EAGLE-1.*architectures = EAGLEModel, model_type = eagle",
    ),
    "EAGLE-1 of speculators": ({"speculators_model_type": "eagle"}, (), "EAGLE-1.*speculators_model_type = eagle"),
    "one final state": (
        {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {"use_aux_hidden_state": False}},
        ("midlayer.hidden_norm.weight", "midlayer.self_attn.q_proj.weight"),
        r"EAGLE-1.*eagle_config\.use_aux_hidden_state = False",
    ),
    "Medusa by key": ({"medusa_num_heads": 4}, (), "Medusa heads: medusa_num_heads = 4"),
    "Medusa by tensors": ({}, ("0.0.linear.weight", "0.1.weight"), r"Medusa heads: tensor 0\.0\.linear\.weight"),
    "MLP speculator": ({"model_type": "mlp_speculator"}, (), "an MLP speculator"),
    "MTP by tensors": (
        {"architectures": ["DeepseekV3ForCausalLM"]},
        ("model.layers.61.enorm.weight", "model.layers.61.hnorm.weight", "model.layers.61.eh_proj.weight"),
        r"multi-token-prediction.*: tensor model\.layers\.61\.eh_proj\.weight",
    ),
    "MTP by architecture": ({"architectures": ["DeepseekV3ForCausalLMNextN"]}, (), "multi-token-prediction"),
    "MTP in modelopt": ({"eagle_config": {"use_mtp_layernorm": True}}, (), "multi-token-prediction.*use_mtp_layernorm"),
    "P-EAGLE by tensor": (
        {"architectures": ["LlamaForCausalLMEagle3"]},
        ("fc.weight", "midlayer.hidden_norm.weight", "model.mask_hidden"),
        r"P-EAGLE.*: tensor model\.mask_hidden",
    ),
    "P-EAGLE of NeMo": (
        {"architectures": ["LlamaEagle3DraftModel"], "parallel_drafting": True},
        (),
        "P-EAGLE.*parallel_drafting = True",
    ),
    "P-EAGLE of SpecForge": ({"architectures": ["PEagleDraftModel"]}, (), "P-EAGLE.*PEagleDraftModel"),
    "parallel heads": ({"eagle_config": {"parallel_draft_step": 4}}, (), "parallel draft heads.*_step = 4"),
    "DFlash": ({"architectures": ["DFlashDraftModel"]}, (), "a DFlash"),
    "DSpark": ({"architectures": ["Qwen3DSparkModel"]}, ("fc.weight",), "a DFlash, DSpark"),
    "DFlash of speculators": ({"speculators_model_type": "dflash2"}, (), "speculators_model_type = dflash2"),
    "Kimi-K3 of NeMo": (
        {"architectures": ["LlamaEagle3DraftModel"], "mla_use_nope": True, "mla_use_output_gate": True},
        (),
        "Kimi-K3.*mla_use_nope = True, mla_use_output_gate = True",
    ),
    "Kimi-K3 by tensor": (
        {"architectures": ["Eagle3DeepseekV2ForCausalLM"]},
        ("fc.weight", "layers.0.hidden_norm.weight", "layers.0.self_attn.g_proj.weight"),
        r"Kimi-K3.*: tensor layers\.0\.self_attn\.g_proj\.weight",
    ),
    "a target": (
        LLAMA,
        ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight", "lm_head.weight"),
        "a whole language model.*not the target",
    ),
    "a target that brings an MTP layer": (
        {"architectures": ["DeepseekV3ForCausalLM"]},
        *[("model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.gate.weight", "model.layers.61.eh_proj.weight")],
        "a whole language model",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_EAGLE_3)
def test_other_networks_are_refused_by_name(case, tmp_path):
    """Bug: half-loaded, or refused with a list of missing tensors that says nothing of what the file is."""
    config, names, found = NOT_EAGLE_3[case]
    with pytest.raises(Eagle3RefError, match=found):
        load_draft(folder_of(tmp_path, config, names))


def test_noise_from_the_target_is_no_evidence(tmp_path):
    """Bug: keys that trainers copy from a DeepSeek or Qwen target make a good draft look like something else."""
    noise = {
        "num_nextn_predict_layers": 1,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "parallel_drafting": False,
        "mla_use_nope": False,
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 0,
        "model_type": "qwen3",
        "eagle_config": {"parallel_draft_step": 1, "use_aux_hidden_state": True},
    }
    draft = load_draft(tiny.draft_folder(tmp_path, **noise), capture_points=(2, 3, 4))
    assert draft.config.layer_windows == ()


def test_an_fc_outweighs_the_key_that_denies_it(tmp_path):
    """Bug: a good EAGLE-3 head called an EAGLE-1 draft for one wrong key; or loaded without a word of what it does."""
    off = {"eagle_config": {"use_aux_hidden_state": False}}
    with pytest.warns(DraftWarning, match="use_aux_hidden_state is false.*SGLang would capture nothing"):
        draft = load_draft(tiny.draft_folder(tmp_path, **off), capture_points=(2, 3, 4))
    assert draft.fc.in_features == 3 * tiny.WIDTH


@pytest.mark.parametrize("value", [[1], "x", 3, {"a": {"b": 2}}, None, True])
@pytest.mark.parametrize("key", ["architectures", "model_type", "eagle_config", "transformer_layer_config"])
def test_keys_of_another_type_end_in_an_error_or_a_draft(key, value, tmp_path):
    """Bug: a TypeError or AttributeError from a check that trusts the type of a key."""
    config, tensors = tiny.draft_parts(**{key: value})
    with contextlib.suppress(Eagle3RefError):
        load_draft(tiny.write_draft(tmp_path, config, tensors), capture_points=(2, 3, 4))


def test_a_first_projection_of_one_width_is_refused(tmp_path):
    """Bug: a plain layer 0 beside an fc read as a draft; its attention would take the embedding alone."""
    config, tensors = tiny.draft_parts()
    tensors["midlayer.self_attn.q_proj.weight"] = tensors["midlayer.self_attn.q_proj.weight"][:, :32].clone()
    with pytest.raises(Eagle3RefError, match=r"q_proj\.weight of shape \(40, 32\); expected \(40, 64\)"):
        load_draft(tiny.write_draft(tmp_path, config, tensors))
