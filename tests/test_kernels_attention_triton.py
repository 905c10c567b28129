"""Tree attention in Triton against fp64: every cut of the rows, every dtype, rows wherever they lie; and its tiles."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from attention_rounds import DEVICE, ROUNDS, Round, make_round
from hypothesis import given, settings
from hypothesis import strategies as st
from sm90 import compiled
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels import get_ops
from eagle3ref.kernels.attention_shapes import AttentionShape
from eagle3ref.kernels.prefix_splits import Tile, choose_num_splits

torch_ops, triton_ops = get_ops("torch"), get_ops("triton")


def assert_as_near(found: Tensor, plain: Tensor, exact: Tensor, floor: float = 0.0) -> None:
    """At most twice the error of plain, in the largest and in the mean square; or the floor, where plain is exact."""
    assert found.dtype == plain.dtype != exact.dtype
    error, bound = ((result.double() - exact).abs() for result in (found, plain))
    assert error.max() <= 2 * bound.max() + floor
    assert error.square().mean() <= 4 * bound.square().mean() + floor**2


QUICK = ("groups share a prefix", "multi-query", "more own rows than a word", "scores too large for exp")
QUICK_FIRST = [
    pytest.param(sizes, id=name, marks=[] if name in QUICK else pytest.mark.slow) for name, sizes in ROUNDS.items()
]


@pytest.mark.parametrize("num_splits", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("sizes", QUICK_FIRST)
def test_triton_is_as_near_to_fp64_as_plain_is(sizes, num_splits):
    """Bug: a split that is lost or read twice, states merged without their largest scores, a tile's edge."""
    single = make_round(**sizes).to(torch.float32)
    exact = single.to(torch.float64).on(torch_ops.tree_attention)
    found = single.on(triton_ops.tree_attention, num_splits=num_splits)
    assert_as_near(found, single.on(torch_ops.tree_attention), exact)


@pytest.mark.parametrize("sizes", QUICK_FIRST)
def test_latent_triton_is_as_near_to_fp64_as_plain_is(sizes):
    """Bug: as above, and a latent that is not both key and value."""
    single = make_round(**{**sizes, "kv_heads": 1, "key_size": 28}).to(torch.float32)
    exact = single.to(torch.float64).latent(8).on(torch_ops.tree_attention_mla)
    found = single.latent(8).on(triton_ops.tree_attention_mla, num_splits=2)
    assert_as_near(found, single.latent(8).on(torch_ops.tree_attention_mla), exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_as_near_to_fp64_as_plain_is(dtype):
    """Bug: a state, a score or a merge in half precision, or bf16 that is cut off instead of rounded."""
    half = make_round(lengths=(70, 9), kv_heads=1, heads=2, value_size=20).to(dtype)
    wide = half.to(torch.float64)
    for of, exact_of, name in (
        (half, wide, "tree_attention"),
        (half.latent(8), wide.latent(8), "tree_attention_mla"),
    ):
        exact, found = exact_of.on(getattr(torch_ops, name)), of.on(getattr(triton_ops, name))
        assert found.dtype == dtype
        assert_as_near(found, of.on(getattr(torch_ops, name)), exact)


@pytest.mark.slow
@given(
    st.fixed_dictionaries(
        {
            "queries": st.integers(1, 9),
            "kv_heads": st.integers(1, 2),
            "key_size": st.integers(9, 40),
            "value_size": st.integers(1, 40),
            "lengths": st.tuples(st.integers(0, 70), st.integers(0, 70)),
            "own": st.integers(0, 70),
            "visible": st.sampled_from([0.0, 0.1, 1.0]),
        }
    ),
    st.integers(1, 4),
)
@settings(max_examples=12, deadline=None)
def test_any_round_is_as_near_to_fp64_as_plain_is(sizes, num_splits):
    """Bug: a size, a length or a mask that nobody thought of. Sixteen ulps where plain happens to be exact."""
    single = make_round(**sizes).to(torch.float32)
    for of, exact_of, name in (
        (single, single.to(torch.float64), "tree_attention"),
        (single.latent(8), single.to(torch.float64).latent(8), "tree_attention_mla"),
    ):
        exact, found = exact_of.on(getattr(torch_ops, name)), of.on(getattr(triton_ops, name), num_splits=num_splits)
        assert_as_near(found, of.on(getattr(torch_ops, name)), exact, floor=16 * 2**-24 * float(exact.abs().max()))


def test_bits_depend_on_what_a_group_reads_alone():
    """Bug: a cut that depends on the batch or on the room, or one that lets in what lies behind a length."""
    of = make_round(lengths=(40, 23), kv_heads=1, heads=2).to(torch.float32)
    together = of.on(triton_ops.tree_attention, num_splits=2)
    room = torch.full((2, 30, 1, 20), float("nan"), device=DEVICE)
    keys, values = torch.cat((of.prefix_keys, room), 1), torch.cat((of.prefix_values, room[..., :12]), 1)
    keys[1, 23:], values[1, 23:] = float("nan"), float("nan")
    roomy = replace(of, prefix_keys=keys, prefix_values=values)
    assert torch.equal(roomy.on(triton_ops.tree_attention, num_splits=2), together)
    alone = Round(*(getattr(roomy, f.name)[1:2] for f in fields(of) if f.name != "prefix_of"))
    assert torch.equal(alone.on(triton_ops.tree_attention, num_splits=2), together[1:2])
    torch.testing.assert_close(roomy.on(torch_ops.tree_attention), together)  # plain reads no NaN either


def test_rows_are_read_where_they_lie():
    """Bug: strides taken for granted. Keys and values are views of one cache, queries and own rows are transposed."""
    of = make_round(key_size=12, lengths=(4, 9)).to(torch.float32)
    cache = torch.stack((of.prefix_keys, of.prefix_values), 3).transpose(1, 2).contiguous().transpose(1, 2)
    lying = replace(
        of,
        query=of.query.transpose(1, 3).contiguous().transpose(1, 3),
        prefix_keys=cache[:, :, :, 0],
        prefix_values=cache[:, :, :, 1],
        own_keys=of.own_keys.transpose(1, 3).contiguous().transpose(1, 3),
    )
    assert not lying.prefix_keys.is_contiguous()
    assert lying.own_keys.stride(-1) != 1
    assert torch.equal(lying.on(triton_ops.tree_attention), of.on(triton_ops.tree_attention))
    latent, latent_of = lying.latent(4), of.latent(4)
    assert torch.equal(latent.on(triton_ops.tree_attention_mla), latent_of.on(triton_ops.tree_attention_mla))


def test_the_merge_of_many_splits_takes_all_of_them():
    """Bug: states behind the first block of the merge that are left out, or faded by the wrong largest score."""
    sizes = {"groups": 2, "queries": 1, "heads": 1, "kv_heads": 1, "lengths": (566, 17), "value_size": 24}
    single = make_round(**sizes, sharpness=3.0).to(torch.float32)
    exact = single.to(torch.float64).on(torch_ops.tree_attention)
    found = single.on(triton_ops.tree_attention, num_splits=40)  # 36 of them read something of the longer prefix
    assert_as_near(found, single.on(torch_ops.tree_attention), exact, floor=1e-6)


def test_lengths_are_read_where_they_lie():
    """Bug: a column of a table, or one length for all groups, read as if its numbers were neighbors."""
    of = make_round(groups=3, lengths=(9, 9, 9), prefix_of=(1, 1, 1), heads=2, kv_heads=1).to(torch.float32)
    table = torch.stack((of.prefix_lengths, torch.full((3,), 10**6, device=DEVICE)), 1)
    lying = replace(of, prefix_lengths=table[:, 0], prefix_of=of.prefix_of[:1].expand(3))
    assert torch.equal(lying.on(triton_ops.tree_attention), of.on(triton_ops.tree_attention))
    latent, latent_of = lying.latent(4), of.latent(4)
    assert torch.equal(latent.on(triton_ops.tree_attention_mla), latent_of.on(triton_ops.tree_attention_mla))


def test_a_gradient_is_refused():
    """Bug: a training loss whose gradient ends at a kernel without a word."""
    of = make_round(groups=1, lengths=(3,)).to(torch.float32)
    grown = replace(of, own_keys=of.own_keys.clone().requires_grad_())
    for call in (grown.on, grown.latent(4).on):
        name = "tree_attention" if call == grown.on else "tree_attention_mla"
        with pytest.raises(Eagle3RefError, match="a tensor that requires a gradient"):
            call(getattr(triton_ops, name))
        with torch.no_grad():
            call(getattr(triton_ops, name))


def test_triton_refuses_what_it_does_not_multiply():
    """Bug: fp64 rounded to fp32 without a word, a number of splits that is none."""
    of = make_round()
    with pytest.raises(Eagle3RefError, match="float64"):
        of.on(triton_ops.tree_attention)
    with pytest.raises(Eagle3RefError, match="float64"):
        of.latent(8).on(triton_ops.tree_attention_mla)
    for num_splits in (-1, 0, 5000):
        with pytest.raises(Eagle3RefError, match=f"num_splits {num_splits}"):
            of.to(torch.float32).on(triton_ops.tree_attention, num_splits=num_splits)


@given(st.integers(1, 300), st.integers(1, 64), st.integers(0, 2**20), st.integers(1, 2))
def test_splits_are_enough_and_not_too_small(groups, num_tiles, num_tokens, per_multiprocessor):
    """Bug: a long prefix on a few multiprocessors, a last round of a few programs, splits that leave more bytes behind
    than they read."""
    shape = AttentionShape(groups, 1, 64, 1, 512, 512, groups, num_tokens, 8)
    tile = Tile(rows=64, keys=32, num_warps=8, num_stages=3, per_multiprocessor=per_multiprocessor)
    splits = choose_num_splits(shape, tile, num_tiles, bytes_per_key=1152)
    places, tiles = 132 * per_multiprocessor, groups * num_tiles
    assert splits >= 1
    assert splits == 1 or num_tokens / splits > 64 * 512 * 4 / 1152 / 2
    assert splits == 1 or tiles * (splits + 1) <= places
    assert tiles * (splits + 2) > places or num_tokens / splits <= 2 * 64 * 512 * 4 / 1152


CALLS = """
from eagle3ref.kernels.tree_attention import tree_attention
from eagle3ref.kernels.tree_attention_mla import tree_attention_mla
def gqa(Q, H, K, D, V, dtype=torch.bfloat16, G=3):
    lengths, ancestors = meta(G, dtype=torch.int64), meta(G, Q, 2, dtype=torch.int32)
    shapes = ((G, Q, H, D), (G, 4096, K, D), (G, 4096, K, V), (G, 64, K, D), (G, 64, K, V))
    query, keys, values, own_keys, own_values = (meta(*shape, dtype=dtype) for shape in shapes)
    tree_attention(query, keys, values, lengths, own_keys, own_values, ancestors, 0.1, prefix_of=lengths)
def mla(Q, H=64, R=512, Dr=64, dtype=torch.bfloat16, G=3):
    lengths, ancestors = meta(G, dtype=torch.int64), meta(G, Q, 2, dtype=torch.int32)
    shapes = ((G, Q, H, R), (G, Q, H, Dr), (G, 4096, R), (G, 4096, Dr), (G, 64, R), (G, 64, Dr))
    query, rope, latent, roped, own_latent, own_rope = (meta(*shape, dtype=dtype) for shape in shapes)
    tree_attention_mla(query, rope, latent, roped, lengths, own_latent, own_rope, ancestors, 0.1)
"""
# Kimi-K2.5 latent and expanded, then the heads of other drafts; the single row of a chain, and trees of 8 and 64.
KIMI_LATENT = ("mla(1)", "mla(64)")
HEADS_APART = (
    "gqa(1, 64, 64, 192, 128)",
    "gqa(64, 64, 64, 192, 128)",
    "gqa(1, 64, 8, 128, 128)",
    "gqa(8, 64, 8, 128, 128)",
    "gqa(8, 32, 8, 96, 96)",
    "gqa(8, 8, 1, 256, 256)",
)
WIDE_OR_NARROW = ("gqa(8, 8, 1, 512, 512)", "mla(1, H=8)")
EXACT = (
    "gqa(8, 64, 8, 128, 128, torch.float32)",
    "mla(8, dtype=torch.float32)",
)


@pytest.mark.slow
def test_compiles_for_a_gpu_without_spilled_registers():
    """Bug: what the interpreter takes and the compiler does not, and tiles that do not fit an H100 or H200."""
    calls = (*KIMI_LATENT, *HEADS_APART, *WIDE_OR_NARROW, *EXACT)
    usages = [usage for usage in compiled(CALLS + "\n".join(calls)) if usage.kernel != "_merge_kernel"]
    for call, usage in zip(calls, usages, strict=True):
        assert usage.fits, (call, usage)
        if call in EXACT:
            assert not {"HMMA", "HGMMA"} & set(usage.opcodes), call  # no TF32
        else:
            assert {"HMMA", "HGMMA"} & set(usage.opcodes), call
        if call in KIMI_LATENT + HEADS_APART:
            assert "LDGSTS" in usage.opcodes, call  # keys come in while the last ones are multiplied
        if call in HEADS_APART:
            assert usage.shared_bytes <= 113 * 1024, call  # two programs on a multiprocessor
            assert usage.registers * usage.num_warps * 32 <= 2**15, call
