"""Settings of rotary position embedding: default, linear, llama3 and YaRN."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eagle3ref.config.json_fields import JsonFields
from eagle3ref.errors import Eagle3RefError

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
NOT_IMPLEMENTED = "This rope is not implemented; a wrong one would only lower the acceptance silently."


def yarn_mscale(factor: float, mscale: float) -> float:
    """YaRN's attention temperature, ``0.1 * mscale * ln(factor) + 1`` (arXiv 2309.00071, eq. 22)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding of ``dim`` features.

    ``attention_factor`` multiplies cos and sin. ``mscale_all_dim`` is DeepSeek's extra: it moves the temperature
    into the softmax scale of MLA (see ``MLAConfig.softmax_scale``).
    """

    dim: int
    theta: float
    type: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale_all_dim: float = 0.0
    attention_factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    truncate: bool = True

    def __post_init__(self) -> None:
        in_order = self.low_freq_factor < self.high_freq_factor and self.beta_fast >= self.beta_slow > 0
        if self.dim % 2 or self.theta <= 1 or self.factor <= 0 or not in_order:
            raise Eagle3RefError(
                "reading a rope",
                found=str(self),
                expected="even dim, theta > 1, factor > 0, low_freq_factor < high_freq_factor, "
                "beta_fast >= beta_slow > 0",
                action="Correct the rope settings in config.json.",
            )

    @classmethod
    def from_json(cls, fields: JsonFields, dim: int) -> RopeConfig:
        """Read ``rope_theta`` + ``rope_scaling``, or transformers 5's ``rope_parameters``.

        Raises:
            Eagle3RefError: a rope type that is not implemented, or a missing number.
        """
        scaling = fields.object("rope_parameters") or fields.object("rope_scaling")
        theta = fields.optional_number("rope_theta")
        if theta is None:
            theta = scaling.number("rope_theta", 10000.0) if scaling else 10000.0
        if scaling is None:
            return cls(dim, theta)
        kind = scaling.text("rope_type", scaling.text("type", "default"))
        kind = {"deepseek_yarn": "yarn"}.get(kind, kind)
        if kind not in ROPE_TYPES:
            raise Eagle3RefError(
                f"reading the rope of {fields.where}",
                found=f"rope type {kind!r}",
                expected=f"one of {', '.join(ROPE_TYPES)}",
                action=NOT_IMPLEMENTED,
            )
        if kind == "default":
            return cls(dim, theta)
        factor = scaling.number("factor")
        if kind == "linear":
            return cls(dim, theta, kind, factor)
        original = scaling.optional_size("original_max_position_embeddings") or fields.size("max_position_embeddings")
        return cls(
            dim,
            theta,
            kind,
            factor,
            original,
            beta_fast=scaling.number("beta_fast", 32.0),
            beta_slow=scaling.number("beta_slow", 1.0),
            mscale_all_dim=scaling.number("mscale_all_dim", 0.0),
            attention_factor=_yarn_attention_factor(scaling, factor) if kind == "yarn" else 1.0,
            low_freq_factor=scaling.number("low_freq_factor", 1.0),
            high_freq_factor=scaling.number("high_freq_factor", 4.0),
            truncate=scaling.flag("truncate", True),
        )


def _yarn_attention_factor(scaling: JsonFields, factor: float) -> float:
    given = scaling.optional_number("attention_factor")
    if given is not None:
        return given
    mscale, all_dim = scaling.number("mscale", 0.0), scaling.number("mscale_all_dim", 0.0)
    if mscale and all_dim:
        return yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim)
    return yarn_mscale(factor, 1.0)
