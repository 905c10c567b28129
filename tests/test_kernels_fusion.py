"""The fusion kernel against fp64, and its plain version against the draft. Without a GPU the kernel is interpreted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sm90
import tiny
import torch
from draft_oracle import rms
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle3ref.draft import load_draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels import eager, launch
from eagle3ref.kernels.fusion import fuse, fusion_config, fusion_configs
from eagle3ref.kernels.split_k import TileConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
EPS = 1e-5
Arguments = tuple[list[Tensor], Tensor, dict[str, object]]


def arguments(
    num_rows: int,
    num_chunks: int,
    chunk_size: int,
    num_columns: int,
    dtype: torch.dtype,
    *,
    norms: tuple[str, ...] = (),
    bias: bool = False,
) -> Arguments:
    """Random chunks, weight and options of ``fuse``; the chunks are slices of one tensor, so their rows are strided."""
    fused = num_chunks * chunk_size
    states = (3 * torch.randn(num_rows, fused)).to(DEVICE, dtype)
    options: dict[str, object] = {"eps": EPS}
    if bias:
        options["bias"] = torch.randn(num_columns).to(DEVICE, dtype)
    if "chunk" in norms:
        options["norm_weights"] = [(1 + torch.randn(chunk_size) / 2).to(DEVICE, dtype) for _ in range(num_chunks)]
    if "input" in norms:
        options["input_norm_weight"] = (1 + torch.randn(fused) / 2).to(DEVICE, dtype)
    weight = (torch.randn(num_columns, fused) / fused**0.5).to(DEVICE, dtype)
    return list(states.chunk(num_chunks, -1)), weight, options


def oracle(chunks: list[Tensor], weight: Tensor, options: dict[str, object]) -> Tensor:
    """The same in fp64, written again."""
    x = torch.cat([chunk.to(weight.dtype) for chunk in chunks], -1).double()
    if "input_norm_weight" in options:
        x = rms(x, options["input_norm_weight"].double(), EPS)
    if "norm_weights" in options:
        parts = zip(x.chunk(len(chunks), -1), options["norm_weights"], strict=True)
        x = torch.cat([rms(part, scale.double(), EPS) for part, scale in parts], -1)
    product = x @ weight.double().T
    return product + options["bias"].double() if "bias" in options else product


def assert_as_good_as_eager(arguments: Arguments, *, config: TileConfig | None = None) -> Tensor:
    """At most twice the error of the plain version in the same dtype, at worst and on average."""
    chunks, weight, options = arguments
    expected = oracle(*arguments)
    fused = fuse(chunks, weight, config=config, **options)
    assert fused.dtype == weight.dtype
    assert fused.shape == expected.shape
    error, allowed = fused.double() - expected, 2 * (eager.fuse(chunks, weight, **options).double() - expected)
    floor = torch.finfo(weight.dtype).eps * expected.abs().max() / 4  # where the plain version happens to be exact
    assert error.abs().max() <= allowed.abs().max() + floor
    assert error.square().mean().sqrt() <= allowed.square().mean().sqrt() + floor
    return fused


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "norms", "bias"),
    [
        ((1, 3, 48, 40), (), False),
        ((3, 3, 130, 33), ("chunk",), True),
        ((17, 2, 72, 130), ("input",), False),
        ((16, 1, 33, 16), ("input", "chunk"), True),
        ((65, 4, 8, 24), (), False),
    ],
)
def test_kernel_is_as_good_as_eager(dtype, shape, norms, bias):
    """Bug: a tail of rows, columns or inputs left out or read twice; a chunk taken for its neighbor; a norm that reads
    the whole row instead of its chunk; roundings the reference does not make, or TF32 for fp32."""
    assert_as_good_as_eager(arguments(*shape, dtype, norms=norms, bias=bias))


@settings(max_examples=5, deadline=None)
@given(
    st.tuples(st.integers(1, 20), st.integers(1, 4), st.integers(1, 70), st.integers(1, 40)),
    st.sampled_from(DTYPES),
    st.sets(st.sampled_from(["chunk", "input"])),
    st.booleans(),
    st.integers(1, 6),
)
def test_any_shape_and_split(shape, dtype, norms, bias, num_splits):
    """Bug: shapes or splits that the cases above happen to miss, such as more splits than there are blocks of K."""
    config = TileConfig(16, 16, 32, num_splits, 4, 2)
    assert_as_good_as_eager(arguments(*shape, dtype, norms=tuple(norms), bias=bias), config=config)


@pytest.mark.parametrize("num_rows", [2, *(pytest.param(many, marks=pytest.mark.slow) for many in (40, 80))])
def test_every_configuration_gives_the_product(num_rows):
    """Bug: a configuration offered for timing that computes something else, or other bits in a second run."""
    case = arguments(num_rows, 2, 72, 20, torch.float32, norms=("chunk",), bias=True)
    for config in fusion_configs(num_rows, 20, 72, 2, torch.bfloat16):
        split = replace(config, num_splits=3)
        assert torch.equal(assert_as_good_as_eager(case, config=split), fuse(*case[:2], config=split, **case[2]))


def test_columns_may_be_strided_and_chunks_in_another_dtype():
    """Bug: a chunk read as if its rows were contiguous; states in fp32 multiplied without the cast to the weight's."""
    chunks, weight, options = arguments(5, 3, 24, 10, torch.float32, norms=("chunk", "input"))
    expected = fuse(chunks, weight, **options)
    turned = [chunk.T.contiguous().T for chunk in chunks]
    assert all(chunk.stride(1) != 1 for chunk in turned)
    assert torch.equal(fuse(turned, weight, **options), expected)
    for dtype in (torch.float16, torch.bfloat16):
        assert_as_good_as_eager((chunks, weight.to(dtype), {}))


def test_vectors_may_be_strided():
    """Bug: a bias or a norm's weight that is every second number of another tensor, read one after the other."""
    chunks, weight, options = arguments(3, 2, 24, 10, torch.float32, norms=("chunk", "input"), bias=True)
    expected = fuse(chunks, weight, **options)

    def apart(value: object) -> object:
        if isinstance(value, list):
            return [apart(each) for each in value]
        return torch.stack([value, value * torch.nan], -1)[..., 0] if isinstance(value, Tensor) else value

    scattered = {name: apart(value) for name, value in options.items()}
    assert {"bias", "norm_weights", "input_norm_weight"} <= set(scattered)
    assert torch.equal(fuse(chunks, weight, **scattered), expected)


@pytest.mark.parametrize("norms", [("chunk",), ("input",), ("input", "chunk")])
def test_rows_of_any_magnitude(norms):
    """Bug: the norm's weight applied before its division, which overflows fp16 for large rows and loses the bits of
    small ones; a row of zeros that divides by zero; a NaN that leaves its row."""
    chunks, weight, options = arguments(6, 2, 40, 12, torch.float16, norms=norms)
    factors = torch.tensor([20000.0, 1e-4, 0.0, 1e-6, 1.0, 1.0], device=DEVICE)[:, None]
    chunks = [(chunk.float().clamp(-3, 3) * factors).half() for chunk in chunks]
    chunks[1][4, 7] = torch.nan
    finite = [0, 1, 2, 3, 5]
    fused = fuse(chunks, weight, **options)
    assert fused[4].isnan().all()
    assert fused[finite].isfinite().all()
    assert_as_good_as_eager(([chunk[finite] for chunk in chunks], weight, options))
    for row in (0, 1, 3):  # each by its own measure
        assert_as_good_as_eager(([chunk[row : row + 1] for chunk in chunks], weight, options))


@pytest.mark.parametrize("norms", [("chunk",), ("input",), ("input", "chunk")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_round_where_the_reference_does(norms, dtype):
    """Bug: a cast, a division or a weight whose result is not rounded. ``fc`` is one here, so that it shows."""
    chunks, _, options = arguments(4, 2, 32, 1, torch.float32, norms=norms)
    options = {name: _cast(value, dtype) for name, value in options.items()}
    identity = torch.eye(64, dtype=dtype, device=DEVICE)
    expected = eager.fuse(chunks, identity, **options)
    # A square root is rounded otherwise on another device, and then a value in a thousand may be.
    assert (fuse(chunks, identity, **options) != expected).float().mean() < 0.01


def _cast(value: object, dtype: torch.dtype) -> object:
    if isinstance(value, list):
        return [each.to(dtype) for each in value]
    return value.to(dtype) if isinstance(value, Tensor) else value


@pytest.mark.parametrize("which", ["chunk", "weight"])
def test_offsets_beyond_31_bits(which):
    """Bug: row times stride in 32 bits, which wraps for long batches of wide states and for large matrices."""
    far, size = 2**30 + 64, 32
    memory = torch.empty(2 * far + size, dtype=torch.float16, device=DEVICE)  # only three pieces are ever touched
    wide = memory.as_strided((3, size), (far, 1))
    wide.copy_(torch.randn(3, size))
    narrow = torch.randn(3, size).to(DEVICE, torch.float16)
    chunk, weight = (wide, narrow) if which == "chunk" else (narrow, wide)
    assert torch.equal(fuse([chunk], weight), fuse([chunk.contiguous()], weight.contiguous()))


def test_no_rows():
    """Bug: a grid of no programs, which CUDA refuses to launch."""
    chunks, weight, options = arguments(0, 3, 8, 4, torch.float32)
    assert fuse(chunks, weight, **options).shape == (0, 4)


@pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"fc_norm": True},
        {"norm_before_fc": True, "bias": True},
        {"norm_before_fc": True, "fc_norm": True},
        {"target_hidden_size": 40},
    ],
)
def test_eager_version_is_the_draft(keys, tmp_path):
    """Bug: a "torch" backend that is not what the draft computes, in a variant or in the order of its two norms."""
    draft = load_draft(tiny.draft_folder(tmp_path, **keys), dtype=torch.float32)
    states = torch.randn(5, draft.fc.in_features)
    fused = eager.fuse(
        states.chunk(3, -1),
        draft.fc.weight,
        bias=draft.fc.bias,
        norm_weights=[norm.weight for norm in draft.fc_norm] if draft.config.fc_norm else None,
        input_norm_weight=draft.input_norm.weight if draft.config.norm_before_fc else None,
        eps=draft.config.rms_norm_eps,
    )
    assert torch.equal(fused, draft.fuse(states))


@pytest.mark.parametrize("function", [fuse, eager.fuse])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"chunks": []}, "one or more chunks"),
        ({"chunks": [torch.ones(2, 8), torch.ones(3, 8)]}, "chunks [[2, 8], [3, 8]]"),
        ({"chunks": [torch.ones(8)]}, "chunks [[8]]"),
        ({"chunks": [torch.ones(2, 8)]}, "a weight 16 wide; expected 8: 1 chunks of 8"),
        ({"weight": torch.ones(16)}, "a weight [16]"),
        ({"weight": torch.ones(0, 16)}, "a weight [0, 16]"),
        ({"bias": torch.ones(16)}, "a bias [16]"),
        ({"norm_weights": [torch.ones(8)]}, "norm_weights [[8]]"),
        ({"norm_weights": [torch.ones(8), torch.ones(9)]}, "norm_weights [[8], [9]]"),
        ({"input_norm_weight": torch.ones(8)}, "an input_norm_weight [8]"),
    ],
)
def test_what_does_not_fit_is_refused(function, change, said):
    """Bug: a traceback, or reading past the end of a tensor."""
    given = {"chunks": [torch.ones(2, 8), torch.ones(2, 8)], "weight": torch.ones(4, 16), **change}
    with pytest.raises(Eagle3RefError) as error:
        function(**given)
    assert said in str(error.value)


def test_what_the_kernel_cannot_take_is_refused(monkeypatch):
    """Bug: fp64 cut to fp32 on the way, tensors of two devices, the CPU handed to a GPU, a gradient
    that would be lost, a tile that cannot be."""
    chunks, weight, _ = arguments(2, 2, 8, 4, torch.float32)
    with pytest.raises(Eagle3RefError, match="weight in torch.float64"):
        fuse(chunks, weight.double())
    with pytest.raises(Eagle3RefError, match="rows are not contiguous"):
        fuse(chunks, weight.T.contiguous().T)
    with pytest.raises(Eagle3RefError, match="meta"):
        fuse(chunks, weight.to("meta"))
    with pytest.raises(Eagle3RefError, match="no backward"):
        fuse(chunks, weight.clone().requires_grad_())
    with torch.no_grad():
        fuse(chunks, weight.clone().requires_grad_())
    for size in ({"block_m": 8}, {"block_k": 48}, {"num_splits": 0}):
        with pytest.raises(Eagle3RefError, match="powers of two"):
            replace(TileConfig(16, 16, 16, 1, 4, 2), **size)
    monkeypatch.setattr(launch, "INTERPRETED", False)
    with pytest.raises(Eagle3RefError, match="TRITON_INTERPRET=1"):
        fuse([chunk.cpu() for chunk in chunks], weight.cpu())


@pytest.mark.parametrize(("num_rows", "resident"), [(1, 3), (16, 3), (32, 2), (64, 2)])
def test_few_rows_fill_the_machine(num_rows, resident):
    """Bug: a split that leaves a third of an H200 idle in the last round, or whose partial sums cost what it saves."""
    config = fusion_config(num_rows, 7168, 7168, 3, torch.bfloat16)
    programs = 7168 // config.block_n * config.num_splits
    places = 132 * resident * -(-programs // (132 * resident))
    assert programs / places > 0.9
    assert 8 * config.num_splits * num_rows * 7168 < 7168 * 21504 * 2 / 4


def test_many_rows_are_not_split():
    """Bug: partial sums of a whole prompt, which cost more than the product."""
    assert fusion_config(4096, 7168, 7168, 3, torch.bfloat16).num_splits == 1


@pytest.mark.slow
def test_kernels_of_the_real_sizes_compile_for_sm_90():
    """Bug: what the interpreter lets pass and the compiler does not; spilled registers, too much shared memory; a
    product without the tensor cores, or loads that are waited for instead of copied ahead."""
    usages = sm90.compiled(
        """
from eagle3ref.kernels.fusion import fuse
weight, bias, norm, input_norm = meta(7168, 21504), meta(7168), [meta(7168)] * 3, meta(21504)
for num_rows in (1, 17, 64, 512):
    fuse([meta(num_rows, 7168)] * 3, weight)
fuse([meta(16, 7168)] * 3, weight, bias=bias, norm_weights=norm, input_norm_weight=input_norm)
fuse([meta(512, 7168)] * 3, weight, norm_weights=norm)
"""
    )
    assert [usage.kernel for usage in usages if not usage.fits] == []
    products = [usage for usage in usages if usage.kernel == "_fuse_kernel"]
    assert len(products) == 6
    for usage in products:
        assert usage.opcodes.keys() & {"HMMA", "HGMMA"}
        assert usage.opcodes["LDGSTS"] > 50
