"""The INT4 kernels against the weights that ``target/int4.py`` unpacks, bit for bit where a product is one weight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sm90
import torch
from safetensors.torch import load_file
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels import eager, int4, launch
from eagle3ref.kernels.int4 import int4_configs, int4_grouped_matmul, int4_matmul
from eagle3ref.kernels.split_k import TileConfig
from eagle3ref.target.int4 import pack_int4, scale_int4

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CASE = load_file(Path(__file__).parent / "golden" / "int4_case.safetensors")
SMALL_TILES = TileConfig(16, 16, 128, 1, 4, 2)


def weight(*shape: int, scale_dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
    """Random packed weight and scales, some of them negative, and the int8 values they were packed from."""
    values = torch.randint(-8, 8, shape, dtype=torch.int8)
    packed = pack_int4(values.flatten(0, -2)).reshape(*shape[:-1], -1)
    scale = (torch.randn(*shape[:-1], shape[-1] // 32) / 8).to(scale_dtype)
    return packed.to(DEVICE), scale.to(DEVICE), values.to(DEVICE)


def assert_as_good_as_eager(product: Tensor, plain: Tensor, exact: Tensor) -> None:
    """At most twice the error of the plain version, at worst and on average."""
    assert product.dtype == plain.dtype
    error, allowed = product.double() - exact, 2 * (plain.double() - exact)
    floor = torch.finfo(product.dtype).eps * exact.abs().max() / 4  # where the plain version happens to be exact
    assert error.abs().max() <= allowed.abs().max() + floor
    assert error.square().mean().sqrt() <= allowed.square().mean().sqrt() + floor


@pytest.mark.parametrize(
    ("dtype", "scale_dtype"),
    [
        (torch.float32, torch.bfloat16),
        (torch.float16, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float16),
    ],
)
def test_every_weight_has_the_bits_of_the_reference(dtype, scale_dtype):
    """Bug: another order of nibbles, the scale of a neighboring group, a product left unrounded; one row of x picks one
    input, so that the result is the weight."""
    packed, scale, values = weight(16, 160, scale_dtype=scale_dtype)
    expected = scale_int4(values, scale).to(dtype)
    one_hot = torch.eye(160, dtype=dtype, device=DEVICE)
    product = int4_matmul(one_hot, packed, scale, config=replace(SMALL_TILES, block_m=64))
    assert torch.equal(product.T, expected)
    if dtype != scale_dtype:
        unrounded = values.float() * scale.float().repeat_interleave(32, -1)
        assert not torch.equal(unrounded.to(dtype), expected)


def test_recorded_case():
    """Bug: kernel and reference that agree with each other and not with what compressed-tensors wrote."""
    packed, scale, x = (CASE[name].to(DEVICE) for name in ("weight_packed", "weight_scale", "x"))
    torch.testing.assert_close(int4_matmul(x.float(), packed, scale).cpu(), CASE["y_fp32"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 40, 64), (3, 130, 160), (17, 33, 96)])
def test_kernel_is_as_good_as_eager(dtype, shape):
    """Bug: a tail of rows, columns or groups left out; sums in less than fp32."""
    num_rows, num_columns, num_inputs = shape
    packed, scale, values = weight(num_columns, num_inputs)
    x = torch.randn(num_rows, num_inputs).to(DEVICE, dtype)
    exact = x.double() @ scale_int4(values, scale).double().T
    assert_as_good_as_eager(int4_matmul(x, packed, scale), eager.int4_matmul(x, packed, scale), exact)


def test_configurations_splits_and_strides_change_no_more_than_the_order_of_sums():
    """Bug: a configuration offered for timing that computes something else; other bits in a second run; rows of x that
    are read as if they were contiguous."""
    packed, scale, values = weight(24, 288)
    wide = torch.randn(5, 2 * 288).to(DEVICE)
    x = wide[:, 288:]
    exact = x.double() @ scale_int4(values, scale).double().T
    for config in (SMALL_TILES, replace(SMALL_TILES, num_splits=5), *int4_configs(5, 24, 288)):
        product = int4_matmul(x, packed, scale, config=config)
        assert_as_good_as_eager(product, eager.int4_matmul(x, packed, scale), exact)
    split = [int4_matmul(rows, packed, scale, config=replace(SMALL_TILES, num_splits=3)) for rows in (x, x.clone())]
    assert torch.equal(*split)
    assert torch.equal(int4_matmul(x.T.contiguous().T, packed, scale), int4_matmul(x, packed, scale))


@pytest.mark.parametrize(
    ("rows_of_experts", "num_splits", "offsets_dtype"),
    [([0, 3, 0, 20, 1], 1, torch.int32), ([16, 16], 1, torch.int64), ([0, 17], 2, torch.int64), ([5], 1, torch.int32)],
)
def test_experts_in_one_launch_are_experts_one_by_one(rows_of_experts, num_splits, offsets_dtype):
    """Bug: a row given to the next expert, an expert without rows taking another's tile, rows past a full tile lost."""
    offsets = torch.tensor([0, *rows_of_experts], device=DEVICE).cumsum(0).to(offsets_dtype)
    packed, scale, values = weight(len(rows_of_experts), 14, 160)
    x = torch.randn(sum(rows_of_experts), 160).to(DEVICE)
    config = replace(SMALL_TILES, num_splits=num_splits)
    product = int4_grouped_matmul(x, offsets, packed, scale, config=config)
    weights = torch.stack([scale_int4(*expert) for expert in zip(values, scale, strict=True)]).double()
    owners = torch.arange(len(weights)).repeat_interleave(torch.tensor(rows_of_experts)).to(DEVICE)
    exact = torch.einsum("mi,moi->mo", x.double(), weights[owners])
    assert_as_good_as_eager(product, eager.int4_grouped_matmul(x, offsets, packed, scale), exact)
    last = rows_of_experts[-1]
    assert torch.equal(product[-last:], int4_matmul(x[-last:], packed[-1], scale[-1], config=config))


def test_a_tile_writes_its_own_rows_only(monkeypatch):
    """Bug: the end of a tile written with the next expert's rows, which its own tile happens to overwrite here and may
    not on a device; padding rows behind the last expert that disturb the others."""
    packed, scale, _ = weight(3, 14, 96)
    x, offsets = torch.randn(12, 96).to(DEVICE), torch.tensor([0, 4, 4, 7], device=DEVICE)
    config = replace(SMALL_TILES, num_splits=2)
    alone = int4_grouped_matmul(x[:7], offsets, packed, scale, config=config)
    monkeypatch.setattr(int4, "partial_sums", lambda out, splits: out.new_full((splits, *out.shape), torch.nan))
    padded = int4_grouped_matmul(x, offsets, packed, scale, config=config)
    assert torch.equal(padded[:7], alone)
    assert padded[7:].isnan().all()


@pytest.mark.parametrize("offsets", [[0, 4, 30], [-9, 4, 12], [0, 90, 12], [12, 4, 0], [50, 60, 70]])
def test_wrong_offsets_write_no_other_memory(monkeypatch, offsets):
    """Bug: offsets of another batch, which no host has looked at, as addresses."""
    packed, scale, _ = weight(2, 14, 96)
    memory = torch.full((60, 14), -7.0, device=DEVICE)
    monkeypatch.setattr(int4, "partial_sums", lambda *_: memory[24:36][None])
    x = torch.randn(60, 96).to(DEVICE)[24:36]
    int4_grouped_matmul(x, torch.tensor(offsets, device=DEVICE), packed, scale, config=SMALL_TILES)
    assert (memory[:24] == -7).all()
    assert (memory[36:] == -7).all()


def test_offsets_may_be_strided():
    """Bug: every second of other numbers, read one after the other."""
    packed, scale, _ = weight(2, 14, 96)
    x, offsets = torch.randn(12, 96).to(DEVICE), torch.tensor([0, 7, 4, 7, 12, 7], device=DEVICE)[::2]
    expected = int4_grouped_matmul(x, offsets.clone(memory_format=torch.contiguous_format), packed, scale)
    assert torch.equal(int4_grouped_matmul(x, offsets, packed, scale), expected)


def test_nothing_to_multiply():
    """Bug: a grid of no programs, which CUDA refuses to launch."""
    packed, scale, _ = weight(2, 16, 64)
    assert int4_matmul(torch.empty(0, 64, device=DEVICE), packed[0], scale[0]).shape == (0, 16)
    offsets = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    assert int4_grouped_matmul(torch.empty(0, 64, device=DEVICE), offsets, packed, scale).shape == (0, 16)


PACKED, SCALE = torch.zeros(2, 16, 8, dtype=torch.int32), torch.ones(2, 16, 2, dtype=torch.bfloat16)
GROUPED = {"x": torch.ones(3, 64), "offsets": torch.tensor([0, 1, 3]), "packed": PACKED, "scale": SCALE}


@pytest.mark.parametrize("module", ["kernel", "eager"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.ones(3, 32)}, "x [3, 32]"),
        ({"x": torch.ones(64)}, "x [64]"),
        ({"packed": PACKED.long()}, "torch.int64 [2, 16, 8]"),
        ({"packed": PACKED[:1]}, "[1, 16, 8]"),
        ({"scale": SCALE[..., :1]}, "scales [2, 16, 1]"),
        ({"scale": SCALE[:, :0], "packed": PACKED[:, :0]}, "scales [2, 0, 2]"),
        ({"offsets": torch.tensor([0, 3])}, "offsets torch.int64 [2]"),
        ({"offsets": torch.tensor([0.0, 1.0, 3.0])}, "offsets torch.float32 [3]"),
    ],
)
def test_what_does_not_fit_is_refused(module, change, said):
    """Bug: a traceback, or reading past the end of a tensor."""
    grouped = int4_grouped_matmul if module == "kernel" else eager.int4_grouped_matmul
    single = int4_matmul if module == "kernel" else eager.int4_matmul
    given = {**GROUPED, **change}
    with pytest.raises(Eagle3RefError) as error:
        grouped(**given)
    assert said in str(error.value)
    if "offsets" not in change and "packed" not in change:
        with pytest.raises(Eagle3RefError):
            single(given["x"], given["packed"][0], given["scale"][0])


@pytest.mark.parametrize("offsets", [[0, 1, 2], [1, 2, 3], [0, 4, 3], [-1, 1, 3]])
def test_eager_version_reads_the_offsets(offsets):
    """Bug: rows that no expert has, left out in silence where the offsets can be read."""
    with pytest.raises(Eagle3RefError, match="rise from 0 to 3"):
        eager.int4_grouped_matmul(**{**GROUPED, "offsets": torch.tensor(offsets)})


def test_what_the_kernel_cannot_take_is_refused(monkeypatch):
    """Bug: fp64 cut to fp32 on the way, fp32 scales whose product would be rounded twice, the CPU handed to a GPU."""
    packed, scale, _ = weight(16, 64)
    x = torch.ones(2, 64, device=DEVICE)
    with pytest.raises(Eagle3RefError, match="x in torch.float64"):
        int4_matmul(x.double(), packed, scale)
    with pytest.raises(Eagle3RefError, match=r"scales in torch\.float32"):
        int4_matmul(x, packed, scale.float())
    with pytest.raises(Eagle3RefError, match="a strided packed weight"):
        int4_matmul(x, packed.T.contiguous().T, scale)
    with pytest.raises(Eagle3RefError, match="no backward"):
        int4_matmul(x.clone().requires_grad_(), packed, scale)
    with pytest.raises(Eagle3RefError, match="meta"):
        int4_matmul(x, packed.to("meta"), scale)
    monkeypatch.setattr(launch, "INTERPRETED", False)
    with pytest.raises(Eagle3RefError, match="TRITON_INTERPRET=1"):
        int4_matmul(x.cpu(), packed.cpu(), scale.cpu())


@pytest.mark.slow
def test_kernels_of_the_real_sizes_compile_for_sm_90():
    """Bug: what the interpreter lets pass and the compiler does not; spilled registers; nibbles that go through shared
    memory on their way to the tensor cores, which would cost four times the bytes that INT4 saves."""
    usages = sm90.compiled(
        """
from eagle3ref.kernels.int4 import int4_grouped_matmul, int4_matmul
def experts(*shape):
    return meta(*shape[:-1], shape[-1] // 8, dtype=torch.int32), meta(*shape[:-1], shape[-1] // 32)
for num_rows in (1, 17, 64):
    int4_matmul(meta(num_rows, 7168), *experts(2048, 7168))
offsets = meta(385, dtype=torch.int32)
int4_grouped_matmul(meta(8, 7168), offsets, *experts(384, 2048, 7168))
int4_grouped_matmul(meta(8, 2048), offsets, *experts(384, 7168, 2048))
"""
    )
    assert [usage.kernel for usage in usages if not usage.fits] == []
    products = [usage for usage in usages if usage.kernel == "_int4_kernel"]
    assert len(products) == 5
    for usage in products:
        assert usage.opcodes.keys() & {"HMMA", "HGMMA"}
        assert usage.opcodes["LDGSTS"] >= 20
        assert usage.opcodes.get("I2F", 0) < 8  # those of the tile index; the nibbles need none
    few_rows = [usage for usage in products if "HMMA" in usage.opcodes]
    assert max(usage.opcodes.get("STS", 0) for usage in few_rows) < 20  # x and the results only; 64 if the weights were
