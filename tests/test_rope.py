"""Rotary position embedding against the tables of transformers, the numbers of the real Kimi, and plain formulas."""

from __future__ import annotations

import pytest
import torch

from eagle3ref.config import RopeConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import RotaryEmbedding
from eagle3ref.nn.rope import inverse_frequencies

KIMI_ROPE = RopeConfig(64, 50000.0, "yarn", 64.0, 4096, beta_fast=32.0, beta_slow=1.0, mscale_all_dim=1.0)


def llama_config(**keys):
    """A transformers LlamaConfig, the import is slow, so it waits until a test needs it."""
    from transformers import LlamaConfig

    sizes = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
    return LlamaConfig(**sizes, max_position_embeddings=512, **keys)


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


def test_dynamic_rope_is_plain_within_its_range_and_refused_beyond():
    """Bug: the larger base of SGLang and vLLM, which no trainer used; or a guess past the range."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = llama_config(rope_parameters={"rope_theta": 1e4, "rope_type": "dynamic", "factor": 4.0})
    expected, attention_factor = ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=512)
    rope = RotaryEmbedding(RopeConfig(16, 1e4, "dynamic", 4.0, 512), interleaved=False)
    torch.testing.assert_close(rope.frequencies, expected, rtol=2e-7, atol=0)
    assert attention_factor == 1.0
    x = torch.randn(1, 1, 2, 16)
    plain = RotaryEmbedding(RopeConfig(16, 1e4), interleaved=False)
    assert torch.equal(rope(x, torch.tensor([[511]])), plain(x, torch.tensor([[511]])))
    with pytest.raises(Eagle3RefError, match="position 512 with a dynamic rope; expected positions below 512"):
        rope(x, torch.tensor([[512]]))


@pytest.mark.parametrize("model", ["qwen2_vl", "qwen3_vl"])
def test_multimodal_rope_of_text_is_plain_rope(model):
    """Bug: sections of a multimodal rope, in blocks or interleaved, that turn text by something else."""
    from transformers import Qwen2VLTextConfig, Qwen3VLTextConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding, apply_rotary_pos_emb
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

    classes = {"qwen2_vl": (Qwen2VLTextConfig, Qwen2VLRotaryEmbedding)}
    classes["qwen3_vl"] = (Qwen3VLTextConfig, Qwen3VLTextRotaryEmbedding)
    make_config, make_rope = classes[model]
    settings = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    config = make_config(hidden_size=96, num_attention_heads=6, head_dim=16, rope_parameters=settings)
    x, positions = torch.randn(1, 2, 3, 16), torch.tensor([[5, 37, 900]])  # [B, H, T, D]
    cos, sin = make_rope(config)(x, positions.expand(3, 1, 3))  # text: the same position in all three sections
    theirs, _ = apply_rotary_pos_emb(x, x, cos, sin)
    ours = RotaryEmbedding(RopeConfig(16, 1e4), interleaved=False)(x.transpose(1, 2), positions)
    torch.testing.assert_close(ours.transpose(1, 2), theirs, rtol=1e-5, atol=1e-5)


def test_partial_rope_leaves_the_tail_alone():
    """Bug: pairs that reach into the features that are not rotated, or frequencies of the whole head."""
    x, positions = torch.randn(1, 3, 2, 12), torch.tensor([[5, 6, 7]])
    partial = RotaryEmbedding(RopeConfig(8, 1e4), interleaved=False)(x, positions)
    assert torch.equal(partial[..., 8:], x[..., 8:])
    assert torch.equal(partial[..., :8], RotaryEmbedding(RopeConfig(8, 1e4), interleaved=False)(x[..., :8], positions))
