"""From stored bytes to weights: INT4, FP8 in blocks, plain; and whole targets made of each."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.checkpoint import StoredTensor, StoredWeight, as_tensor, decode_weight, open_census
from eagle3ref.target.checkpoint.stored_weight import Kind
from eagle3ref.target.fp8 import dequantize_fp8
from eagle3ref.target.kimi_k25 import KimiK25Target

GOLDEN = load_file(Path(__file__).parent / "golden" / "int4_case.safetensors")
DTYPES = (torch.bfloat16, torch.float32, torch.float64)


def weight(kind: Kind, shape: tuple[int, ...], name: str = "x.up_proj.weight") -> StoredWeight:
    return StoredWeight(name, shape, kind, ())


def by_block(values: Tensor, scale: Tensor) -> Tensor:
    """An oracle that looks up the scale of every element."""
    row, column = (torch.arange(size) // 128 for size in values.shape)
    return (values.float() * scale[row[:, None], column]).bfloat16()


def fp8(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Quantized as K2-Instruct is: the largest of each block becomes 448."""
    rows, columns = ((size + 127) // 128 for size in matrix.shape)
    scale = torch.stack(
        [
            torch.stack([block.abs().max() / 448 for block in band.split(128, dim=1)])
            for band in matrix.float().split(128)
        ]
    )
    assert scale.shape == (rows, columns)
    spread = scale.repeat_interleave(128, 0)[: len(matrix)].repeat_interleave(128, 1)[:, : matrix.shape[1]]
    return (matrix.float() / spread).to(torch.float8_e4m3fn), scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("of_shape", [torch.int32, torch.int64])
def test_int4_is_what_compressed_tensors_makes_of_it(dtype, of_shape):
    """Catches a product that is not rounded to bf16 first, whatever dtype is asked for."""
    parts = [GOLDEN["weight_packed"], GOLDEN["weight_scale"], GOLDEN["weight_shape"].to(of_shape)]
    shape = tuple(GOLDEN["dequant"].shape)
    found = decode_weight(weight("int4", shape), parts, dtype=dtype)
    assert found.dtype == dtype
    assert torch.equal(found, GOLDEN["dequant"].to(dtype))


def test_the_values_of_weight_shape_are_checked():
    """Catches a weight whose rows and columns were exchanged: the headers alone cannot tell."""
    packed, scale, shape = (GOLDEN[f"weight_{part}"] for part in ("packed", "scale", "shape"))
    with pytest.raises(Eagle3RefError, match=r"INT4 weight x\.up_proj\.weight: .*weight_shape"):
        decode_weight(weight("int4", (2, 2)), [packed, scale, shape + 1], dtype=torch.float32)


def test_a_twin_of_the_unpacking_gets_the_same_parts():
    """Catches a caller's choice that is dropped: every measurement of the twin would be one of the reference."""
    seen = []

    def twin(packed: Tensor, scale: Tensor, shape: Tensor, name: str) -> Tensor:
        seen.append((packed, scale, shape, name))
        return torch.full((2, 3), 7, dtype=torch.bfloat16)

    parts = [torch.zeros(1, dtype=torch.int32), torch.ones(1), torch.tensor([2, 3])]
    found = decode_weight(weight("int4", (2, 3)), parts, dtype=torch.float64, dequantize_int4=twin)
    assert seen == [(*parts, "x.up_proj.weight")]
    assert torch.equal(found, torch.full((2, 3), 7.0, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(128, 128), (129, 5), (3, 260), (150, 140), (1, 1)])
def test_fp8_blocks_are_multiplied_by_their_own_scale(shape):
    """Catches a block cut short at the edge, a scale laid over the wrong block, rows and columns exchanged."""
    generator = torch.Generator().manual_seed(0)
    values, _ = fp8(torch.randn(shape, generator=generator))
    scale = torch.rand((shape[0] + 127) // 128, (shape[1] + 127) // 128, generator=generator) + 0.5
    expected = by_block(values, scale)
    assert torch.equal(dequantize_fp8(values, scale), expected)
    for dtype in DTYPES:
        assert torch.equal(decode_weight(weight("fp8_block", shape), [values, scale], dtype=dtype), expected.to(dtype))


def test_fp8_products_are_rounded_once_from_fp32():
    """Catches a product in bf16: the scale has 24 bits, and bf16 would first cut it to 8."""
    values, _ = fp8(torch.randn(128, 128, generator=torch.Generator().manual_seed(1)))
    scale = torch.tensor([[1 / 3]])
    exact = (values.double() * scale.double()).bfloat16()
    in_bf16 = values.bfloat16() * scale.bfloat16()
    found = dequantize_fp8(values, scale)
    assert (found != exact).sum() <= 2  # fp32 may sit on the border between two bf16 numbers
    assert (in_bf16 != exact).sum() > 100


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_weights_are_converted_and_the_router_stays_wide(stored, dtype):
    """Catches a router rounded to bf16, which chooses other experts, and an fp32 copy rounded on the way to fp32."""
    value = torch.tensor([[1.0009765625, -3.140625]]).to(stored)
    assert torch.equal(decode_weight(weight("plain", (1, 2)), [value], dtype=dtype), value.to(dtype))
    for name in ("model.layers.1.mlp.gate.weight", "model.layers.1.mlp.gate.e_score_correction_bias"):
        found = decode_weight(weight("plain", (1, 2), name), [value], dtype=dtype)
        assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert torch.equal(found.double(), value.double())


def test_raw_bytes_become_the_tensor_without_a_copy():
    """Catches a reader's buffer that is copied once more for each of 208,215 tensors."""
    expected = torch.tensor([[1.5, -2.0, 3.0]], dtype=torch.bfloat16)
    data = expected.view(torch.uint8).flatten().clone()
    found = as_tensor(StoredTensor("x", Path("x"), "BF16", (1, 3), 0, 6), data)
    assert torch.equal(found, expected)
    assert found.data_ptr() == data.data_ptr()


def rewritten(folder: Path, change) -> Path:
    """A tiny target whose tensors were changed, in one file."""
    tiny.target_folder(folder)
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
        file.unlink()
    (folder / "model.safetensors.index.json").unlink()
    save_file(change(tensors), folder / "model.safetensors")
    return folder


def as_bf16(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every packed weight dequantized, by compressed-tensors' rule written out."""
    plain = {name: tensor for name, tensor in tensors.items() if ".weight_" not in name}
    for name in tensors:
        if name.endswith("_packed"):
            stem = name.removesuffix("_packed")
            nibbles = torch.stack([(tensors[name] >> (4 * i)) & 15 for i in range(8)], -1).flatten(-2) - 8
            plain[stem] = nibbles.bfloat16() * tensors[f"{stem}_scale"].repeat_interleave(32, 1)
    return plain


def as_fp8(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """K2-Instruct's layout: every projection in FP8 blocks, names without ``language_model.``."""
    found = {}
    for name, tensor in as_bf16(tensors).items():
        name = name.removeprefix("language_model.")
        found[name] = tensor
        if "_proj" in name:
            found[name], found[f"{name}_scale_inv"] = fp8(tensor)
    return found


def fp8_as_bf16(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same dequantized again, by the oracle."""
    quantized = as_fp8(tensors)
    return {
        name: by_block(tensor, quantized[f"{name}_scale_inv"]) if f"{name}_scale_inv" in quantized else tensor
        for name, tensor in quantized.items()
        if not name.endswith("_scale_inv")
    }


@pytest.mark.parametrize(("packed", "plain", "kind"), [(dict, as_bf16, "int4"), (as_fp8, fp8_as_bf16, "fp8_block")])
def test_a_quantized_target_is_the_dequantized_one(packed, plain, kind, tmp_path):
    """Catches a scale that is read but not used, or a format that loads only from one layout of names."""
    one, other = rewritten(tmp_path / "a", packed), rewritten(tmp_path / "b", plain)
    assert {w.kind for e in open_census(one).layers[3].experts for w in e.values()} == {kind}
    assert {w.kind for w in open_census(other).all_weights()} == {"plain"}
    tokens = torch.tensor([[1, 2, 3, 4]])
    outputs = [KimiK25Target.from_folder(each, dtype=torch.float32)(tokens) for each in (one, other)]
    assert torch.equal(outputs[0].final_hidden_state, outputs[1].final_hidden_state)
