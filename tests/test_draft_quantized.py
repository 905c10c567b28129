"""Drafts with 8-bit weights, quantized here element by element; packed formats refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from eagle3ref.draft import Eagle3Draft, load_draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.inspection import inspect_draft

FC = "fc.weight"
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}


def scales_of(weight: Tensor, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
    """The scale of each block of rows x columns, one at a time."""
    high, wide = math.ceil(weight.shape[0] / rows), math.ceil(weight.shape[1] / columns)
    scale = torch.empty(high, wide)
    for i in range(high):
        for j in range(wide):
            block = weight[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            scale[i, j] = block.abs().max() / LARGEST[dtype]
    return scale


def quantized(weight: Tensor, dtype: torch.dtype, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """(8-bit weight, scales, what they stand for), element by element."""
    scale = scales_of(weight, dtype, rows, columns)
    stored = torch.empty(weight.shape, dtype=dtype)
    meant = torch.empty(weight.shape)
    for i in range(weight.shape[0]):
        for j in range(weight.shape[1]):
            factor = scale[i // rows, j // columns]
            value = weight[i, j] / factor
            stored[i, j] = (value.round() if dtype == torch.int8 else value).to(dtype)
            meant[i, j] = stored[i, j].float() * factor
    return stored, scale, meant


SCHEMES: dict[str, tuple[torch.dtype, tuple[int, int], str, Any]] = {
    "fp8, a channel": (torch.float8_e4m3fn, (1, 96), "weight_scale", lambda scale: scale),
    "fp8, a flat channel": (torch.float8_e4m3fn, (1, 96), "weight_scale", lambda scale: scale[:, 0].clone()),
    "fp8, a tensor": (torch.float8_e4m3fn, (32, 96), "weight_scale", lambda scale: scale.reshape(())),
    "fp8, a tensor, [1]": (torch.float8_e4m3fn, (32, 96), "weight_scale", lambda scale: scale.reshape(1)),
    "fp8, blocks": (torch.float8_e4m3fn, (12, 40), "weight_scale_inv", lambda scale: scale),
    "AMD's fp8": (torch.float8_e4m3fnuz, (1, 96), "weight_scale", lambda scale: scale),
    "e5m2": (torch.float8_e5m2, (1, 96), "weight_scale", lambda scale: scale),
    "int8, a channel": (torch.int8, (1, 96), "weight_scale", lambda scale: scale),
}


@pytest.mark.parametrize("container", ["safetensors", "bin"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_are_scaled_back(scheme, container, tmp_path):
    """Bug: scales of rows on columns, blocks of another size, a division, fp8 of another kind, bf16 tensors touched."""
    dtype, block, suffix, shaped = SCHEMES[scheme]
    config, tensors = tiny.draft_parts(quantization_config={"weight_block_size": list(block)})
    tensors = {name: value.bfloat16() if value.is_floating_point() else value for name, value in tensors.items()}
    stored, scale, meant = quantized(tensors[FC].float(), dtype, *block)
    written = {**tensors, FC: stored, f"fc.{suffix}": shaped(scale), "fc.input_scale": torch.ones(1)}
    folder = tiny.write_draft(tmp_path, config, written, container)
    wide = load_draft(folder, dtype=torch.float32)
    assert torch.equal(wide.fc.weight, meant)
    assert torch.equal(wide.embed_tokens.weight.bfloat16(), tensors["embed_tokens.weight"])
    assert wide.origins["weights"].startswith(f"1 of {len(tensors)} tensors were {str(dtype)[6:]} and are scaled back")
    assert "activations stay unquantized" in wide.origins["weights"]
    assert {value.dtype for value in load_draft(folder).parameters()} == {torch.bfloat16}  # the norm's
    assert inspect_draft(folder).problem is None


def test_blocks_are_128_wide_unless_the_file_says_otherwise(tmp_path):
    """Bug: a block size taken from the shapes: 2 x 1 scales for 160 rows are blocks of 128, not of 80."""
    config, tensors = tiny.draft_parts(hidden_size=160, head_dim=10, num_attention_heads=4)
    stored, scale, meant = quantized(tensors["midlayer.mlp.down_proj.weight"], torch.float8_e4m3fn, 128, 128)
    assert scale.shape == (2, 1)
    tensors |= {"midlayer.mlp.down_proj.weight": stored, "midlayer.mlp.down_proj.weight_scale_inv": scale}
    draft = load_draft(tiny.write_draft(tmp_path, config, tensors))
    assert torch.equal(draft.layers[0].mlp.down_proj.weight, meant)


def test_a_config_that_quantizes_nothing_changes_nothing(tmp_path):
    """Bug: nvidia's quant_algo of null, or a quantization_config left behind, taken for quantized weights."""
    for settings in ({"quant_method": "modelopt", "quant_algo": None}, {"quant_method": "fp8"}):
        config, tensors = tiny.draft_parts(quantization_config=settings)
        draft = load_draft(tiny.write_draft(tmp_path, config, tensors))
        assert torch.equal(draft.fc.weight, tensors[FC])
        assert "weights" not in draft.origins


def with_fc(**tensors: Tensor) -> dict[str, Tensor]:
    """fc in fp8 with these tensors around it."""
    plain = tiny.draft_parts()[1]
    fp8 = {FC: plain[FC].to(torch.float8_e4m3fn)}
    return plain | fp8 | {f"fc.{name}": value for name, value in tensors.items()}


def bytes_(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.uint8)


REFUSED: dict[str, tuple[dict[str, Tensor], str]] = {
    "compressed-tensors": (with_fc(weight_packed=torch.ones(32, 12, dtype=torch.int32)), "compressed-tensors 4-bit"),
    "NVFP4": (with_fc(weight_scale_2=torch.ones(()), weight=bytes_(32, 48)), "fc.weight.*: weights packed|NVFP4"),
    "AWQ": (with_fc(qweight=torch.ones(96, 4, dtype=torch.int32)), "fc.qweight: AWQ or GPTQ"),
    "bitsandbytes": (
        with_fc(**{"weight.quant_state.bitsandbytes__nf4": bytes_(9)}),
        "fc.weight.quant_state.bitsandbytes__nf4: bitsandbytes",
    ),
    "MXFP4": (with_fc(weight=bytes_(32, 48)), "fc.weight: weights packed into bytes"),
    "zero points": (with_fc(weight_zero_point=torch.ones(32, 1)), "zero points"),
    "no scale": (with_fc(), "fc.weight of dtype torch.float8_e4m3fn with 0 scales"),
    "two scales": (with_fc(weight_scale=torch.ones(1), weight_scale_inv=torch.ones(1)), "with 2 scales"),
    "zero": (with_fc(weight_scale=torch.zeros(1)), "no scales; expected finite scales above 0"),
    "negative": (with_fc(weight_scale=-torch.ones(32)), "no scales"),
    "NaN": (with_fc(weight_scale=torch.full((32,), torch.nan)), "no scales"),
    "infinite": (with_fc(weight_scale=torch.full((32,), torch.inf)), "no scales"),
    "scale of another layer": (with_fc(weight_scale=torch.ones(48)), r"shape \(48,\) for a weight of shape \(32, 96\)"),
    "scale of columns": (with_fc(weight_scale=torch.ones(1, 96)), r"\(1, 96\).*expected 1, 32 or 32 x 1 scales"),
    "blocks of another size": (with_fc(weight_scale_inv=torch.ones(2, 2)), r"blocks of 128 x 128"),
    "power-of-two scales": (with_fc(weight_scale=bytes_(32)), "weight_scale of dtype torch.uint8"),
    "NaN in fp8": (with_fc(weight_scale=torch.ones(1)) | {FC: torch.full((32, 96), 255, dtype=torch.uint8).view(
        torch.float8_e4m3fn)}, "fc.weight with non-finite"),
    "fp8 norm": (tiny.draft_parts()[1] | {"norm.weight": torch.ones(32).to(torch.float8_e4m3fn),
        "norm.weight_scale": torch.ones(2, 1)}, r"norm\.weight_scale of shape \(2, 1\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_weights_that_cannot_be_scaled_back_are_refused(case, tmp_path):
    """Bug: packed nibbles read as bytes, a missing scale taken for 1, a scale spread over the wrong axis."""
    tensors, found = REFUSED[case]
    with pytest.raises(Eagle3RefError, match=found):
        load_draft(tiny.write_draft(tmp_path, tiny.draft_parts()[0], tensors))


@pytest.mark.parametrize("size", [[0, 128], [128], ["a", 1], 128, [2**40, 2**40]])
def test_a_hostile_block_size_is_refused_or_harmless(size, tmp_path):
    """Bug: a division by zero, or an allocation as large as config.json asks for."""
    config, _ = tiny.draft_parts(quantization_config={"weight_block_size": size})
    folder = tiny.write_draft(tmp_path, config, with_fc(weight_scale_inv=torch.ones(1, 2)))
    with pytest.raises(Eagle3RefError, match=r"weight_block_size|shape \(1, 2\)"):
        load_draft(folder)


def test_blocks_larger_than_the_weight_cost_no_more_than_it(tmp_path):
    """Bug: scales repeated as often as config.json says before they are cut to the weight."""
    config, _ = tiny.draft_parts(quantization_config={"weight_block_size": [2**40, 48]})
    draft = load_draft(tiny.write_draft(tmp_path, config, with_fc(weight_scale_inv=torch.tensor([[1.0, 2.0]]))))
    plain = with_fc()[FC].float()
    assert torch.equal(draft.fc.weight, torch.cat((plain[:, :48], 2 * plain[:, 48:]), 1))


def test_a_whole_quantized_mla_draft_loads(tmp_path):
    """Bug: k-l-lambda's layout: eight fp8 projections by channel, kv_b_proj and the norms left in bf16."""
    config, tensors = tiny.draft_parts("mla", rope_scaling=tiny.YARN)
    tensors = {name: value.bfloat16() for name, value in tensors.items()}
    names = ("fc", *(f"layers.0.{part}_proj" for part in ("mlp.gate", "mlp.up", "mlp.down", "self_attn.o")))
    names += tuple(f"layers.0.self_attn.{part}" for part in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa"))
    meant = {}
    for name in names:
        weight = tensors[f"{name}.weight"]
        stored, scale, meant[name] = quantized(weight.float(), torch.float8_e4m3fn, 1, weight.shape[1])
        tensors |= {f"{name}.weight": stored, f"{name}.weight_scale": scale.bfloat16()}
        meant[name] = meant[name] / scale * scale.bfloat16().float()  # scales are stored in bf16
    draft = load_draft(tiny.write_draft(tmp_path, config, tensors), dtype=torch.float32)
    for name in names:
        torch.testing.assert_close(draft.get_submodule(name).weight.data, meant[name], rtol=1e-6, atol=0)
    assert draft.origins["weights"].startswith("8 of 17 tensors were float8_e4m3fn")


def loaded_logits(draft: Eagle3Draft) -> Tensor:
    return draft.logits(draft.fuse(torch.ones(96, dtype=draft.fc.weight.dtype)))


def test_eight_bits_cost_little(tmp_path: Path) -> None:
    """Bug: a scale that is off by a constant factor, which an exact test of one spelling may share."""
    config, tensors = tiny.draft_parts()
    plain = loaded_logits(load_draft(tiny.write_draft(tmp_path / "plain", config, tensors)))
    stored, scale, _ = quantized(tensors[FC], torch.float8_e4m3fn, 1, 96)
    folder = tiny.write_draft(tmp_path / "fp8", config, tensors | {FC: stored, "fc.weight_scale": scale})
    rough = loaded_logits(load_draft(folder))
    assert 1e-4 < float((rough - plain).norm() / plain.norm()) < 0.05
