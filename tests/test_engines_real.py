"""The newest SGLang profile against the release's own functions, in the environment that ``make test-engines`` makes.

The functions are cut out of the installed source and run alone: to import their modules would need a GPU's libraries.
"""

import ast
import os
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from engines.environment import python_of

from eagle3ref.engines import captured_points, engine_profile

pytestmark = pytest.mark.engine

NESTED = "eagle_config.eagle_aux_hidden_state_layer_ids"
CLASSES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gpt_oss": ("gpt_oss", "GptOssForCausalLM"),
    "gemma3": ("gemma3_causal", "Gemma3ForCausalLM"),
    "deepseek_v3": ("deepseek_v2", "DeepseekV2ForCausalLM"),
    "glm4_moe": ("glm4_moe", "Glm4MoeForCausalLM"),
    "glm4_moe_lite": ("glm4_moe_lite", "Glm4MoeLiteForCausalLM"),
    "longcat_flash": ("longcat_flash", "LongcatFlashForCausalLM"),
}


PROFILE = engine_profile("sglang==0.5.23")


@cache
def package():
    """The folder of the installed package, whose version is the profile's."""
    environment = python_of("sglang", Path(os.environ["EAGLE3REF_TEST_ENGINES"]).resolve()).parent.parent
    (release,) = environment.glob(f"lib/python*/site-packages/sglang-{PROFILE.version}.dist-info")
    return release.parent / "sglang"


def real_function(module, name, owner=None, **names):
    """One function of the installed package, with ``names`` as its globals."""
    scope = ast.parse((package() / "srt" / module).read_text(encoding="utf-8"))
    if owner is not None:
        (scope,) = [node for node in scope.body if isinstance(node, ast.ClassDef) and node.name == owner]
    (function,) = [node for node in scope.body if isinstance(node, ast.FunctionDef) and node.name == name]
    function.args.args = [ast.arg(arg.arg) for arg in function.args.args]  # no annotations: their names are not here
    function.returns = None
    exec(compile(ast.fix_missing_locations(ast.Module([function], [])), module, "exec"), names)
    return names[name]


@pytest.mark.parametrize("ids", [None, [1, 29, 57], [2, 30, 58], [0, 30, 58], [3, 31, 59], [2, 30, 61]], ids=str)
@pytest.mark.parametrize("model_type", CLASSES)
def test_captured_layers_are_the_real_ones(model_type, ids):
    """A shift rule that differs from the release's own ``set_eagle3_layers_to_capture``."""
    module, owner = CLASSES[model_type]
    target = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True),
        config=SimpleNamespace(num_hidden_layers=61),
        model=SimpleNamespace(),
    )
    real_function(f"models/{module}.py", "set_eagle3_layers_to_capture", owner)(target, ids)
    ours = captured_points(PROFILE, {} if ids is None else {NESTED: ids}, model_type, 61, 3)
    last = 61 if model_type in PROFILE.last_point_targets else 60
    assert set(ours.points) == {point for point in target.model.layers_to_capture if point <= last}


@pytest.mark.parametrize(
    "architecture",
    ["LlamaForCausalLM", "KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM", "Qwen3ForCausalLM"],
)
def test_default_trees_are_the_real_ones(architecture):
    """A default tree that the release would not choose."""
    choose = real_function(
        "arg_groups/speculative_hook.py", "_auto_choose_speculative_params", resolving_view=lambda args: args
    )
    real = choose(SimpleNamespace(speculative_algorithm="EAGLE3"), architecture)
    assert PROFILE.default_trees.get(architecture, PROFILE.default_trees["*"]) == real
