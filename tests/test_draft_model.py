"""Eagle3Draft against an EAGLE-3 forward written again in fp64 from the file's tensors, row by row, for five steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from draft_oracle import PREFIX, STEPS, Oracle, assert_same_network, run_draft
from torch import Tensor

from eagle3ref.draft import load_draft
from eagle3ref.errors import Eagle3RefError

# The drafts here are odd on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")

GQA_YARN = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "gqa": {},
    "norm_output": {"norm_output": True},
    "fc_norm": {"fc_norm": True},
    "norm_before_fc": {"norm_before_fc": True, "bias": True},
    "norm_before_residual": {"norm_before_residual": True},
    "attention_bias": {"attention_bias": True, "mlp_bias": True},
    "qkv_bias": {"qkv_bias": True},
    "two layers": {"num_layers": 2, "norm_output": True},
    "llama3": {"rope_scaling": tiny.LLAMA3, "head_dim": 16},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "yarn": {"rope_scaling": GQA_YARN, "head_dim": 16},
    "one key head": {"num_key_value_heads": 1},
    "wider target": {"target_hidden_size": 40},
    "mla": {"kind": "mla"},
    "mla yarn": {"kind": "mla", "rope_scaling": tiny.YARN, "rope_theta": 50000.0},
    "mla without q_lora": {"kind": "mla", "q_lora_rank": None},
    "mla 3.1": {"kind": "mla", "fc_norm": True, "norm_output": True, "rope_scaling": tiny.YARN},
    "mla two layers": {"kind": "mla", "num_layers": 2},
    "mla half-split": {"kind": "mla", "rope_interleave": False, "rope_scaling": tiny.YARN},
    "half of the head rotated": {"partial_rotary_factor": 0.5, "head_dim": 16, "rope_scaling": GQA_YARN},
    "multimodal rope": {"rope_scaling": {"type": "mrope", "mrope_section": [1, 2, 2]}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
    "yarn of gpt-oss": {"rope_scaling": {**GQA_YARN, "truncate": False, "attention_factor": 1.3}, "head_dim": 16},
    "logit_scale": {"logit_scale": 0.25},
    "both norms before fc": {"norm_before_fc": True, "fc_norm": True},
}


def query_norms(num_layers: int) -> dict[str, Tensor]:
    """Qwen3's norms of a query and a key head."""
    layers = ["midlayer.", *(f"layers.{i}." for i in range(1, num_layers))]
    names = [f"{layer}self_attn.{part}_norm.weight" for layer in layers for part in "qk"]
    generator = torch.Generator().manual_seed(7)
    return {name: 1 + 0.3 * torch.randn(10, generator=generator) for name in names}


@pytest.mark.parametrize("variant", VARIANTS)
def test_five_steps_equal_the_oracle(variant, tmp_path):
    """Bug: a wrong residual, norm, rope, scale, head order or recurrence, in any of the published variants."""
    keys = dict(VARIANTS[variant])
    config, tensors = tiny.draft_parts(**keys)
    draft = load_draft(tiny.write_draft(tmp_path, config, tensors), dtype=torch.float64)
    assert_same_network(draft, Oracle(config, tensors, keys.get("num_layers", 1)))


def test_biases_in_the_file_need_no_key(tmp_path):
    """Bug: Qwen2's query biases, which no key of its config names, refused or dropped."""
    config, tensors = tiny.draft_parts(qkv_bias=True)
    del config["qkv_bias"]
    draft = load_draft(tiny.write_draft(tmp_path, config, tensors), dtype=torch.float64)
    assert_same_network(draft, Oracle(config, tensors))


@pytest.mark.parametrize("num_layers", [1, 2])
def test_query_norms_in_the_file_are_used(num_layers, tmp_path):
    """Bug: Qwen3's norms dropped, put after the rope, over all heads at once, or left out of a later layer."""
    config, tensors = tiny.draft_parts(num_layers=num_layers)
    tensors |= query_norms(num_layers)
    draft = load_draft(tiny.write_draft(tmp_path, config, tensors), dtype=torch.float64)
    assert_same_network(draft, Oracle(config, tensors, num_layers))


def test_a_tied_head_is_used(tmp_path):
    """Bug: tie_word_embeddings with a head that is not the embedding, or that is scaled."""
    config, tensors = tiny.draft_parts(draft_vocab_size=tiny.VOCAB, tie_word_embeddings=True)
    del tensors["lm_head.weight"]
    draft = load_draft(tiny.write_draft(tmp_path, config, tensors), dtype=torch.float64)
    assert_same_network(draft, Oracle(config, {**tensors, "lm_head.weight": tensors["embed_tokens.weight"]}))


def test_llama_4_names_the_width_of_its_mlp_otherwise(tmp_path):
    """Bug: the width of an expert taken for that of the dense layer."""
    config, tensors = tiny.draft_parts()
    config |= {"intermediate_size": 20, "intermediate_size_mlp": config["intermediate_size"]}
    draft = load_draft(tiny.write_draft(tmp_path, config, tensors), dtype=torch.float64)
    assert_same_network(draft, Oracle(config, tensors))


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # keys of the file, options of load_draft, what the oracle runs
    "rope base": ({}, {"rope_theta": 500.0}, {"rope_theta": 500.0}),
    "mla rope base": ({"kind": "mla", "rope_scaling": tiny.YARN}, {"rope_theta": 500.0}, {"rope_theta": 500.0}),
    "double norm": ({}, {"hidden_double_norm": True}, {"hidden_double_norm": True}),
    "mla double norm": ({"kind": "mla"}, {"hidden_double_norm": True}, {"hidden_double_norm": True}),
    "3.1 for a file without the key": ({}, {"final_norm": "head+state"}, {"final_norm": "head+state"}),
    "SpecForge's true": ({"norm_output": True}, {"final_norm": "head"}, {"final_norm": "head"}),
    "SpecForge's false": ({"norm_output": False}, {"final_norm": "none"}, {"final_norm": "none"}),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_gives_the_network_that_it_names(option, tmp_path):
    """Bug: an override that reaches only a part of the network, or none; a key that wins over the caller."""
    keys, options, expected = OPTIONS[option]
    config, tensors = tiny.draft_parts(**keys)
    folder = tiny.write_draft(tmp_path, config, tensors)
    draft = load_draft(folder, dtype=torch.float64, **options)
    assert_same_network(draft, Oracle({**config, **expected}, tensors))
    assert sum("given by the caller" in origin for origin in draft.origins.values()) == 1
    rewired = load_draft(folder, dtype=torch.float64).rewired(draft.config)
    assert_same_network(rewired, Oracle({**config, **expected}, tensors))


def test_sliding_windows_count_the_row_itself(tmp_path):
    """Bug: a window one too wide, on the wrong layer, or only over the prefix."""
    window = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
    config, tensors = tiny.draft_parts(num_layers=2, architectures=["Eagle3LlamaForCausalLM"], **window)
    draft = load_draft(tiny.write_draft(tmp_path, config, tensors), dtype=torch.float64)
    assert_same_network(draft, Oracle({**config, "windows": [3, None]}, tensors, 2))
    assert_same_network(draft.rewired(replace(draft.config, layer_windows=())), Oracle(config, tensors, 2))


def test_rewiring_leaves_tensors_out_and_invents_none(tmp_path):
    """Bug: an engine's network that keeps a norm which that engine drops, copies 6 GB, or runs on random values."""
    config, tensors = tiny.draft_parts(fc_norm=True)
    draft = load_draft(tiny.write_draft(tmp_path, config, tensors), dtype=torch.float64)
    without = draft.rewired(replace(draft.config, fc_norm=False), (2, 4, 5))
    assert_same_network(without, Oracle({**config, "fc_norm": False}, tensors))
    assert (without.capture_points, draft.capture_points) == ((2, 4, 5), (2, 3, 4))
    assert without.lm_head.weight.data_ptr() == draft.lm_head.weight.data_ptr()
    assert torch.equal(without.target_ids, draft.target_ids)
    for change in ({"norm_before_fc": True}, {"num_aux_hidden_states": 2, "fc_norm": False}):
        with pytest.raises(Eagle3RefError, match="missing or of another shape"):
            draft.rewired(replace(draft.config, **change))


@pytest.mark.parametrize("key", ["norm_output", "norm_before_residual"])
def test_switches_without_tensors_do_something(key, tmp_path):
    """Bug: a key that is read and ignored; nothing in the tensors would tell."""
    aux, tokens = torch.randn(PREFIX, 3 * tiny.WIDTH), torch.arange(PREFIX + STEPS)
    off, on = (
        run_draft(load_draft(tiny.draft_folder(tmp_path / str(value), **{key: value})), aux, tokens)
        for value in (False, True)
    )
    assert torch.equal(off[0][1], on[0][1]) == (key == "norm_output")
    assert (off[1][1] - on[1][1]).abs().max() > 0.05


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["gqa", "mla"])
def test_half_precision_stays_close_to_fp64(kind, dtype, tmp_path):
    """Bug: softmax, variance or angles in half precision; a wrong promotion that changes the output's dtype."""
    folder = tiny.draft_folder(tmp_path, kind)
    aux, tokens = torch.randn(PREFIX, 3 * tiny.WIDTH), torch.arange(PREFIX + STEPS)
    low = run_draft(load_draft(folder, dtype=dtype), aux.to(dtype), tokens)
    rounded = load_draft(folder, dtype=dtype).double()
    exact = run_draft(rounded, aux.to(dtype).double(), tokens)
    step = torch.finfo(dtype).eps
    for (state, logits), (exact_state, exact_logits) in zip(low, exact, strict=True):
        assert (state.dtype, logits.dtype) == (dtype, dtype)
        assert (state.double() - exact_state).abs().max() < 6 * step * exact_state.abs().max()
        assert (logits.double() - exact_logits).abs().max() < 6 * step * exact_logits.abs().max()


def test_a_single_state_into_fc_is_refused_and_names_the_flag(tmp_path):
    """Bug: SGLang's bypass of fc when the widths match the embedding's: accept len 1.00 without a word."""
    draft = load_draft(tiny.draft_folder(tmp_path))
    with pytest.raises(Eagle3RefError, match="states 32 wide; expected 96 wide.*--speculative-algorithm EAGLE "):
        draft.fuse(torch.zeros(1, 4, 32))
    with pytest.raises(Eagle3RefError, match="states 64 wide; expected 96 wide.*Record the capture points"):
        draft.fuse(torch.zeros(64))
