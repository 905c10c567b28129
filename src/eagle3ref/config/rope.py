"""Settings of rotary position embedding: default, linear, dynamic, llama3 and YaRN."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eagle3ref.config.json_fields import JsonFields
from eagle3ref.errors import Eagle3RefError

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
# Spellings of one type. In text, multimodal rope gives all its sections the same position, which is plain rope.
_SAME_TYPE = {"deepseek_yarn": "yarn", "mrope": "default"}
NOT_IMPLEMENTED = "This rope is not implemented; a wrong one would only lower the acceptance silently."


def yarn_mscale(factor: float, mscale: float) -> float:
    """YaRN's attention temperature, ``0.1 * mscale * ln(factor) + 1`` (arXiv 2309.00071, eq. 22)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding of the first ``dim`` features of a head; the others are not rotated.

    ``attention_factor`` multiplies cos and sin. ``mscale_all_dim`` is DeepSeek's extra: it moves the temperature into
    the softmax scale of MLA (see ``MLAConfig.softmax_scale``). ``dynamic`` is plain rope up to
    ``original_max_position_embeddings``; beyond, its frequencies would depend on the length of the text, and positions
    there are refused. (SGLang and vLLM instead give every position one larger base; ``theta`` can say that.)
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
        if self.dim < 2 or self.dim % 2 or not 1 < self.theta < math.inf or self.factor <= 0 or not in_order:
            raise Eagle3RefError(
                "reading a rope",
                found=str(self),
                expected="even dim of at least 2, theta > 1, factor > 0, low_freq_factor < high_freq_factor, "
                "beta_fast >= beta_slow > 0",
                action="Correct the rope settings in config.json.",
            )

    @classmethod
    def from_json(cls, fields: JsonFields, dim: int) -> RopeConfig:
        """Read ``rope_theta`` + ``rope_scaling``, or transformers 5's ``rope_parameters``.

        Args:
            fields: config.json.
            dim: width of a head; ``partial_rotary_factor`` rotates only a part of it.

        Raises:
            Eagle3RefError: a rope type that is not implemented, a missing number, or two different bases.
        """
        scaling = _scaling(fields)
        theta = _theta(fields, scaling)
        dim = _rotated_width(fields, scaling, dim)
        if scaling is None:
            return cls(dim, theta)
        kind = scaling.text("rope_type", scaling.text("type", "default"))
        kind = _SAME_TYPE.get(kind, kind)
        if kind not in ROPE_TYPES:
            raise Eagle3RefError(
                f"reading the rope of {fields.where}",
                found=f"rope type {kind!r}",
                expected=f"one of {', '.join(ROPE_TYPES)}",
                action=NOT_IMPLEMENTED,
            )
        if kind == "default":
            return cls(dim, theta)
        scaling.require({"alpha": None}, "no other base", NOT_IMPLEMENTED)
        factor = scaling.number("factor")
        if kind == "linear":
            return cls(dim, theta) if factor == 1 else cls(dim, theta, kind, factor)
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


def _scaling(fields: JsonFields) -> JsonFields | None:
    """The scaling object. Where each kind of layer has its own, that of the sliding ones, as speculators 0.9.0 does."""
    scaling = fields.object("rope_parameters") or fields.object("rope_scaling")
    return None if scaling is None else scaling.object("sliding_attention") or scaling


def _theta(fields: JsonFields, scaling: JsonFields | None) -> float:
    outer = fields.optional_number("rope_theta")
    inner = None if scaling is None else scaling.optional_number("rope_theta")
    if outer is not None and inner is not None and outer != inner:
        raise Eagle3RefError(
            f"reading the rope of {fields.where}",
            found=f"rope_theta = {outer} at top level and {inner} among the rope parameters",
            expected="one base, or the same one twice",
            action="Remove the one that the model was not trained with.",
        )
    return next((theta for theta in (outer, inner) if theta is not None), 10000.0)


def _rotated_width(fields: JsonFields, scaling: JsonFields | None, dim: int) -> int:
    share = fields.number("partial_rotary_factor", 1.0)
    if scaling is not None:
        share = scaling.number("partial_rotary_factor", share)
    if not 0 < share <= 1:
        raise Eagle3RefError(
            f"reading the rope of {fields.where}",
            found=f"partial_rotary_factor = {share}",
            expected="a share of the head, above 0 and at most 1",
            action="Correct the file.",
        )
    return int(dim * share)


def _yarn_attention_factor(scaling: JsonFields, factor: float) -> float:
    given = scaling.optional_number("attention_factor")
    if given is not None:
        return given
    mscale, all_dim = scaling.number("mscale", 0.0), scaling.number("mscale_all_dim", 0.0)
    if mscale and all_dim:
        return yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim)
    return yarn_mscale(factor, 1.0)
