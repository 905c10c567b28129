"""Exports explained: no trap on the reader that they were made for, and what each reader makes of the layout."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from exports import FORMATS, ROPES
from test_explain_traps import CHAIN, SGLANG, SGLANG_FLAGS, VLLM, VLLM_FLAGS

from eagle3ref import Eagle3RefError, explain, load_draft
from eagle3ref.draft import Eagle3Draft, export_draft
from eagle3ref.target import shared_weights

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")

READERS = {
    "sglang": (SGLANG, [*SGLANG_FLAGS, *CHAIN]),
    "vllm": (VLLM, VLLM_FLAGS),
    "speculators": (VLLM, VLLM_FLAGS),
}
NETWORKS: dict[str, dict[str, Any]] = {
    "gqa": {},
    "three layers": {"num_layers": 3},
    "norms": {"fc_norm": True, "norm_before_fc": True, "norm_output": True},
    "normed residual": {"norm_before_residual": True, "architectures": ["Eagle3LlamaForCausalLM"]},
    "qwen3": {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"},
    "a window": {
        "architectures": ["Eagle3LlamaForCausalLM"],
        "layer_types": ["sliding_attention"],
        "sliding_window": 8,
    },
    "mla": {"kind": "mla"},
    "mla with norms": {"kind": "mla", "fc_norm": True},
    **{f"{name} rope": keys for name, keys in ROPES.items() if name in ("yarn", "llama3", "partial")},
}


def draft_of(folder: Path, target: Path, **keys: Any) -> Eagle3Draft:
    config, tensors = tiny.draft_parts(**{"max_position_embeddings": 262144, **keys})
    if config.get("model_type") == "qwen3":
        tensors |= {f"midlayer.self_attn.{name}_norm.weight": torch.rand(config["head_dim"]) for name in "qk"}
    draft = load_draft(tiny.write_draft(folder, config, tensors), target=target, capture_points=(2, 3, 4))
    draft.embed_tokens.weight.data.copy_(shared_weights(target).embedding())
    return draft


@pytest.mark.parametrize("name", NETWORKS)
def test_no_export_is_wrong_on_its_own_reader(name: str, tmp_path: Path) -> None:
    """Catches a trap that is none: a class that vLLM puts in itself, a norm_output that the export has settled."""
    target = tiny.target_folder(tmp_path / "target")
    draft = draft_of(tmp_path / "draft", target, **NETWORKS[name])
    wrong = {}
    for form in FORMATS:
        with contextlib.suppress(Eagle3RefError):  # a network that this format cannot hold
            copy = export_draft(draft, tmp_path / form, format=form, target=target)
            found = explain(copy, target, *READERS[form]).traps
            wrong[form] = [(trap.name, trap.what) for trap in found if trap.is_wrong]
    assert wrong
    assert not any(wrong.values()), wrong


@pytest.mark.parametrize("form", FORMATS)
def test_full_attention_is_no_window_on_sglang(form: str, tmp_path: Path) -> None:
    """Catches "sliding_window is set in config.json" of a file without that key, and a real window that goes unsaid."""
    target = tiny.target_folder(tmp_path / "target")
    for name, expected in (("gqa", []), ("a window", ["sliding_window"])):
        if (form, name) != ("sglang", "a window"):  # SGLang's format has none
            draft = draft_of(tmp_path / name, target, **NETWORKS[name])
            copy = export_draft(draft, tmp_path / f"{name} copy", format=form, target=target)
            assert list(explain(copy, target, SGLANG, READERS["sglang"][1]).wiring.ignored_keys) == expected


@pytest.mark.parametrize("architecture", ["Eagle3DraftModel", "Eagle3Speculator"])
@pytest.mark.parametrize(
    ("engine", "change", "refused"),
    [
        (VLLM, {}, False),
        (VLLM, {"speculators_config": None}, True),
        ("vllm==0.10.0", {}, True),
        (SGLANG, {}, True),
    ],
)
def test_vllm_puts_its_own_class_into_the_speculators_layout(
    engine: str, change: dict[str, Any], refused: bool, architecture: str, tmp_path: Path
) -> None:
    """Catches a draft refused for the trainer's class name, which vLLM replaces; and one let through elsewhere."""
    target = tiny.target_folder(tmp_path / "target")
    copy = export_draft(draft_of(tmp_path / "draft", target), tmp_path / "copy", format="speculators", target=target)
    config = json.loads((copy / "config.json").read_text()) | {"architectures": [architecture], **change}
    (copy / "config.json").write_text(json.dumps(config))
    names = {trap.name for trap in explain(copy, target, engine).traps}
    assert ("unsupported-architecture" in names) == refused
