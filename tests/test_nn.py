"""Layers against independent ones: transformers' rope tables and Llama attention, dense fp64 attention, plain loops."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from eagle3ref.config import GQAConfig, MLAConfig, MoEConfig, RopeConfig
from eagle3ref.nn import GQAttention, KVCache, MLAttention, MoE, Prefix, RMSNorm, RotaryEmbedding, Rows
from eagle3ref.nn.rope import inverse_frequencies

KIMI_ROPE = RopeConfig(64, 50000.0, "yarn", 64.0, 4096, beta_fast=32.0, beta_slow=1.0, mscale_all_dim=1.0)


def llama_config(**keys):
    """A transformers LlamaConfig, with eager attention; the import is slow, so it waits until a test needs it."""
    from transformers import LlamaConfig

    sizes = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
    return LlamaConfig(**sizes, max_position_embeddings=512, attn_implementation="eager", **keys)


def filled(module: nn.Module, seed: int = 0) -> nn.Module:
    """Random weights, norms around 1, in fp64."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.double().named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = 1 + 0.3 * noise if "norm" in name else noise * parameter.shape[-1] ** -0.5
    return module.requires_grad_(False)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "mscale": 0.7,
         "mscale_all_dim": 1.0, "beta_fast": 16.0, "beta_slow": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 1.7,
         "truncate": False},
    ],
)  # fmt: skip
def test_rope_tables_equal_those_of_transformers(scaling):
    """Bug: a ramp, a boundary or an attention factor that is not the one drafts were trained with."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from eagle3ref.config.json_fields import JsonFields

    config = llama_config(rope_parameters={"rope_theta": 50000.0, **scaling})
    expected, attention_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
    fields = JsonFields({"rope_theta": 50000.0, "rope_scaling": scaling, "max_position_embeddings": 512}, "x")
    rope = RopeConfig.from_json(fields, 16)
    torch.testing.assert_close(inverse_frequencies(rope), expected, rtol=2e-7, atol=0)
    assert rope.attention_factor == pytest.approx(attention_factor, rel=1e-12)


def test_rope_numbers_of_the_real_kimi_config():
    """Bug: beta_fast 1 (K2-Instruct) for 32, or another ramp: 11 of 32 frequencies off, by up to 90 %."""
    frequencies = inverse_frequencies(KIMI_ROPE)
    base = 50000.0 ** -(torch.arange(32, dtype=torch.float64) / 32)
    assert (frequencies / base)[:9].tolist() == pytest.approx([1.0] * 9, rel=1e-6)
    assert (frequencies / base)[20:].tolist() == pytest.approx([1 / 64] * 12, rel=1e-6)
    published = {9: 0.0437767, 19: 1.58375e-4, 20: 1.80702e-5, 31: 4.38221e-7}
    assert {i: float(frequencies[i]) for i in published} == pytest.approx(published, rel=3e-6)


def test_softmax_scale_of_the_real_kimi_config():
    """Bug: mscale forgotten (0.0722) or not squared."""
    attention = MLAConfig(64, 1536, 512, 128, 64, 128, KIMI_ROPE)
    assert attention.softmax_scale == pytest.approx(0.1446796, abs=5e-8)
    assert replace(attention, rope=replace(KIMI_ROPE, factor=32.0)).softmax_scale == pytest.approx(0.130861, abs=5e-7)
    assert replace(attention, rope=RopeConfig(64, 1e4)).softmax_scale == pytest.approx(192**-0.5)


def test_rope_keeps_fp32_angles_in_bf16():
    """Bug: angles or frequencies in bf16, off by 7 rad at position 4096; the result is rounded once, at the end."""
    rope = RotaryEmbedding(KIMI_ROPE, interleaved=True)
    x = torch.randn(1, 3, 2, 64)
    positions = torch.tensor([[0, 4097, 100_000]])
    low = rope(x.bfloat16(), positions)
    assert torch.equal(low, rope(x.bfloat16().float(), positions).bfloat16())
    assert low.dtype == torch.bfloat16
    exact = positions[..., None].double() * rope.frequencies.double()
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(exact), exact)[:, :, None]).flatten(-2)
    torch.testing.assert_close(rope(x.double(), positions), turned, rtol=1e-9, atol=1e-9)


def test_half_split_pairs_are_not_interleaved_ones():
    """Bug: the Llama draft rotated in interleaved pairs or the other way round."""
    x = torch.randn(1, 1, 1, 8)
    positions = torch.tensor([[3]])
    half = RotaryEmbedding(RopeConfig(8, 1e4), interleaved=False)(x, positions)
    pairs = RotaryEmbedding(RopeConfig(8, 1e4), interleaved=True)(x.unflatten(-1, (2, 4)).mT.flatten(-2), positions)
    torch.testing.assert_close(half, pairs.unflatten(-1, (4, 2)).mT.flatten(-2))


@pytest.mark.parametrize("scaling", [{"rope_type": "default"}, {"rope_type": "yarn", "factor": 4.0,
                                     "original_max_position_embeddings": 128}])  # fmt: skip
@pytest.mark.parametrize("bias", [False, True])
def test_gqa_equals_llama_attention(scaling, bias):
    """Bug: heads repeated in the wrong order, a missing bias or scale, rope on values."""
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    config = llama_config(rope_parameters={"rope_theta": 1e4, **scaling}, attention_bias=bias)
    theirs = filled(LlamaAttention(config, layer_idx=0)).eval()
    rope = RopeConfig(16, 1e4) if scaling["rope_type"] == "default" else RopeConfig(
        16, 1e4, "yarn", 4.0, 128, attention_factor=0.1 * math.log(4.0) + 1)  # fmt: skip
    ours = GQAttention(48, 48, GQAConfig(6, 2, 16, rope, bias=bias, output_bias=bias)).double()
    ours.load_state_dict(theirs.state_dict())
    x, positions = torch.randn(2, 9, 48, dtype=torch.float64), torch.arange(9).expand(2, 9)
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    mask = torch.zeros(2, 1, 9, 9, dtype=torch.float64).masked_fill(~causal, -1e300)
    expected, _ = theirs(x, LlamaRotaryEmbedding(config)(x, positions), mask)
    output, _ = ours(x[:, None], positions[:, None], mask=causal)
    torch.testing.assert_close(output[:, 0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["gqa", "naive", "absorbed"])
def test_prefix_and_own_rows_equal_one_dense_causal_pass(kind):
    """Bug: hidden prefix rows leak in, own rows are misplaced, groups see each other, naive and absorbed differ."""
    mla = MLAConfig(3, 20, 16, 8, 4, 6, replace(KIMI_ROPE, dim=4))
    attention = (
        GQAttention(32, 32, GQAConfig(6, 2, 8, RopeConfig(8, 1e4)))
        if kind == "gqa"
        else MLAttention(32, 32, mla, latent_norm_eps=1e-5)
    )
    filled(attention)
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    positions = torch.arange(7).expand(2, 7)
    dense, rows = attention(x[:, None], positions[:, None], mask=causal)
    if kind == "absorbed":
        attention.absorbed = True
    if kind == "naive":
        attention.absorbed = False
    # Two groups per sequence, behind 3 and 4 of 5 stored prefix rows; two new rows each, in two passes.
    starts = torch.tensor([[3, 4], [4, 3]])
    stored = Rows(*(part[:, 0, :5].clone() for part in rows))
    visible = (torch.arange(5) < starts[..., None])[:, :, None]
    own = None
    for step in range(2):
        index = starts + step
        batch = torch.arange(2)[:, None]
        output, own = attention(
            x[batch, index][:, :, None],
            index[..., None],
            mask=torch.ones(1, step + 1, dtype=torch.bool),
            own=own,
            prefix=Prefix(stored, visible),
        )
        torch.testing.assert_close(output[:, :, 0], dense[:, 0][batch, index], rtol=1e-9, atol=1e-9)


def test_rms_norm_rounds_before_the_weight():
    """Bug: Gemma's order (weight in fp32, then one rounding) or the variance in bf16."""
    x = (torch.randn(64, 40) * 30).bfloat16()
    norm = RMSNorm(40, 1e-5).bfloat16()
    norm.weight.data = torch.randn(40).bfloat16()
    wide = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert torch.equal(norm(x), norm.weight * wide.float().bfloat16())


@pytest.mark.parametrize("normalize", [True, False])
def test_moe_equals_a_loop_over_tokens(normalize):
    """Bug: bias inside the weights, weights of the wrong slot, the shared expert scaled, normalised or left out."""
    config = MoEConfig(6, 2, 1, intermediate_size=10, routed_scaling_factor=2.5, normalize_weights=normalize)
    moe = filled(MoE(8, config))
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    for token, got in zip(x.flatten(0, 1), moe(x).flatten(0, 1), strict=True):
        scores = [1 / (1 + math.exp(-float(row @ token))) for row in moe.gate.weight]
        biased = [score + float(b) for score, b in zip(scores, moe.gate.e_score_correction_bias, strict=True)]
        chosen = sorted(range(6), key=lambda e: -biased[e])[:2]
        total = sum(scores[e] for e in chosen) if normalize else 1.0
        routed = sum(2.5 * scores[e] / total * moe.experts[e](token) for e in chosen)
        torch.testing.assert_close(got, routed + moe.shared_experts(token), rtol=1e-9, atol=1e-9)


def test_ragged_keep_equals_lists_of_rows():
    """Bug: leftovers of a shorter sequence survive, a growing buffer loses rows, rows kept out of order."""
    generator = torch.Generator().manual_seed(0)
    cache = KVCache(2, 3)
    wanted: list[list[torch.Tensor]] = [[], [], []]
    for _ in range(12):
        pending = [Rows(torch.randn(3, 1, 5, 2, 4, generator=generator), torch.randn(3, 1, 5, 3)) for _ in range(2)]
        counts = torch.randint(0, 4, (3,), generator=generator)
        rows = torch.stack([torch.randperm(5, generator=generator)[:3] for _ in range(3)])
        cache.offer(pending)
        cache.keep(rows, counts)
        for b in range(3):
            wanted[b] += [pending[1].first[b, 0, row] for row in rows[b, : int(counts[b])]]
    assert cache.lengths.tolist() == [len(rows) for rows in wanted]
    first, visible = cache.prefixes()[1].rows.first, cache.prefixes()[1].mask
    for b, rows in enumerate(wanted):
        assert torch.equal(first[b, : len(rows)], torch.stack(rows))
        assert visible[b, 0, 0].tolist() == [k < len(rows) for k in range(first.shape[1])]
    shorter = cache.prefixes(torch.tensor([1, 0, 2]))[0]
    assert shorter.rows.first.shape[1] == 2
    assert shorter.mask[:, 0, 0].tolist() == [[True, False], [False, False], [True, True]]
