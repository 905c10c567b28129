"""What a layer gives for one token, computed slowly from the files by the formulas alone, with nothing of the library.

In fp64 that is the truth, in the dtype of a pass it is what plain PyTorch makes of it.

Read are the layer's small weights and the few experts that the token goes to; INT4 is unpacked with shifts in NumPy.
Formulas: DeepSeek-V2 (arXiv 2405.04434, eq. 9 to 19) for attention, DeepSeek-V3 (arXiv 2412.19437, eq. 12 to 16) for
experts, YaRN (arXiv 2309.00071) for positions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import linear, silu


class Routed(NamedTuple):
    """The experts [k] of a token, their weights [k], and how far the last of them lies above the next one."""

    experts: Tensor
    weights: Tensor
    margin: float


class LayerFormulas:
    """One layer of a checkpoint, as formulas.

    Args:
        folder: of the checkpoint.
        index: of the layer.
        dtype: of weights and activations; norms, softmax and routing are in fp32 or wider.
    """

    def __init__(self, folder: Path, index: int, dtype: torch.dtype) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())["text_config"]
        self._files = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        self._folder, self._start = folder, f"language_model.model.layers.{index}."
        self.dtype, self.wide = dtype, torch.promote_types(dtype, torch.float32)
        self.is_dense = index < self.config["first_k_dense_replace"]

    def output(self, stream: Tensor, row: int) -> Tensor:
        """The stream [C] behind this layer at ``row``, given the stream [T, C] of its sequence before the layer."""
        x = self._after_attention(stream, row)
        h = self._norm(x, "post_attention_layernorm")
        if self.is_dense:
            return x + self._gated(h, lambda name: self._weight(f"mlp.{name}.weight"))
        experts, weights, _ = self._routed(h)
        total = torch.zeros_like(h, dtype=self.wide)
        for expert, weight in zip(experts.tolist(), weights, strict=True):
            total += weight * self._gated(h, lambda name, e=expert: self._int4(f"mlp.experts.{e}.{name}.weight"))
        return x + (
            total.to(self.dtype) + self._gated(h, lambda name: self._weight(f"mlp.shared_experts.{name}.weight"))
        )

    def routed(self, stream: Tensor, row: int) -> Routed:
        """Where the token of ``row`` goes."""
        return self._routed(self._norm(self._after_attention(stream, row), "post_attention_layernorm"))

    def _after_attention(self, stream: Tensor, row: int) -> Tensor:
        c, seen = self.config, stream[: row + 1].to(self.dtype)
        h = self._norm(seen, "input_layernorm")
        heads, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        low = self._norm(linear(h[row], self._weight("self_attn.q_a_proj.weight")), "self_attn.q_a_layernorm")
        query = linear(low, self._weight("self_attn.q_b_proj.weight")).view(heads, nope + rope)
        latent, key_rope = linear(h, self._weight("self_attn.kv_a_proj_with_mqa.weight")).split(
            [c["kv_lora_rank"], rope], -1
        )
        latent = self._norm(latent, "self_attn.kv_a_layernorm")
        keys_values = linear(latent, self._weight("self_attn.kv_b_proj.weight")).view(row + 1, heads, -1)
        key, value = keys_values.split([nope, c["v_head_dim"]], -1)
        scores = torch.einsum("hd,thd->ht", query[:, :nope].to(self.wide), key.to(self.wide))
        turned = self._turned(query[:, nope:], torch.tensor([row])).to(self.wide)
        scores = scores + turned @ self._turned(key_rope, torch.arange(row + 1)).to(self.wide).T
        probs = (scores * self._softmax_scale()).softmax(-1).to(self.dtype)
        attended = torch.einsum("ht,thd->hd", probs, value).flatten()
        return seen[row] + linear(attended, self._weight("self_attn.o_proj.weight"))

    def _routed(self, h: Tensor) -> Routed:
        chosen = self.config["num_experts_per_tok"]
        scores = linear(h.to(self.wide), self._weight("mlp.gate.weight", self.wide)).sigmoid()
        ranked = (scores + self._weight("mlp.gate.e_score_correction_bias", self.wide)).sort(descending=True)
        experts = ranked.indices[:chosen]
        weights = scores[experts] / (scores[experts].sum() + 1e-20) * self.config["routed_scaling_factor"]
        margin = ranked.values[chosen - 1] - ranked.values[chosen] if chosen < len(scores) else torch.tensor(1.0)
        return Routed(experts, weights, float(margin))

    def _gated(self, h: Tensor, matrix: Callable[[str], Tensor]) -> Tensor:
        inner = silu(linear(h, matrix("gate_proj"))) * linear(h, matrix("up_proj"))
        return linear(inner, matrix("down_proj"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.to(self.wide)
        scaled = wide * (wide.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"]).rsqrt()
        return scaled.to(self.dtype) * self._weight(f"{name}.weight")

    def _turned(self, x: Tensor, positions: Tensor) -> Tensor:
        """Pairs (0, 1), (2, 3), … of x [n, rope] turned by their angles."""
        angles = positions[:, None] * self._frequencies()
        pairs = torch.view_as_complex(x.to(torch.float64).unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2).to(self.dtype)

    def _frequencies(self) -> Tensor:
        yarn, width, theta = self.config["rope_scaling"], self.config["qk_rope_head_dim"], self.config["rope_theta"]
        plain = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)

        def pair_that_turns(times: float) -> float:
            return (
                width
                * math.log(yarn["original_max_position_embeddings"] / (2 * math.pi * times))
                / (2 * math.log(theta))
            )

        low = max(math.floor(pair_that_turns(yarn["beta_fast"])), 0)
        high = min(math.ceil(pair_that_turns(yarn["beta_slow"])), width - 1)
        ramp = ((torch.arange(len(plain)) - low) / max(high - low, 0.001)).clamp(0, 1)
        return plain * (1 - ramp) + plain / yarn["factor"] * ramp

    def _softmax_scale(self) -> float:
        yarn = self.config["rope_scaling"]
        mscale = 0.1 * yarn["mscale_all_dim"] * math.log(yarn["factor"]) + 1
        return mscale**2 * (self.config["qk_nope_head_dim"] + self.config["qk_rope_head_dim"]) ** -0.5

    def _weight(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return self._stored(name).to(dtype or self.dtype)

    def _int4(self, name: str) -> Tensor:
        return _dequantized(self._folder / self._files[f"{self._start}{name}_packed"], self._start + name).to(
            self.dtype
        )

    def _stored(self, name: str) -> Tensor:
        return _read(self._folder / self._files[self._start + name], self._start + name)


@lru_cache(maxsize=24)  # the experts of one token, which is looked at in two dtypes
def _dequantized(path: Path, name: str) -> Tensor:
    """bf16 [out, in]: engines round the product of value and scale to it."""
    words, scales = _read(path, f"{name}_packed").numpy(), _read(path, f"{name}_scale")
    values = np.stack([(words >> shift & 15).astype(np.int8) - 8 for shift in range(0, 32, 4)], -1)  # [out, in / 8, 8]
    groups = torch.from_numpy(values.reshape(*scales.shape, 32)).float() * scales.float()[..., None]
    return groups.flatten(-2).bfloat16()


def _read(path: Path, name: str) -> Tensor:
    with safe_open(path, framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor
