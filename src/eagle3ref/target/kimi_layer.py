"""One layer of Kimi-K2, with its weights at hand."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from eagle3ref.config import KimiK25Config
from eagle3ref.nn import ExpertSource, GatedMLP, MLAttention, MoE, Prefix, RMSNorm, Rows, in_blocks

Half = Literal["attention", "mlp"]
MODULES_OF: dict[Half, tuple[str, str]] = {
    "attention": ("input_layernorm", "self_attn"),
    "mlp": ("post_attention_layernorm", "mlp"),
}


class KimiLayer(nn.Module):
    """``x += attention(norm(x)); x += mlp(norm(x))``; the first layers have a dense MLP, the rest experts.

    Args:
        config: the text model's settings.
        index: of the layer, from 0.
        latent_norm_eps: epsilon of the two latent norms.
        experts: where the routed experts come from; modules of the layer itself when None.
    """

    def __init__(
        self, config: KimiK25Config, index: int, latent_norm_eps: float, experts: ExpertSource | None = None
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = MLAttention(config.hidden_size, config.hidden_size, config.attention, latent_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = (
            GatedMLP(config.hidden_size, config.intermediate_size)
            if index < config.num_dense_layers
            else MoE(config.hidden_size, config.moe, experts)
        )

    @property
    def device(self) -> torch.device:
        """Where the layer computes."""
        return self.input_layernorm.weight.device

    def weights_of(self, half: Half) -> AbstractContextManager[None]:
        """While it is open, the weights of that half are there."""
        del half  # in memory both always are
        return nullcontext()

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, prefix: Prefix | None) -> tuple[Tensor, Rows]:
        """x [B, 1, Q, C] -> the next residual stream, and what attention remembers of the Q rows."""
        with self.weights_of("attention"):
            attended, rows = self.self_attn(self.input_layernorm(x), positions, mask=mask, prefix=prefix)
            x = x + attended
        with self.weights_of("mlp"):
            return x + self.mlp(self.post_attention_layernorm(x)), rows

    def run(self, streams: Tensor, lengths: list[int]) -> list[Rows]:
        """Run whole sequences, which lie one behind the other in streams [T, C]; in place.

        Each sequence attends to itself alone. The MLP then sees the tokens of all of them: an expert is needed once.

        Returns:
            Of each sequence, what attention remembers, [1, 1, T of the sequence, ...].
        """
        with self.weights_of("attention"):
            rows = [self._attend(stream) for stream in streams.split(lengths)]
        with self.weights_of("mlp"):
            if isinstance(self.mlp, MoE):
                streams += self.mlp(in_blocks(self.post_attention_layernorm, streams))
            else:
                streams += in_blocks(lambda block: self.mlp(self.post_attention_layernorm(block)), streams)
        return rows

    def _attend(self, stream: Tensor) -> Rows:
        positions = torch.arange(len(stream), device=stream.device)
        normed = in_blocks(self.input_layernorm, stream)
        attended, rows = self.self_attn.causal(normed[None, None], positions[None, None])
        stream += attended[0, 0]
        return rows
