"""INT4 unpacking against vectors that compressed-tensors 0.20.0 wrote; a self-made round trip would prove nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.int4 import dequantize_int4, pack_int4, quantize_int4, unpack_int4

CASE = load_file(Path(__file__).parent / "golden" / "int4_case.safetensors")


def nibbles(packed: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """int64 [out, in], the nibbles of every word in the given order, by shifts (not by bytes, as the package does)."""
    words = packed.to(torch.int64).unsqueeze(-1)
    return (words >> torch.tensor([4 * i for i in order]) & 15).flatten(-2)


def test_unpacking_is_bit_exact():
    """Bug: another nibble order, another offset, bytes of a word swapped."""
    assert torch.equal(unpack_int4(CASE["weight_packed"]), CASE["int4"])
    assert torch.equal(unpack_int4(CASE["example_packed"]), CASE["example_int4"])
    assert CASE["example_packed"].tolist() == [[0x76543210, 0xFEDCBA98 - 2**32]]
    assert unpack_int4(CASE["example_packed"]).tolist() == [list(range(-8, 8))]


def test_wrong_readings_do_not_pass():
    """Bug: vectors that a two's-complement or high-nibble-first reading would also satisfy."""
    low_first = nibbles(CASE["weight_packed"])
    assert torch.equal(low_first - 8, CASE["int4"].long())
    twos_complement = (low_first ^ 8) - 8
    high_first = nibbles(CASE["weight_packed"], tuple(reversed(range(8)))) - 8
    bytes_swapped = nibbles(CASE["weight_packed"], (1, 0, 3, 2, 5, 4, 7, 6)) - 8
    for wrong in (twos_complement, high_first, bytes_swapped):
        assert (wrong != CASE["int4"]).float().mean() > 0.5


@pytest.mark.parametrize("shape_dtype", [torch.int32, torch.int64])
def test_dequantizing_is_bit_exact(shape_dtype):
    """Bug: scales of the wrong group, the product left in fp32 (23 % of them differ), int64 shapes refused."""
    shape = CASE["weight_shape"].to(shape_dtype)
    weight = dequantize_int4(CASE["weight_packed"], CASE["weight_scale"], shape, "w")
    assert weight.dtype == torch.bfloat16
    assert torch.equal(weight, CASE["dequant"])
    unrounded = CASE["int4"].float() * CASE["weight_scale"].float().repeat_interleave(32, -1)
    assert (unrounded != weight.float()).float().mean() > 0.1
    torch.testing.assert_close(CASE["x"] @ weight.float().T, CASE["y_fp32"], rtol=1e-5, atol=1e-5)


def test_packing_writes_what_compressed_tensors_writes():
    """Bug: a writer and a reader that agree with each other only."""
    assert torch.equal(pack_int4(CASE["int4"]), CASE["weight_packed"])


def test_quantizing_is_within_half_a_step():
    """Bug: a group's scale from its neighbour, clamping of the largest value, a zero group dividing by zero."""
    weight = torch.randn(6, 96)
    weight[2, 32:64] = 0
    values, scale = quantize_int4(weight)
    shape = torch.tensor(weight.shape)
    restored = dequantize_int4(pack_int4(values), scale, shape, "w").float()
    step = scale.float().repeat_interleave(32, -1)
    assert values.abs().max() == 7
    # Half a step, and the roundings of the scale (to which 7 steps are clamped) and of the product to bf16.
    assert ((restored - weight).abs() <= step * (0.5 + 7 * 2**-8)).all()
    assert not restored[2, 32:64].any()


@pytest.mark.parametrize(
    "change",
    [
        {"packed": CASE["weight_packed"][:, :-1]},
        {"packed": CASE["weight_packed"].long()},
        {"scale": CASE["weight_scale"][:, :2]},
        {"scale": torch.ones(8, 96 // 128 + 1, dtype=torch.bfloat16)},
        {"shape": torch.tensor([96, 8])},
        {"shape": torch.tensor([8, 97])},
        {"shape": torch.tensor([8])},
        {"shape": torch.tensor([8, 96, 1])},
    ],
)
def test_parts_that_do_not_fit_are_refused(change):
    """Bug: another group size (128) or a wrong shape read as something plausible, or a bare ValueError."""
    parts = {"packed": CASE["weight_packed"], "scale": CASE["weight_scale"], "shape": CASE["weight_shape"], **change}
    with pytest.raises(Eagle3RefError, match="unpacking the INT4 weight w:"):
        dequantize_int4(**parts, name="w")
