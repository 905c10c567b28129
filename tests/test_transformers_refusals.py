"""Models and folders that cannot serve as a target are refused with the reason, instead of lowering the acceptance."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_transformers import CONFIGS, LLAMA3, SIZES, VOCAB, WIDTH, random_model

import eagle3ref as e3
from eagle3ref.target.transformers import TransformersTarget

SMALL_MOE = {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
UNFIT: dict[str, tuple[str, dict[str, Any], str]] = {
    "sliding window": ("mistral", {**SIZES, "sliding_window": 64}, "DynamicSlidingWindowLayer of 64 tokens in layer 0"),
    "linear attention": ("qwen3_next", {**SIZES, **SMALL_MOE}, "LinearAttentionLayer in layer 0"),
    "state space": ("mamba", {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 2}, "LinearAttention"),
    "alibi": ("bloom", {"vocab_size": VOCAB, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4}, "without position_ids"),
    "alibi, hidden": ("falcon", {**SIZES, "alibi": True}, "its own ValueError on three tokens"),
    "encoder": ("bert", {**SIZES, "is_decoder": True, "pad_token_id": 0}, "0 stacks of 7 layers"),
    "rope by length": ("llama", {**SIZES, "rope_parameters": {**LLAMA3, "rope_type": "dynamic"}}, "'dynamic'"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_unfit_architectures_are_refused(case: str) -> None:
    """Would catch a model that runs, ignores what makes a tree a tree, and only shows a lower acceptance."""
    model_type, config, found = UNFIT[case]
    with pytest.raises(e3.Eagle3RefError, match=found):
        TransformersTarget(random_model(model_type, config))


def double_logits(_module: Any, _args: Any, output: Any) -> None:
    output.logits = 2 * output.logits


def drop_mask(_module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return args, {**kwargs, "attention_mask": None}


def drop_positions(_module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return args, {**kwargs, "position_ids": None}


def widen_stream(model: Any) -> None:
    """Between the last layer and the final norm the stream has one more axis, as in models with several streams."""
    model.model.layers[-1].register_forward_hook(lambda _module, _args, output: output.unsqueeze(2))
    model.model.norm.register_forward_pre_hook(lambda _module, args: args[0].squeeze(2))


@pytest.mark.parametrize(
    ("disturb", "found"),
    [
        (widen_stream, "layers that pass on"),
        (lambda model: model.register_forward_hook(double_logits), "its logits off by"),
        (lambda model: model.model.register_forward_pre_hook(drop_mask, with_kwargs=True), "two siblings off by"),
        (lambda model: model.model.register_forward_pre_hook(drop_positions, with_kwargs=True), "two siblings off by"),
        (lambda model: model.set_attn_implementation("flex_attention"), "attention 'flex_attention'"),
    ],
    ids=["streams", "logits", "mask", "positions", "attention"],
)
def test_misbehaving_models_are_refused(disturb: Callable[[Any], object], found: str) -> None:
    """Would catch code of a model that does something unknown to logits, or overrides the mask or positions given."""
    model = random_model(*CONFIGS["llama"])
    disturb(model)
    with pytest.raises(e3.Eagle3RefError, match=found):
        TransformersTarget(model)


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.3.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def add_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.3.mlp.up_proj.weight_scale_inv"] = torch.ones(1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])


def change_config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (drop_tensor, "missing model.layers.3.mlp.up_proj.weight"),
        (add_tensor, "unexpected model.layers.3.mlp.up_proj.weight_scale_inv"),
        (truncate, "SafetensorError"),
        (lambda folder: (folder / "model.safetensors").unlink(), "OSError"),
        (lambda folder: (folder / "config.json").unlink(), "No such file"),
        (change_config(intermediate_size=56), "RuntimeError"),
        (change_config(model_type="unheard_of", auto_map={"AutoConfig": "code.Config"}), "ValueError"),
    ],
    ids=["missing", "unexpected", "truncated", "no weights", "no config", "shapes", "remote code"],
)
def test_damaged_folders_are_refused(tmp_path: Path, damage: Callable[[Path], object], found: str) -> None:
    """Would catch weights left random with no more than a line in a log, and errors that do not say what to do."""
    random_model(*CONFIGS["llama"]).save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(e3.Eagle3RefError, match=found):
        e3.load_target(tmp_path)


def test_loading_keeps_dtype_and_folder(tmp_path: Path) -> None:
    """Would catch a dtype that the library overrides, and a trace that does not say which checkpoint it came from."""
    random_model(*CONFIGS["llama"]).save_pretrained(tmp_path)
    target = e3.load_target(tmp_path, dtype=torch.float64)
    assert target.embedding().dtype == target.lm_head().dtype == torch.float64
    assert not target.embedding().requires_grad
    assert target.config == e3.TargetConfig.from_folder(tmp_path)
    assert target.config.eos_token_ids == (VOCAB - 1,)
