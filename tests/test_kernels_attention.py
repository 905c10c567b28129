"""Plain tree attention against the layers of nn, and what it and its twin do with the unusual."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from attention_rounds import DEVICE, ROUNDS, SCALE, Round, make_round
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle3ref.config import MLAConfig, RopeConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels import get_ops
from eagle3ref.kernels.eager_attention import pack_mask
from eagle3ref.nn import MLAttention, Prefix, Rows
from eagle3ref.nn.attend import Stretch, attend

torch_ops, triton_ops = get_ops("torch"), get_ops("triton")


def attended(of: Round) -> Tensor:
    """The same by ``nn.attention.attend``, group by group, over the visible rows alone."""
    outputs = []
    for group in range(len(of.query)):
        row = group if of.prefix_of is None else int(of.prefix_of[group])
        length = int(of.prefix_lengths[group])
        seen = torch.ones(1, 1, of.query.shape[1], length, dtype=torch.bool, device=DEVICE)
        parts = [
            Stretch(of.prefix_keys[row, :length][None], of.prefix_values[row, :length][None], seen),
            Stretch(of.own_keys[group][None], of.own_values[group][None], of.mask[group][None, None]),
        ]
        outputs.append(attend(of.query[group][None, None], parts, SCALE)[0, 0])
    return torch.stack(outputs)


@pytest.mark.parametrize("sizes", ROUNDS.values(), ids=ROUNDS)
def test_plain_is_attend_over_the_visible_rows(sizes):
    """Bug: a head that reads another's keys, a bit in another place, a length off by one, another group's prefix."""
    of = make_round(**sizes)
    seen = (of.mask.any(-1) | (of.prefix_lengths > 0)[:, None])[..., None, None]  # attend makes NaN of the others
    expected = attended(of).where(seen, 0.0)
    torch.testing.assert_close(of.on(torch_ops.tree_attention), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", ROUNDS.values(), ids=ROUNDS)
def test_plain_latent_is_one_key_value_head(sizes):
    """Bug: a rope part that is left out or scaled apart from the latent part, values that hold the rope part."""
    of = make_round(**{**sizes, "kv_heads": 1})
    latent = of.latent(rope_size=8)
    as_heads = replace(of, prefix_values=of.prefix_keys[..., :-8], own_values=of.own_keys[..., :-8])
    expected = as_heads.on(torch_ops.tree_attention)
    torch.testing.assert_close(latent.on(torch_ops.tree_attention_mla), expected, rtol=1e-12, atol=1e-12)


def test_plain_latent_is_the_latent_attention_of_nn():
    """Bug: a form that needs other rows than the layer remembers, or queries that are absorbed in another way."""
    config = MLAConfig(
        num_heads=3,
        q_lora_rank=None,
        kv_lora_rank=12,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
        rope=RopeConfig(dim=4, theta=10000.0),
    )
    layer = MLAttention(10, 10, config, 1e-6).double()
    layer.absorbed = False  # every row expanded to keys and values of all heads: another way to the same
    x, positions = torch.randn(2, 1, 4, 10, dtype=torch.float64), torch.arange(7, 11).expand(2, 1, 4)
    prefix = Rows(torch.randn(2, 7, 12, dtype=torch.float64), torch.randn(2, 7, 4, dtype=torch.float64))
    mask, lengths = torch.ones(4, 4).tril().bool(), torch.tensor([7, 3])
    seen = (torch.arange(7) < lengths[:, None])[:, None, None]
    expected, own = layer(x, positions, mask=mask, prefix=Prefix(prefix, seen))

    nope, rope = layer.q_proj(x).unflatten(-1, (3, 10)).split((6, 4), -1)
    weight = layer.kv_b_proj.weight.unflatten(0, (3, 11))
    query = torch.einsum("bpqhn,hnr->bpqhr", nope, weight[:, :6])[:, 0]
    ancestors = pack_mask(mask).expand(2, -1, -1)
    arguments = (query, layer.rope(rope, positions)[:, 0], *prefix, lengths, own.first[:, 0], own.second[:, 0])
    latent = torch_ops.tree_attention_mla(*arguments, ancestors, config.softmax_scale)
    output = layer.o_proj(torch.einsum("gqhr,hvr->gqhv", latent, weight[:, 6:]).flatten(-2))
    torch.testing.assert_close(output, expected[:, 0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ops", [torch_ops, triton_ops], ids=["torch", "triton"])
def test_what_cannot_be_read_is_nan_and_what_sees_nothing_is_zero(ops):
    """Bug: a length past the room or a prefix that is not there read from other memory, or silently cut."""
    sizes = {"groups": 5, "lengths": (4, 0, 3, 2, 1), "prefix_of": (1, 0, 2, 0, 1), "heads": 1, "kv_heads": 1}
    of = make_round(**sizes, visible=0.0).to(torch.float32)
    wrong = replace(
        of,
        prefix_lengths=torch.tensor([5, 0, 3, 2, -1], dtype=torch.int32, device=DEVICE),
        prefix_of=torch.tensor([1, 0, 3, -1, 1], dtype=torch.int32, device=DEVICE),
    )
    assert wrong.prefix_keys.shape[:2] == (3, 4)
    for output in (wrong.on(ops.tree_attention), wrong.latent(8).on(ops.tree_attention_mla)):
        assert output[[0, 2, 3, 4]].isnan().all()
        assert (output[1] == 0).all()


@given(st.lists(st.lists(st.booleans(), min_size=67, max_size=67), min_size=1, max_size=3), st.integers(0, 67))
@settings(max_examples=30)
def test_packed_bits(rows, num_own):
    """Bug: the sign bit, a word too few or too many, bits behind the last row."""
    mask = torch.tensor(rows, dtype=torch.bool)[:, :num_own]
    packed = pack_mask(mask)
    assert packed.shape == (len(rows), -(-num_own // 32))
    for words, row in zip(packed.tolist(), mask.tolist(), strict=True):
        number = sum((word & 0xFFFFFFFF) << (32 * index) for index, word in enumerate(words))
        assert number == sum(1 << index for index, seen in enumerate(row) if seen)


def test_bits_behind_the_own_rows_are_not_read():
    """Bug: a mask of fixed width, wider than the rows so far, that lets a query see past them."""
    of = make_round(own=3, lengths=(1, 2), kv_heads=1).to(torch.float32)
    wide = replace(of, mask=torch.cat((of.mask, torch.ones(2, 2, 40, dtype=torch.bool, device=DEVICE)), -1))
    for ops in (torch_ops, triton_ops):
        assert torch.equal(wide.on(ops.tree_attention), of.on(ops.tree_attention))
    assert torch.equal(wide.latent(8).on(torch_ops.tree_attention_mla), of.latent(8).on(torch_ops.tree_attention_mla))


def test_plain_waits_for_no_value():
    """Bug: a look at a value, which would stop a traced or captured loop."""
    of = make_round(prefix_of=(1, 0))
    without_values = Round(*(getattr(of, field.name).to("meta") for field in fields(of)))
    assert without_values.on(torch_ops.tree_attention).shape == (2, 2, 4, 12)
    assert without_values.latent(8).on(torch_ops.tree_attention_mla).shape == (2, 2, 4, 12)


@pytest.mark.parametrize("ops", [torch_ops, triton_ops], ids=["torch", "triton"])
def test_nothing_to_attend_for(ops):
    """Bug: a launch of no programs, or a shape that is lost with the last group or query."""
    of = make_round(kv_heads=1)
    without_groups = Round(*(getattr(of, field.name)[:0] for field in fields(of) if field.name != "prefix_of"))
    without_queries = replace(of, query=of.query[:, :0], mask=of.mask[:, :0])
    for nothing, shape in ((without_groups, (0, 2, 4)), (without_queries, (2, 0, 4))):
        single = nothing.to(torch.float32)
        assert single.on(ops.tree_attention).shape == (*shape, 12)
        assert single.latent(8).on(ops.tree_attention_mla).shape == (*shape, 12)


BROKEN = {
    "query of other width": lambda of: replace(of, query=of.query[..., 1:]),
    "query without heads": lambda of: replace(of, query=of.query[:, :, 0]),
    "three heads over two": lambda of: replace(of, query=of.query[:, :, 1:]),
    "keys of another dtype": lambda of: replace(of, own_keys=of.own_keys.half()),
    "values of fewer rows": lambda of: replace(of, own_values=of.own_values[:, 1:]),
    "integers for floats": lambda of: of.to(torch.int64),
    "a length too few": lambda of: replace(of, prefix_lengths=of.prefix_lengths[1:]),
    "lengths in int16": lambda of: replace(of, prefix_lengths=of.prefix_lengths.short()),
    "no prefix_of": lambda of: replace(of, prefix_of=None),
    "prefix_of floats": lambda of: replace(of, prefix_of=of.prefix_of.float()),
    "words too few": lambda of: replace(of, mask=of.mask[..., :32]),
    "words of fewer queries": lambda of: replace(of, mask=of.mask[:, 1:]),
    "no prefix to read": lambda of: replace(of, prefix_keys=of.prefix_keys[:0], prefix_values=of.prefix_values[:0]),
    "keys elsewhere": lambda of: replace(of, prefix_keys=of.prefix_keys.to("meta")),
}


@pytest.mark.parametrize("breakage", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("ops", [torch_ops, triton_ops], ids=["torch", "triton"])
def test_what_does_not_fit_is_refused(ops, breakage):
    """Bug: a shape that is broadcast, or memory that is read as something else."""
    broken = breakage(make_round(own=33, prefix_of=(0, 0)).to(torch.float32))
    with pytest.raises(Eagle3RefError, match=r"attending over a draft tree: found .*; expected .*"):
        broken.on(ops.tree_attention)
