"""Rotary position embedding: plain, linear, dynamic, llama3 and YaRN; half-split and interleaved pairs."""

from __future__ import annotations

import math

import torch
from einops import rearrange
from torch import Tensor

from eagle3ref.config import RopeConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn.norm import at_least_float32


def inverse_frequencies(config: RopeConfig) -> Tensor:
    """fp32 [dim / 2]. Never cast them lower: in bf16 the angle is off by 7 rad at position 4096.

    Made on the CPU even while a model is built on the meta device, where they would be lost.
    """
    exponent = torch.arange(0, config.dim, 2, dtype=torch.float32, device="cpu") / config.dim
    base = 1.0 / (config.theta**exponent)
    if config.type == "linear":
        return base / config.factor
    if config.type == "llama3":
        return _llama3(base, config)
    if config.type == "yarn":
        return _yarn(base, config)
    return base


def _yarn(base: Tensor, config: RopeConfig) -> Tensor:
    """Interpolate slow frequencies, keep fast ones, blend in between (arXiv 2309.00071, eq. 17-19)."""
    low, high = (_correction_dim(config, rotations) for rotations in (config.beta_fast, config.beta_slow))
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(config.dim // 2, dtype=torch.float32, device="cpu") - low) / (high - low)).clamp(0, 1)
    return base * (1 - ramp) + base / config.factor * ramp


def _correction_dim(config: RopeConfig, rotations: float) -> float:
    """Feature index that turns ``rotations`` times within the original context."""
    turns = config.original_max_position_embeddings / (rotations * 2 * math.pi)
    return config.dim * math.log(turns) / (2 * math.log(config.theta))


def _llama3(base: Tensor, config: RopeConfig) -> Tensor:
    """Llama 3.1: long wavelengths divided by ``factor``, short ones kept, a linear blend in between."""
    turns = config.original_max_position_embeddings * base / (2 * math.pi)  # turns within the original context
    blend = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    return torch.lerp(base / config.factor, base, blend.clamp(0, 1))


class RotaryEmbedding:
    """Cosines and sines of positions. Not a module, so that no ``.to(bfloat16)`` can reach the frequencies."""

    def __init__(self, config: RopeConfig, *, interleaved: bool) -> None:
        self.config, self.interleaved = config, interleaved
        self.frequencies = inverse_frequencies(config)

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x [..., H, D] by its positions [...]: pairs (0, 1), (2, 3) … when interleaved, else (i, i + dim/2).

        Features from ``dim`` on pass as they are. Computed in fp32 (fp64 when x is fp64) and rounded once to x's dtype.

        Raises:
            Eagle3RefError: positions past the range of a dynamic rope.
        """
        if self.config.type == "dynamic":
            self._check_range(positions)
        if x.shape[-1] == self.config.dim:
            return self._rotate(x, positions)
        return torch.cat((self._rotate(x[..., : self.config.dim], positions), x[..., self.config.dim :]), -1)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        wide = at_least_float32(x.dtype)
        if self.frequencies.device != x.device:
            self.frequencies = self.frequencies.to(x.device)
        angles = positions.unsqueeze(-1).to(wide) * self.frequencies.to(wide)  # [..., dim/2]
        cos, sin = (f(angles).unsqueeze(-2) * self.config.attention_factor for f in (torch.cos, torch.sin))
        layout = "(pair half)" if self.interleaved else "(half pair)"
        first, second = rearrange(x.to(wide), f"... {layout} -> half ... pair", half=2)
        rotated = torch.stack((first * cos - second * sin, second * cos + first * sin))
        return rearrange(rotated, f"half ... pair -> ... {layout}").to(x.dtype)

    def _check_range(self, positions: Tensor) -> None:
        highest, length = int(positions.max()), self.config.original_max_position_embeddings
        if highest >= length:
            raise Eagle3RefError(
                "rotating queries and keys",
                found=f"position {highest} with a dynamic rope",
                expected=f"positions below {length}, where a dynamic rope is a plain one",
                action="Use shorter texts. Beyond, every engine extends the range in its own way.",
            )
