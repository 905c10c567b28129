"""Target folders that are damaged, of another kind, or complete with a vision tower."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from eagle3ref.config import KimiK25Config, MLAConfig, MoEConfig, RopeConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.kimi_k25 import KimiK25Target, KimiLayer


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
        rf"{LAYER}input_layernorm.weight of shape \(9,\); expected \({tiny.WIDTH},\)",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_checkpoint_that_does_not_fit_is_refused(damage, tmp_path):
    """Bug: a tensor that is missing, unknown or of another shape goes unnoticed and leaves random weights."""
    change, found = DAMAGE[damage]
    with pytest.raises(Eagle3RefError, match=found):
        KimiK25Target.from_folder(broken(tmp_path / "t", change), dtype=torch.float32)


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


def test_names_of_the_real_checkpoint():
    """Catches a census that differs from Moonshot's files: 208,215 text tensors, shapes as published."""
    rope = RopeConfig(64, 50000.0, "yarn", 64.0, 4096, mscale_all_dim=1.0)
    attention = MLAConfig(64, 1536, 512, 128, 64, 128, rope)
    moe = MoEConfig(384, 8, 1, 2048, 2.827, normalize_weights=True)
    config = KimiK25Config(61, 7168, 163840, 18432, 1, 1e-5, attention, moe)
    with torch.device("meta"):
        dense, sparse = (
            {name: tuple(p.shape) for name, p in KimiLayer(config, i, 1e-5).named_parameters()} for i in (0, 1)
        )
    routed = [name for name in sparse if ".experts." in name]
    packed = len(sparse) + 2 * len(routed)  # each routed weight is three tensors: packed, scale, shape
    assert len(dense) + 60 * packed + 3 == 208_215  # and embedding, final norm, lm_head
    assert sparse["mlp.experts.383.down_proj.weight"] == (7168, 2048)
    assert sparse["self_attn.kv_b_proj.weight"] == (16384, 512)
    assert sparse["mlp.gate.e_score_correction_bias"] == (384,)
    assert dense["mlp.down_proj.weight"] == (7168, 18432)
