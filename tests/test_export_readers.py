"""Exports as their readers see them: names, temperatures and layer ids, each reader's rules written again."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from exports import config_of, draft_of, write_target
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import variants
from safetensors.torch import load_file

from eagle3ref.draft import export_draft, load_draft
from eagle3ref.errors import Eagle3RefError

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")


def sglang_slot(name: str, parameters: set[str], *, mla: bool) -> str | None:
    """The parameter that SGLang 0.5.23 puts a tensor into; None if it drops it."""
    if mla:
        name = re.sub(r"^layers\.0\.", "midlayer.", name)
        name = name if name.startswith("lm_head.") else f"model.{name}"
        name = re.sub(r"\.(q_a_proj|kv_a_proj_with_mqa)\.", ".fused_qkv_a_proj_with_mqa.", name)
    else:
        name = name.replace("midlayer", "layers.0")
        name = re.sub(r"\.[qkv]_proj\.", ".qkv_proj.", name)
    name = re.sub(r"\.(gate|up)_proj\.", ".gate_up_proj.", name)
    return next((slot for slot in (name, f"model.{name}") if slot in parameters), None)


def sglang_parameters(config: dict[str, Any]) -> set[str]:
    """What the classes of SGLang 0.5.23 build from a config.json."""
    mla = config["architectures"][0] == "Eagle3DeepseekV2ForCausalLM"
    found = {"lm_head.weight", "model.embed_tokens.weight", "model.fc.weight", "model.norm.weight"}
    found |= {f"model.fc_norm.{i}.weight" for i in range(3) if config.get("fc_norm")}
    if config.get("norm_before_fc") and not mla:
        found.add("model.input_norm.weight")
    if config.get("bias"):
        found.add("model.fc.bias")
    attention = (
        {"fused_qkv_a_proj_with_mqa", "q_a_layernorm", "q_b_proj", "kv_a_layernorm", "kv_b_proj", "o_proj"}
        if mla
        else {"qkv_proj", "o_proj"}
    )
    parts = {"input_layernorm", "hidden_norm", "post_attention_layernorm", "mlp.gate_up_proj", "mlp.down_proj"}
    parts |= {f"self_attn.{name}" for name in attention}
    layers = ["midlayer"] if mla else [f"layers.{i}" for i in range(config["num_hidden_layers"])]
    return found | {f"model.{layer}.{part}.weight" for layer in layers for part in parts}


SGLANG_DRAFTS: dict[str, dict[str, Any]] = {
    "gqa": {},
    "three layers": {"layers": 3},
    "norms": {"fc_norm": True, "norm_before_fc": True, "norm_output": True},
    "mla": {"kind": "mla"},
    "mla with norms and bias": {"kind": "mla", "fc_norm": True, "bias": True},
}


@pytest.mark.parametrize("case", SGLANG_DRAFTS)
def test_sglang_finds_every_tensor(case, tmp_path):
    """Bug: a name that SGLang drops without a word, so that it runs with random values in its place."""
    exported = export_draft(draft_of(tmp_path / "original", **SGLANG_DRAFTS[case]), tmp_path / "copy", format="sglang")
    config, tensors = config_of(exported), load_file(exported / "model.safetensors")
    parameters, mla = sglang_parameters(config), "kv_lora_rank" in config
    slots = {name: sglang_slot(name, parameters, mla=mla) for name in tensors if name not in ("d2t", "t2d")}
    assert [name for name, slot in slots.items() if slot is None] == []
    # The norm of the embedding exists in every layer, and only the first uses it.
    unused = {f"model.layers.{i}.input_layernorm.weight" for i in range(1, config["num_hidden_layers"])}
    assert parameters - set(slots.values()) == unused
    assert config["tie_word_embeddings"] is False
    assert config["draft_vocab_size"] == len(tensors["lm_head.weight"])


def vllm_parameters(config: dict[str, Any]) -> set[str]:
    """What the classes of vLLM 0.32.0 build, before projections are fused."""
    mla = "kv_lora_rank" in config
    found = {"lm_head.weight", "fc.weight", "norm.weight", "embed_tokens.weight"}
    found |= {f"fc_norm.{i}.weight" for i in range(config["num_aux_hidden_states"]) if config.get("fc_norm")}
    if config.get("norm_before_fc") and not mla:
        found.add("input_norm.weight")
    if config["draft_vocab_size"] != config["vocab_size"]:
        found.add("d2t")
    projections = ["q_proj", "k_proj", "v_proj", "o_proj"]
    if mla:
        projections = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
    attention = {f"{name}.weight" for name in projections}
    attention |= {f"{name}.bias" for name in projections if config["attention_bias"]}
    attention |= {f"{name}_layernorm.weight" for name in ("q_a", "kv_a") if mla}
    if config["architectures"] == ["Eagle3Qwen3ForCausalLM"]:
        attention |= {"q_norm.weight", "k_norm.weight"}
    mlp = {f"{name}_proj.{part}" for name in ("gate", "up", "down") for part in ("weight", "bias")}
    layer = {f"self_attn.{name}" for name in attention} | {"input_layernorm.weight", "post_attention_layernorm.weight"}
    layer |= {f"mlp.{name}" for name in mlp if config["mlp_bias"] or name.endswith("weight")}
    found |= {f"layers.{i}.{name}" for i in range(config["num_hidden_layers"]) for name in layer}
    return found | {"layers.0.hidden_norm.weight"}


VLLM_DRAFTS: dict[str, dict[str, Any]] = {
    "gqa": {},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "three layers": {"layers": 3},
    "norms": {"fc_norm": True, "norm_before_fc": True, "norm_before_residual": True},
    "mla": {"kind": "mla"},
    "two mla layers": {"kind": "mla", "layers": 2, "fc_norm": True},
}


@pytest.mark.parametrize("case", VLLM_DRAFTS)
def test_vllm_finds_every_tensor_and_no_other(case, tmp_path):
    """Bug: a tensor that vLLM refuses, or one that it would leave as it was made."""
    exported = export_draft(draft_of(tmp_path / "original", **VLLM_DRAFTS[case]), tmp_path / "copy", format="vllm")
    assert set(load_file(exported / "model.safetensors")) == vllm_parameters(config_of(exported))


@pytest.mark.parametrize("format", ["sglang", "vllm"])
def test_an_mla_draft_is_not_taken_for_an_mtp_layer(format, tmp_path):
    """Bug: model_type deepseek_v3, for which vLLM puts another class in the place of the named one."""
    exported = export_draft(draft_of(tmp_path / "original", "mla"), tmp_path / "copy", format=format)
    # Both engines have a config class for this one, and vLLM rewrites none of its keys.
    assert config_of(exported)["model_type"] == "kimi_k2"


def test_vllm_reads_query_norms_with_its_qwen3_class(tmp_path):
    """Bug: the Llama class named, which has no place for them."""
    draft = load_draft(variants.write("qwen3 by default", tmp_path / "original"))
    exported = export_draft(draft, tmp_path / "copy", format="vllm")
    assert config_of(exported)["model_type"] == "qwen3"
    assert set(load_file(exported / "model.safetensors")) == vllm_parameters(config_of(exported))


def yarn_factor(config: dict[str, Any], reader: str) -> float:
    """What a reader multiplies cos and sin by."""
    rope = config["rope_scaling"]

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * torch.tensor(rope["factor"], dtype=torch.float64).log().item() + 1

    if reader in ("vllm gqa", "speculators") and "attention_factor" in rope:
        return rope["attention_factor"]
    mscale, all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
    if reader.endswith("mla"):
        return temperature(1 if mscale is None else mscale) / temperature(all_dim or 0)
    both = (mscale is not None and all_dim is not None) if reader == "sglang gqa" else bool(mscale and all_dim)
    return temperature(mscale) / temperature(all_dim) if both else temperature(1)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["gqa", "mla"]),
    format=st.sampled_from(["sglang", "vllm"]),
    factor=st.floats(1.5, 64),
    temperatures=st.tuples(*[st.sampled_from([None, 0.0, 0.7, 1.0])] * 3),
)
def test_every_reader_gets_the_same_temperature(tmp_path_factory, kind, format, factor, temperatures):
    """Bug: keys that transformers reads one way and an engine another, so that attention is sharper or flatter."""
    names = ("mscale", "mscale_all_dim", "attention_factor")
    given_keys = {name: value for name, value in zip(names, temperatures, strict=True) if value is not None}
    if given_keys.get("attention_factor") == 0:
        return
    folder = tmp_path_factory.mktemp("draft")
    draft = draft_of(folder / "original", kind, rope_scaling={"type": "yarn", "factor": factor, **given_keys})
    config = config_of(export_draft(draft, folder / "copy", format=format))
    rope = draft.config.attention.rope
    assert yarn_factor(config, f"{format} {kind}") == pytest.approx(rope.attention_factor, rel=1e-9)
    if kind == "mla":
        assert config["rope_scaling"].get("mscale_all_dim", 0) == rope.mscale_all_dim
        # vLLM takes this value of the key for another kind of scaling, without the squared temperature.
        assert rope.mscale_all_dim == 0 or config["rope_scaling"].get("attention_factor") != 1.0


def captured_by_sglang(ids: list[int], model_type: str, layers: int) -> tuple[int, ...]:
    """SGLang 0.5.23's set_eagle3_layers_to_capture, from llama.py, deepseek_v2.py and gpt_oss.py."""
    as_is = {"llama": False, "kimi_k25": ids[0] != 1, "gpt_oss": max(ids) == layers}[model_type]
    return tuple(ids if as_is else [layer + 1 for layer in ids])


def test_an_ordinary_yarn_has_no_keys_of_temperature(tmp_path):
    """Bug: keys that say what every reader assumes, which the next reader may take otherwise."""
    draft = draft_of(tmp_path / "original", rope_scaling={"type": "yarn", "factor": 4.0})
    rope = config_of(export_draft(draft, tmp_path / "copy", format="vllm"))["rope_scaling"]
    assert set(rope) == {"rope_type", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow"}


def test_a_plain_rope_of_part_of_the_head_is_linear_by_1_for_speculators(tmp_path):
    """Bug: type default, for which transformers leaves the share out and turns the whole head."""
    draft = draft_of(tmp_path / "original", partial_rotary_factor=0.4)
    exported = export_draft(draft, tmp_path / "copy", format="speculators")
    rope = config_of(exported)["transformer_layer_config"]["rope_parameters"]
    assert (rope["rope_type"], rope["factor"], rope["partial_rotary_factor"]) == ("linear", 1.0, 0.4)
    assert load_draft(exported).config.attention.rope == draft.config.attention.rope


@pytest.mark.parametrize("points", [(2, 4, 6), (3, 5, 7), (1, 4, 6), (2, 3, 8)])
@pytest.mark.parametrize("model_type", ["llama", "kimi_k25", "gpt_oss"])
def test_sglang_captures_the_same_points(model_type, points, tmp_path):
    """Bug: ids written in the numbering of another target: acceptance falls a little, and nothing says why."""
    draft = draft_of(tmp_path / "original", points=points)
    target = write_target(tmp_path / "target", draft.embed_tokens.weight, model_type=model_type)
    impossible = (points[-1] == 8 and model_type != "gpt_oss") or (points[0] == 1 and model_type == "kimi_k25")
    if impossible:
        with pytest.raises(Eagle3RefError, match="points that SGLang 0.5.23 captures there"):
            export_draft(draft, tmp_path / "copy", format="sglang", target=target)
        return
    exported = export_draft(draft, tmp_path / "copy", format="sglang", target=target)
    ids = config_of(exported)["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    assert captured_by_sglang(ids, model_type, layers=8) == points
    assert load_draft(exported, target=target).capture_points == points


@pytest.mark.parametrize("model_type", ["llama", "kimi_k25"])
def test_ids_that_every_sglang_version_reads_alike_are_preferred(model_type, tmp_path):
    """Bug: 2, 4, 6 written for a Kimi target: before its PR 25454 SGLang added 1 to those too."""
    draft = draft_of(tmp_path / "original", points=(2, 4, 6))
    target = write_target(tmp_path / "target", draft.embed_tokens.weight, model_type=model_type)
    config = config_of(export_draft(draft, tmp_path / "copy", format="sglang", target=target))
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]


def test_the_only_layer_has_the_name_that_every_sglang_version_knows(tmp_path):
    """Bug: layers.0., which versions before drafts of several layers dropped."""
    exported = export_draft(draft_of(tmp_path / "original"), tmp_path / "copy", format="sglang")
    assert "midlayer.hidden_norm.weight" in load_file(exported / "model.safetensors")


def test_sglang_needs_the_target_where_its_numbering_depends_on_it(tmp_path):
    """Bug: a guess."""
    with pytest.raises(Eagle3RefError, match=r"\(3, 5, 7\) and no target.*Pass the target"):
        export_draft(draft_of(tmp_path / "original", points=(3, 5, 7)), tmp_path / "copy", format="sglang")


@pytest.mark.parametrize("format", ["vllm", "speculators"])
def test_vllm_and_speculators_number_inputs(format, tmp_path):
    """Bug: SGLang's numbering in a file for vLLM, which takes ids as they are: a published mistake."""
    draft = draft_of(tmp_path / "original", points=(1, 4, 6))
    config = config_of(export_draft(draft, tmp_path / "copy", format=format))
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 4, 6]
    assert "eagle_config" not in config
