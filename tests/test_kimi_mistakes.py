"""The mistakes that implementations of Kimi-K2.5 make, each made on purpose: the vectors must notice every one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_kimi_target import golden_target, logits_error
from torch import nn

from eagle3ref.config import MLAConfig
from eagle3ref.nn import MLAttention, MoE, Router
from eagle3ref.nn.rope import inverse_frequencies
from eagle3ref.target.kimi_k25 import KimiK25Target


def attention_of(target: KimiK25Target) -> list[MLAttention]:
    return [layer.self_attn for layer in target.model.layers]


def experts_of(target: KimiK25Target) -> list[MoE]:
    return [layer.mlp for layer in target.model.layers[1:]]


def half_rotation(target, _patch):
    for attention in attention_of(target):
        attention.rope.interleaved = False


def no_mscale(_target, patch):
    patch.setattr(MLAConfig, "softmax_scale", property(lambda self: self.qk_head_dim**-0.5))


def no_latent_norm(target, _patch):
    for attention in attention_of(target):
        attention.kv_a_layernorm = nn.Identity()


def bias_ignored(target, _patch):
    for moe in experts_of(target):
        moe.gate.e_score_correction_bias.zero_()


def rerouted(patch, score, weigh):
    """Another router: choose by ``score(logits, bias)``, weigh by ``weigh(logits, bias)``, normalised, times 2.827."""

    def forward(self, x):
        logits, bias = x @ self.weight.T, self.e_score_correction_bias
        chosen = score(logits, bias).topk(self.config.num_experts_per_token).indices
        weights = weigh(logits, bias).gather(-1, chosen)
        return weights / weights.sum(-1, keepdim=True) * self.config.routed_scaling_factor, chosen

    patch.setattr(Router, "forward", forward)


def bias_in_weights(_target, patch):
    rerouted(patch, lambda x, bias: x.sigmoid() + bias, lambda x, bias: x.sigmoid() + bias)


def softmax_scores(_target, patch):
    rerouted(patch, lambda x, bias: x.softmax(-1) + bias, lambda x, _bias: x.softmax(-1))


def not_normalized(target, _patch):
    for moe in experts_of(target):
        moe.gate.config = replace(moe.gate.config, normalize_weights=False)


def no_routed_scaling(target, _patch):
    for moe in experts_of(target):
        moe.gate.config = replace(moe.gate.config, routed_scaling_factor=1.0)


def no_shared_expert(target, _patch):
    for moe in experts_of(target):
        moe.shared_experts = None


def shared_expert_scaled(target, _patch):
    for moe in experts_of(target):
        moe.shared_experts.down_proj.weight *= 2.827


def other_frequencies(target, **changes):
    for attention in attention_of(target):
        attention.rope.frequencies = inverse_frequencies(replace(attention.rope.config, **changes))


def no_yarn(target, _patch):
    other_frequencies(target, type="default")


def beta_fast_1(target, _patch):
    other_frequencies(target, beta_fast=1.0)


def swapped_key_and_value_rows(target, _patch):
    for attention in attention_of(target):
        weight = attention.kv_b_proj.weight.unflatten(0, (4, 32))
        attention.kv_b_proj.weight = nn.Parameter(weight.roll(16, 1).flatten(0, 1), requires_grad=False)


# Well under what each mistake costs on this model: 0.17 for the two ropes, 2.7 to 5.4 for the others.
MISTAKES = {
    half_rotation: 1.0,
    no_mscale: 1.0,
    no_latent_norm: 1.0,
    bias_ignored: 1.0,
    bias_in_weights: 1.0,
    softmax_scores: 1.0,
    not_normalized: 1.0,
    no_routed_scaling: 1.0,
    no_shared_expert: 1.0,
    shared_expert_scaled: 1.0,
    swapped_key_and_value_rows: 1.0,
    no_yarn: 0.05,
    beta_fast_1: 0.05,
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_each_known_mistake_moves_the_logits(mistake, monkeypatch):
    """Bug: vectors, or tests on them, that a wrong implementation would pass."""
    target = golden_target()
    mistake(target, monkeypatch)
    assert logits_error(target) > MISTAKES[mistake]
