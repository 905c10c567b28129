"""config.json of drafts and targets: defaults, both spellings of a rope, and every way to be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny

from eagle3ref.config import DraftConfig, KimiK25Config, MLAConfig, RopeConfig, TargetConfig, TreeConfig
from eagle3ref.config.json_fields import JsonFields
from eagle3ref.errors import Eagle3RefError

GOLDEN = Path(__file__).parent / "golden" / "kimi_tiny" / "int4"


def draft_config(folder: Path, kind: str = "gqa", **keys: Any) -> DraftConfig:
    config, _ = tiny.draft_parts(kind)
    config = {key: value for key, value in {**config, **keys}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    return DraftConfig.from_folder(folder)


def test_a_kimi_config_is_read_from_its_text_config():
    """Bug: the outer ids or sizes of the multimodal wrapper, eps or rope of another family member."""
    target, kimi = TargetConfig.from_folder(GOLDEN), KimiK25Config.from_folder(GOLDEN)
    assert (target.model_type, target.num_layers, target.hidden_size, target.vocab_size) == ("kimi_k25", 7, 64, 320)
    assert target.eos_token_ids == (301,)
    assert len(target.config_sha256) == 64
    assert (kimi.num_dense_layers, kimi.rms_norm_eps, kimi.intermediate_size) == (1, 1e-5, 96)
    assert (kimi.moe.num_experts, kimi.moe.num_experts_per_token, kimi.moe.routed_scaling_factor) == (8, 3, 2.827)
    rope = kimi.attention.rope
    assert (rope.type, rope.theta, rope.factor, rope.beta_fast, rope.beta_slow) == ("yarn", 50000.0, 64.0, 32.0, 1.0)
    assert (rope.attention_factor, rope.mscale_all_dim) == (1.0, 1.0)


def test_end_tokens_of_both_files_count(tmp_path):
    """Bug: Kimi's chat turns end with a token that only generation_config.json names; answers never stop."""
    (tmp_path / "config.json").write_text((GOLDEN / "config.json").read_text())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [302, 301]}')
    assert TargetConfig.from_folder(tmp_path).eos_token_ids == (301, 302)


def test_both_spellings_of_a_rope_are_one(tmp_path):
    """Bug: transformers 5's rope_parameters, the older "type", or SGLang's deepseek_yarn read as no scaling."""
    old = draft_config(tmp_path, "mla", rope_theta=50000.0, rope_scaling=tiny.YARN)
    new = {**tiny.YARN, "rope_type": "deepseek_yarn", "rope_theta": 50000.0}
    assert draft_config(tmp_path, "mla", rope_theta=..., rope_parameters=new) == old
    assert isinstance(old.attention, MLAConfig)
    assert old.attention.rope.factor == 64.0
    for none in ({}, {"rope_scaling": None}, {"rope_scaling": {"type": None}}, {"rope_parameters": {}}):
        assert draft_config(tmp_path, rope_theta=..., **none).attention.rope == RopeConfig(10, 10000.0)


def test_defaults_of_a_bare_draft(tmp_path):
    """Bug: a missing key that is read as something else than engines do."""
    config = draft_config(tmp_path, head_dim=..., num_key_value_heads=..., draft_vocab_size=..., eagle_config=...)
    assert (config.attention.head_dim, config.attention.num_kv_heads) == (tiny.WIDTH // 4, 4)
    assert (config.draft_vocab_size, config.shares_target_lm_head) == (tiny.VOCAB, True)
    assert (config.target_hidden_size, config.num_aux_hidden_states, config.capture_ids) == (tiny.WIDTH, 3, None)
    assert (config.final_norm, config.final_norm_key, config.logit_scale) == ("head", "", 1.0)
    switches = ("norm_output", "fc_norm", "norm_before_fc", "norm_before_residual", "fc_bias", "tie_word_embeddings")
    assert not any(getattr(config, switch) for switch in switches)


@pytest.mark.parametrize(
    ("keys", "switch"),
    [
        ({"eagle_config": {"norm_before_fc": True}}, "norm_before_fc"),
        ({"eagle_config": {"norm_before_fc": True}, "norm_before_fc": False}, "norm_before_fc"),
        ({"eagle_config": {"return_hidden_post_norm": True}}, "norm_output"),
        ({"use_aux_norm": True}, "fc_norm"),
        ({"norm_before_residual": True}, "norm_before_residual"),
        ({"bias": True}, "fc_bias"),
    ],
)
def test_every_place_of_a_switch_is_read(keys, switch, tmp_path):
    """Bug: a switch under its other name is ignored, and another network runs."""
    assert getattr(draft_config(tmp_path, **keys), switch) is True


@pytest.mark.parametrize(("key", "biases"), [("attention_bias", (True, True)), ("qkv_bias", (True, False))])
def test_qkv_bias_leaves_the_output_without(key, biases, tmp_path):
    """Bug: a missing o_proj.bias in a checkpoint that never had one."""
    attention = draft_config(tmp_path, **{key: True}).attention
    assert (attention.bias, attention.output_bias) == biases


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "nul", "\x00", '{"a": ' + "9" * 5000 + "}", "[" * 200_000], ids=range(8)
)
def test_what_is_no_json_object_is_refused(text, tmp_path):
    """Bug: a traceback that does not name the file; a RecursionError on a hostile one."""
    (tmp_path / "config.json").write_text(text)
    for read in (DraftConfig.from_folder, TargetConfig.from_folder):
        with pytest.raises(Eagle3RefError, match=r"reading .*config\.json: found "):
            read(tmp_path)


def test_bytes_that_are_no_text_and_missing_files_are_refused(tmp_path):
    """Bug: UnicodeDecodeError, FileNotFoundError, IsADirectoryError."""
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{\x00}\x00")
    (tmp_path / "folder" / "config.json").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "folder", tmp_path / "none"):
        with pytest.raises(Eagle3RefError, match=r"reading .*config\.json"):
            TargetConfig.from_folder(folder)


@pytest.mark.parametrize(
    "key", ["hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "rms_norm_eps", "architectures"]
)
def test_missing_and_ill_typed_keys_name_the_key(key, tmp_path):
    """Bug: a KeyError or TypeError from deep inside; a string that is converted; true taken for 1."""
    for value in (..., "32", [32], True, {}):
        with pytest.raises(Eagle3RefError, match=key):
            draft_config(tmp_path, **{key: value})


@pytest.mark.parametrize("value", [0, -32, 2**31, 10**30])
@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "draft_vocab_size", "num_attention_heads", "head_dim"])
def test_sizes_out_of_range_are_refused(key, value, tmp_path):
    """Bug: a division by zero, a negative tensor dimension, an overflow."""
    with pytest.raises(Eagle3RefError, match=f"{key}.*found {value}; expected an integer from 1 to"):
        draft_config(tmp_path, **{key: value})


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"architectures": ["LlamaForCausalLMEagle"]}, "LlamaForCausalLMEagle"),
        ({"architectures": []}, r"architectures = \[\]"),
        ({"num_key_value_heads": 3}, "4 heads over 3"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"logit_scale": "2"}, "logit_scale"),
        ({"fc_norm": True, "num_aux_hidden_states": 2**30}, "num_aux_hidden_states"),
        ({"partial_rotary_factor": 0.0}, "partial_rotary_factor = 0.0"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor = 1.5"),
        ({"partial_rotary_factor": 0.5}, "dim=5"),
        ({"partial_rotary_factor": 0.01}, "dim=0"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope type 'longrope'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 1000.0}}, "alpha = 1000.0"),
        ({"rope_scaling": {"type": "dynamic"}}, "reading 'factor'"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_theta = 10000.0 at top level and 5"),
        ({"rope_scaling": {"type": "yarn"}}, "reading 'factor'"),
        ({"rope_scaling": {"type": "yarn", "factor": 0.0}}, "factor=0.0"),
        ({"rope_scaling": [1]}, "reading 'rope_scaling'"),
        ({"rope_theta": 0.0}, "theta=0.0"),
        ({"head_dim": 5}, "dim=5"),
        ({"rms_norm_eps": float("nan")}, "found nan; expected a finite number"),
        ({"eagle_config": [1]}, "reading 'eagle_config'"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["2"]}}, "expected a list of integers"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [True, 3, 4]}}, "expected a list of integers"),
        ({"eagle_config": {"use_last_layernorm": False}}, "use_last_layernorm = False"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state = False"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "use_mtp_layernorm = True"),
        ({"eagle_config": {"parallel_draft_step": 2}}, "parallel_draft_step = 2"),
    ],
)
def test_drafts_of_another_kind_are_refused(keys, found, tmp_path):
    """Bug: another network runs as a plain head and only the acceptance falls."""
    with pytest.raises(Eagle3RefError, match=found):
        draft_config(tmp_path, **keys)


def test_k2_instruct_with_equal_betas_is_not_refused(tmp_path):
    """Bug: beta_fast = beta_slow = 1, the values of K2-Instruct and of published MLA drafts."""
    config = draft_config(tmp_path, "mla", rope_scaling={**tiny.YARN, "beta_fast": 1.0})
    assert config.attention.rope.beta_fast == 1.0


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"scoring_func": "softmax"}, "softmax"),
        ({"n_group": 8}, "n_group = 8"),
        ({"topk_group": 4}, "topk_group = 4"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"kv_lora_rank": None}, "kv_lora_rank"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_experts_per_tok": 10**6}, "num_experts_per_tok"),
        ({"n_shared_experts": -1}, "n_shared_experts"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace"),
    ],
)
def test_targets_of_another_kind_are_refused(change, found, tmp_path):
    """Bug: another DeepSeek read as a Kimi, with plausible logits."""
    config = json.loads((GOLDEN / "config.json").read_text())
    config["text_config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Eagle3RefError, match=found):
        KimiK25Config.from_folder(tmp_path)


def test_json_fields_name_file_and_key():
    """Bug: a nested object's message that does not say where it stands."""
    fields = JsonFields({"a": {"b": "x"}}, "c.json")
    nested = fields.object("a")
    assert nested is not None
    with pytest.raises(Eagle3RefError, match=r"reading 'b' of c\.json: a: found 'x'; expected true or false"):
        nested.flag("b")


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ((3, 1, 5), "SGLang would silently run 3/1/4"),
        ((3, 4, 38), "at most 37"),
        ((1, 4, 6), "at most 5"),
        ((0, 1, 1), "num_steps >= 1"),
        ((3.0, 1, 4), "three integers"),
        (("3", 1, 4), "three integers"),
        ((3, 0, 4), "topk >= 1"),
        ((3, 2, 1), "num_draft_tokens >= 2"),
        ((3, 2, 4, "sibling"), "tree_kv"),
    ],
)
def test_impossible_trees_say_what_is_possible(setting, found):
    """Bug: SGLang's silent correction of a chain, or a tree larger than its candidates."""
    with pytest.raises(Eagle3RefError, match=found):
        TreeConfig(*setting)
    assert TreeConfig(3, 4, 37).num_candidates == 36


def test_an_end_token_that_no_tensor_can_hold_is_refused(tmp_path):
    """Bug: an OverflowError in the middle of a capture, after the target was loaded."""
    config = json.loads((GOLDEN / "config.json").read_text())
    config["text_config"]["eos_token_id"] = [5, 2**70]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Eagle3RefError, match="eos_token_id"):
        TargetConfig.from_folder(tmp_path)


def test_the_path_of_a_target_holds_from_any_folder(tmp_path, monkeypatch):
    """Bug: a trace remembers `target`, and a replay from another folder finds nothing there, or another target."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text((GOLDEN / "config.json").read_text())
    monkeypatch.chdir(tmp_path)
    assert TargetConfig.from_folder("target") == TargetConfig.from_folder(tmp_path / "target")
