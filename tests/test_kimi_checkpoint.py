"""Target folders that are damaged, of another kind, or complete with a vision tower."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from eagle3ref.errors import Eagle3RefError
from eagle3ref.inspection import inspect_target
from eagle3ref.target import load_target, loading, shared_weights
from eagle3ref.target.kimi_k25 import KimiK25Target


def broken(folder: Path, change) -> Path:
    """A tiny target with its tensors changed, in one file."""
    tiny.target_folder(folder)
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
        file.unlink()
    (folder / "model.safetensors.index.json").unlink()
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


LAYER = "language_model.model.layers.2."
EXPERT = f"{LAYER}mlp.experts.1.up_proj.weight"
DAMAGE = {
    "no lm_head": (lambda t: t.pop("language_model.lm_head.weight"), "no tensor language_model.lm_head.weight"),
    "no scale": (lambda t: t.pop(f"{EXPERT}_scale"), f"no tensor {EXPERT}_scale"),
    "FP8 leftovers": (lambda t: t.update({f"{LAYER}mlp.gate.weight_scale_inv": torch.ones(1)}), "weight_scale_inv"),
    "one layer too many": (lambda t: t.update({"language_model.model.layers.7.x": torch.ones(1)}), "layers.7.x"),
    "norm of another width": (
        lambda t: t.update({f"{LAYER}input_layernorm.weight": torch.ones(9)}),
        rf"{LAYER}input_layernorm.weight is F32 \[9\], not F32 \[{tiny.WIDTH}\]",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_checkpoint_that_does_not_fit_is_refused_before_any_weight_is_read(damage, tmp_path, monkeypatch):
    """Bug: a tensor that is missing, unknown or of another shape is found after an hour of loading, or never."""

    def refuse(_: object) -> None:
        raise AssertionError("a weight was read")

    change, found = DAMAGE[damage]
    folder = broken(tmp_path / "t", change)
    monkeypatch.setattr(loading, "read_tensor", refuse)
    with pytest.raises(Eagle3RefError, match=found):
        KimiK25Target.from_folder(folder, dtype=torch.float32)
    with pytest.raises(AssertionError, match="a weight was read"):  # so the one above would have noticed
        KimiK25Target.from_folder(tiny.target_folder(tmp_path / "sound"), dtype=torch.float32)


def test_vision_tensors_and_unpacked_experts_are_read_past(tmp_path):
    """Bug: the full K2.5 checkpoint is refused for its vision tower; a dequantized copy needs weight_packed."""
    plain = KimiK25Target.from_folder(tiny.target_folder(tmp_path / "a"), dtype=torch.float32)

    def change(tensors):
        tensors["vision_tower.encoder.x"] = torch.ones(1)
        tensors["mm_projector.proj.0.weight"] = torch.ones(1)
        for part in ("packed", "scale", "shape"):
            del tensors[f"{EXPERT}_{part}"]
        tensors[EXPERT] = plain.model.layers[2].mlp.experts[1].up_proj.weight.bfloat16()

    other = KimiK25Target.from_folder(broken(tmp_path / "b", change), dtype=torch.float32)
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(plain(tokens).final_hidden_state, other(tokens).final_hidden_state)


def test_newer_names_are_found_by_whoever_looks_for_them(tmp_path):
    """Bug: a layout that loads, but whose embedding no draft can share, and whose vision layers count as text."""

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            newer = name.replace("language_model.model.", "model.language_model.").replace("language_model.lm", "lm")
            tensors[newer] = tensors.pop(name)
        tensors["model.vision_tower.encoder.layers.30.weight"] = torch.ones(1)

    target = KimiK25Target.from_folder(tiny.target_folder(tmp_path / "old"), dtype=torch.bfloat16)
    folder = broken(tmp_path / "new", rename)
    shared = shared_weights(folder)
    assert torch.equal(shared.embedding(), target.embedding())
    assert torch.equal(shared.lm_head(), target.lm_head())
    found = inspect_target(folder)
    assert found.oddities == ()
    assert found.facts["census"].endswith("1 passed over (vision, rotary buffers)")


def test_another_kimi_is_not_streamed(tmp_path):
    """Bug: "not Kimi-K2" said of a Kimi, with no way out: Kimi-K3 has other layers, but engines dump its states."""
    folder = tiny.target_folder(tmp_path / "k3")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "kimi_k3"}))
    expected = "of type kimi_k3; expected a model of type kimi_k25 or kimi_k2.*eagle3ref import"
    with pytest.raises(Eagle3RefError, match=expected):
        load_target(folder, weights="stream")
