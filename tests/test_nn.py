"""Layers against independent ones: transformers' attention, dense fp64 attention, plain loops."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from eagle3ref.config import GQAConfig, MLAConfig, MoEConfig, RopeConfig
from eagle3ref.nn import GQAttention, KVCache, MLAttention, MoE, Prefix, RMSNorm, Rows

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


def test_softmax_scale_of_the_real_kimi_config():
    """Bug: mscale forgotten (0.0722) or not squared."""
    attention = MLAConfig(64, 1536, 512, 128, 64, 128, KIMI_ROPE)
    assert attention.softmax_scale == pytest.approx(0.1446796, abs=5e-8)
    assert replace(attention, rope=replace(KIMI_ROPE, factor=32.0)).softmax_scale == pytest.approx(0.130861, abs=5e-7)
    assert replace(attention, rope=RopeConfig(64, 1e4)).softmax_scale == pytest.approx(192**-0.5)


@pytest.mark.parametrize("window", [1, 2, 4, 100])
def test_a_window_equals_a_banded_mask(window):
    """Bug: a window that ignores the prefix, counts own rows of earlier passes wrongly, or is one too wide."""
    config = GQAConfig(6, 2, 8, RopeConfig(8, 1e4))
    plain, windowed = (filled(GQAttention(32, 32, c)) for c in (config, replace(config, window=window)))
    x, positions = torch.randn(1, 9, 32, dtype=torch.float64), torch.arange(9)
    band = torch.tensor([[0 <= row - key < window for key in range(9)] for row in range(9)])
    expected, rows = plain(x[:, None], positions[None, None], mask=band)
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    whole, _ = windowed(x[:, None], positions[None, None], mask=causal)
    torch.testing.assert_close(whole, expected, rtol=1e-9, atol=1e-9)
    # Rows 0 to 3 as a prefix, then a tree of two branches that carry the same rows, in passes of two rows each.
    prefix, own = Prefix(Rows(*(part[:, 0, :4] for part in rows)), torch.ones(1, 4, dtype=torch.bool)), None
    for step in range(5):
        at = torch.tensor([[[4 + step, 4 + step]]])
        mask = torch.eye(2, dtype=torch.bool).repeat(1, step + 1)
        output, own = windowed(x[:, 4 + step].expand(2, 32)[None, None], at, mask=mask, own=own, prefix=prefix)
        torch.testing.assert_close(output[0, 0], expected[0, 0, 4 + step].expand(2, 32), rtol=1e-9, atol=1e-9)


def test_query_norms_equal_those_of_qwen3():
    """Bug: the norm over all heads at once, after the rope, or with another eps."""
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

    sizes = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
    config = Qwen3Config(**sizes, rms_norm_eps=1e-3, attn_implementation="eager", rope_theta=1e4)
    theirs = filled(Qwen3Attention(config, layer_idx=0)).eval()
    ours = GQAttention(48, 48, GQAConfig(6, 2, 16, RopeConfig(16, 1e4), qk_norm_eps=1e-3)).double()
    ours.load_state_dict(theirs.state_dict())
    x, positions = torch.randn(1, 9, 48, dtype=torch.float64), torch.arange(9).expand(1, 9)
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    mask = torch.zeros(1, 1, 9, 9, dtype=torch.float64).masked_fill(~causal, -1e300)
    # Their norm is in fp32 whatever the input.
    expected, _ = theirs(x, Qwen3RotaryEmbedding(config)(x, positions), mask)
    output, _ = ours(x[:, None], positions[:, None], mask=causal)
    torch.testing.assert_close(output[:, 0], expected, rtol=1e-5, atol=1e-5)


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
