"""Every published family of drafts, written here in its own layout, against the oracle on the plain tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from draft_oracle import Oracle, assert_same_network
from torch import Tensor

from eagle3ref.config import DraftFamily
from eagle3ref.draft import load_draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.inspection import inspect_draft

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")

IDS = "eagle_aux_hidden_state_layer_ids"
EAGLE_FLAGS = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
MODELOPT = {**EAGLE_FLAGS, "next_layer_regular": True, "parallel_draft_step": 1, IDS: [1, 2, 3]}
TORCHSPEC_YARN = {**tiny.YARN, "beta_fast": 1.0}


def prefixed(prefix: str) -> Callable[[str], str]:
    return lambda name: prefix + name


def layers(prefix: str) -> Callable[[str], str]:
    return lambda name: name.replace("midlayer.", prefix).replace("layers.0.", prefix)


def old_modelopt(name: str) -> str:
    return {
        "lm_head.weight": "eagle_lm_head.weight",
        "midlayer.input_layernorm.weight": "input_embeds_norm.weight",
        "midlayer.hidden_norm.weight": "hidden_norm.weight",
    }.get(name, name)


def nemo(name: str) -> str:
    return name if name in ("lm_head.weight", "d2t", "t2d") else "model." + layers("layers.0.")(name)


def megatron(name: str) -> str:
    """``hidden_norm`` in every layer, the embedding's norm only in the first."""
    return name.replace("layers.1.input_layernorm", "midlayer.1.hidden_norm").replace("layers.1.", "midlayer.1.")


@dataclass(frozen=True)
class Layout:
    """One writer's files, as changes to ``tiny.draft_parts``."""

    family: DraftFamily
    keys: dict[str, Any] = field(default_factory=dict)  # of draft_parts; ... removes one
    name: Callable[[str], str] = str
    drop: tuple[str, ...] = ()
    extra: dict[str, Tensor] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    container: str = "safetensors"
    config: Callable[[dict[str, Any]], dict[str, Any]] = dict
    oracle: dict[str, Any] = field(default_factory=dict)
    num_layers: int = 1


def nested(layer_type: str | None, outer: tuple[str, ...] = ()) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """speculators' config.json: the layer inside, EAGLE-3's own keys outside."""
    own = ("architectures", "draft_vocab_size", "norm_before_residual", "fc_norm", "norm_before_fc", "norm_output")

    def change(config: dict[str, Any]) -> dict[str, Any]:
        inner = {key: value for key, value in config.items() if key not in (*own, *outer, "eagle_config")}
        if layer_type is not None:
            inner["model_type"] = layer_type
        return {
            **{key: config[key] for key in (*own, *outer) if key in config},
            "speculators_model_type": "eagle3",
            "speculators_version": "0.9.0",
            "auto_map": {"": "config.Eagle3SpeculatorConfig"},
            "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "nobody/nothing"}},
            "transformer_layer_config": inner,
            "target_hidden_size": None,
            IDS: [2, 3, 4],
            "has_no_defaults_at_init": False,
            "embed_requires_grad": False,
        }

    return change


SPECULATORS = ["Eagle3DraftModel"]
QUERY_NORMS = {f"layers.0.self_attn.{part}_norm.weight": torch.linspace(0.5, 1.5, 10) for part in "qk"}
VERIFIER = {"verifier_norm.weight": torch.ones(32), "verifier_lm_head.weight": torch.full((48, 32), torch.nan)}
LAYOUTS = {
    "A official, pickled": Layout(
        "official",
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "eagle_config": ..., "torch_dtype": "float16"},
        container="bin",
    ),
    "B SpecForge": Layout("SpecForge", {"eagle_config": {"use_aux_hidden_state": True, IDS: [1, 2, 3]}}),
    "B SpecForge, renumbered": Layout("SpecForge", {"eagle_config": {IDS: [2, 3, 4]}, "dtype": "bfloat16"}),
    "C modelopt": Layout(
        "modelopt", {"eagle_config": MODELOPT}, layers("layers.0."), drop=("t2d",), container="sharded"
    ),
    "C modelopt, null quantization": Layout(
        "modelopt",
        {"eagle_config": MODELOPT, "quantization_config": {"quant_method": "modelopt", "quant_algo": None}},
        layers("layers.0."),
        drop=("t2d",),
    ),
    "C old modelopt": Layout("modelopt", {"eagle_config": MODELOPT}, old_modelopt, drop=("t2d",)),
    "C modelopt on Megatron": Layout("modelopt", {"eagle_config": MODELOPT}, megatron, drop=("t2d",), num_layers=2),
    "D TorchSpec": Layout(
        "TorchSpec",
        {"draft_vocab_size": tiny.VOCAB, "_torchspec_version": "0.1", "eagle_config": ..., "head_dim": 10},
        dtypes={"embed_tokens.weight": torch.bfloat16},
    ),
    "D TorchSpec for vLLM": Layout(
        "TorchSpec", {"_torchspec_version": "0.1", "eagle_config": {IDS: [1, 2, 3]}}, layers("layers.0.")
    ),
    "E lightseek MLA": Layout(
        "unknown",
        {
            "kind": "mla",
            "model_type": "kimi_k2",
            "rope_theta": 50000.0,
            "rope_scaling": TORCHSPEC_YARN,
            "eagle_config": {**EAGLE_FLAGS, IDS: [2, 3, 4]},
        },
    ),
    "E lightseek MLA 3.1": Layout(
        "unknown",
        {"kind": "mla", "rope_scaling": TORCHSPEC_YARN, "fc_norm": True, "norm_output": True},
        layers("midlayer."),
    ),
    "E nvidia MLA": Layout(
        "modelopt",
        {
            "kind": "mla",
            "architectures": ["Eagle3DeepseekV3ForCausalLM"],
            "rope_scaling": tiny.YARN,
            "num_nextn_predict_layers": 0,
            "first_k_dense_replace": 1,
            "eagle_config": MODELOPT,
        },
        drop=("embed_tokens.weight",),
    ),
    "F speculators, Llama": Layout(
        "speculators",
        {"architectures": SPECULATORS, "norm_before_residual": True},
        layers("layers.0."),
        extra=VERIFIER,
        config=nested("llama"),
    ),
    "F speculators, Qwen3": Layout(
        "speculators",
        {"architectures": ["Eagle3Speculator"], "norm_output": True, "fc_norm": True},
        layers("layers.0."),
        extra=QUERY_NORMS,
        config=nested(None),
    ),
    "F speculators, flattened": Layout(
        "speculators",
        {"architectures": ["Eagle3Speculator"], IDS: [1, 2, 3], "eagle_config": ..., "norm_before_residual": True},
        layers("layers.0."),
    ),
    "G NeMo": Layout(
        "NeMo", {"architectures": ["LlamaEagle3DraftModel"], "eagle_config": ..., "num_hidden_layers": 36}, nemo
    ),
    "G NeMo MLA": Layout(
        "NeMo",
        {"kind": "mla", "architectures": ["LlamaEagle3DraftModel"], "rope_scaling": tiny.YARN, "eagle_config": ...},
        nemo,
        oracle={"plain_softmax_scale": True},
    ),
    "H model.layers.0": Layout("unknown", {}, lambda name: "model." + layers("layers.0.")(name)),
    "H midlayer.0": Layout("unknown", {IDS: [2, 3, 4], "eagle_config": ...}, layers("midlayer.0."), drop=("t2d",)),
    "H draft_model": Layout("unknown", {}, prefixed("draft_model.")),
    "H eagle_module": Layout("unknown", {}, prefixed("eagle_module.")),
    "H vLLM's own names": Layout(
        "vLLM",
        {"architectures": ["Eagle3LlamaForCausalLM"], IDS: [3, 4, 6], "eagle_config": ...},
        layers("layers.0."),
    ),
}


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.target_folder(tmp_path_factory.mktemp("target"))


def write(folder: Path, layout: Layout) -> tuple[Path, dict[str, Any], dict[str, Tensor]]:
    """The folder, and the plain config and tensors that it must load as."""
    config, plain = tiny.draft_parts(num_layers=layout.num_layers, **layout.keys)
    own = {name: value for name, value in layout.extra.items() if not name.startswith("verifier_")}
    stored = {name: value.to(layout.dtypes.get(name, value.dtype)) for name, value in plain.items()}
    plain = stored | own
    renamed = {layout.name(name): value for name, value in stored.items() if name not in layout.drop}
    tiny.write_draft(folder, layout.config(config), renamed | layout.extra, layout.container)
    return folder, {**config, **layout.oracle}, plain


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_family_loads_as_its_network(name, target_folder, tmp_path):
    """Bug: a layout refused, read into another layer, or run with another forward than its writer trained."""
    layout = LAYOUTS[name]
    folder, config, plain = write(tmp_path / "draft", layout)
    if "embed_tokens.weight" in layout.drop:
        plain["embed_tokens.weight"] = tiny.random_target().embedding().bfloat16()
    draft = load_draft(folder, target=target_folder, dtype=torch.float64)
    assert_same_network(draft, Oracle(config, plain, layout.num_layers))
    assert draft.config.family == layout.family
    assert draft.origins["family"].startswith(f"{layout.family}: ")
    whose = "the target's" if "embed_tokens.weight" in layout.drop else "the draft's own"
    assert draft.origins["embedding"].startswith(whose)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_family_is_inspected(name, tmp_path):
    """Bug: a prefix that the loader knows and the inspection does not; then it asks for a target in vain."""
    layout = LAYOUTS[name]
    folder, _, _ = write(tmp_path / "draft", layout)
    found = inspect_draft(folder)
    assert found.problem is None
    assert found.origins["family"].startswith(f"{layout.family}: ")
    assert any("embedding" in need for need in found.unchecked) == ("embed_tokens.weight" in layout.drop)


def test_training_leftovers_are_ignored(tmp_path):
    """Bug: AQ-MedAI's optimizer file opened, or taken for the weights."""
    folder = tiny.draft_folder(tmp_path)
    (folder / "training_state.pt").write_bytes(b"not a checkpoint")
    assert load_draft(folder).capture_points == (2, 3, 4)


@pytest.mark.parametrize(
    ("keys", "warning"),
    [
        ({"norm_output": True}, "norm_output is read as EAGLE-3.1"),
        ({"norm_output": False}, "norm_output = false is read as plain"),
        ({"norm_output": True, "_torchspec_version": "0.1"}, None),
        ({"eagle_config": {"return_hidden_post_norm": True, IDS: [2, 3, 4]}}, None),
        ({}, None),
    ],
)
def test_the_two_meanings_of_norm_output_are_told_apart_or_told_of(keys, warning, tmp_path):
    """Bug: SpecForge's key read as EAGLE-3.1's in silence; a warning where the writer is known or the key absent."""
    draft = load_draft(tiny.draft_folder(tmp_path, **keys))
    assert [message[: len(warning or "")] for message in draft.warnings] == ([warning] if warning else [])
    assert ("final norm" in draft.origins) == (keys not in ({}, {"norm_output": None}))
    assert load_draft(tiny.draft_folder(tmp_path, **keys), final_norm="head").warnings == []


def test_an_unknown_final_norm_is_refused(tmp_path):
    """Bug: a misspelt option that is taken for the default."""
    with pytest.raises(Eagle3RefError, match=r"found 'tail'; expected one of head, head\+state, none"):
        load_draft(tiny.draft_folder(tmp_path), final_norm="tail")
