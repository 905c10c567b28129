"""What one pass over a Kimi-K2 checkpoint costs: bytes, FLOPs, memory, disk. Arithmetic alone; nothing is timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eagle3ref.config import KimiK25Config, MoEConfig
from eagle3ref.target.checkpoint.census import Census
from eagle3ref.target.checkpoint.layout import expert_shapes, layer_shapes, num_experts

_CHOICES_PER_EXPERT = 4  # from here on all experts of a layer are read
_BYTES_BESIDE_STATES = 12  # of a token in a trace: its id, the argmax and the log-prob gap, four bytes each


@dataclass(frozen=True)
class PassCost:
    """One pass of whole sequences through all layers.

    Args:
        num_sequences: how many.
        num_tokens: of all sequences together.
        bytes_to_read: from the checkpoint; of the embedding the rows of the tokens alone. With few tokens it is an
            expectation: real routing is more skewed than uniform, so fewer experts are hit and less is read.
        experts_per_layer: routed experts of a layer that the pass reads, expected in the same way.
        linear_flops: of all matrix products with weights, a multiply-add counted as two.
        attention_flops: of scores and weighted sums, over the pairs that the causal mask allows.
        stream_bytes: the residual streams of all tokens, in memory or in a work folder.
        trace_bytes: the trace on disk: states, token ids, argmax and log-prob gap.
    """

    num_sequences: int
    num_tokens: int
    bytes_to_read: int
    experts_per_layer: float
    linear_flops: int
    attention_flops: int
    stream_bytes: int
    trace_bytes: int

    @property
    def flops(self) -> int:
        """Of weights and attention together."""
        return self.linear_flops + self.attention_flops


def plan_pass(
    census: Census,
    architecture: KimiK25Config,
    lengths: Sequence[int],
    *,
    num_capture_points: int,
    with_final: bool,
    dtype: torch.dtype,
) -> PassCost:
    """The cost of recording sequences of these lengths.

    Args:
        census: of the checkpoint.
        architecture: its settings.
        lengths: tokens of each sequence, prompt and answer.
        num_capture_points: residual streams that are kept of each token.
        with_final: whether the final hidden state is kept too.
        dtype: of activations, hence of states in memory and on disk.
    """
    num_tokens = sum(lengths)
    row_bytes = architecture.hidden_size * dtype.itemsize
    state_bytes = (num_capture_points + with_final) * row_bytes
    return PassCost(
        num_sequences=len(lengths),
        num_tokens=num_tokens,
        bytes_to_read=_bytes_to_read(census, architecture, num_tokens),
        experts_per_layer=experts_read(architecture.moe, num_tokens),
        linear_flops=2 * num_tokens * sum(active_weights(architecture).values()),
        attention_flops=attention_flops(architecture, lengths),
        stream_bytes=num_tokens * row_bytes,
        trace_bytes=num_tokens * (state_bytes + _BYTES_BESIDE_STATES),
    )


def active_weights(architecture: KimiK25Config) -> dict[str, int]:
    """Weights that one token is multiplied with, by part of the model; norms and embedding are no matrix products."""
    moe = architecture.moe
    shapes = [layer_shapes(architecture, index) for index in range(architecture.num_layers)]
    moe_layers = sum(num_experts(architecture, index) > 0 for index in range(architecture.num_layers))
    expert = sum(map(math.prod, expert_shapes(architecture).values()))

    def matrices(start: str) -> int:
        return sum(
            math.prod(shape)
            for layer in shapes
            for name, shape in layer.items()
            if name.startswith(start) and len(shape) == 2
        )

    return {
        "attention": matrices("self_attn."),
        "dense": sum(matrices(f"mlp.{name}") for name in ("gate_proj.", "up_proj.", "down_proj.")),
        "router": matrices("mlp.gate."),
        "shared experts": matrices("mlp.shared_experts."),
        "routed experts": moe_layers * moe.num_experts_per_token * expert,
        "lm_head": architecture.vocab_size * architecture.hidden_size,
    }


def attention_flops(architecture: KimiK25Config, lengths: Sequence[int]) -> int:
    """Scores and weighted sums of expanded heads, each row with itself and the rows before it."""
    attention = architecture.attention
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    per_pair = 2 * attention.num_heads * (attention.qk_head_dim + attention.v_head_dim)
    return architecture.num_layers * per_pair * pairs


def reads_all_experts(moe: MoEConfig, num_tokens: int) -> bool:
    """Whether the routed experts of a layer are read before it is known which of them are needed.

    So it is from 4 choices per expert on. By then e^-4 of the bytes would be saved if routing were even, and the disk
    would stand still while each layer's attention runs.
    """
    return num_tokens * moe.num_experts_per_token >= _CHOICES_PER_EXPERT * moe.num_experts


def experts_read(moe: MoEConfig, num_tokens: int) -> float:
    """Routed experts of one layer that so many tokens read; an expectation under uniform routing when they are few."""
    if reads_all_experts(moe, num_tokens):
        return float(moe.num_experts)
    missed = (1 - moe.num_experts_per_token / moe.num_experts) ** num_tokens
    return moe.num_experts * (1 - missed)


def _bytes_to_read(census: Census, architecture: KimiK25Config, num_tokens: int) -> int:
    share = experts_read(architecture.moe, num_tokens) / architecture.moe.num_experts
    routed = sum(weight.num_bytes for layer in census.layers for expert in layer.experts for weight in expert.values())
    embedding = census.embedding.num_bytes
    rows = min(num_tokens, architecture.vocab_size) * (embedding // architecture.vocab_size)
    return round(census.num_bytes - embedding - routed + rows + share * routed)
