"""A rope as the keys that transformers, SGLang and vLLM all read the same way."""

from __future__ import annotations

import math
from typing import Any

from eagle3ref.config import RopeConfig
from eagle3ref.config.rope import yarn_mscale

_DIGITS = 12  # enough to undo the rounding of a division


def rope_scaling(rope: RopeConfig) -> dict[str, Any] | None:
    """The scaling object, with ``rope_type`` first; None for plain rope."""
    if rope.type == "default":
        return None
    values: dict[str, Any] = {"rope_type": rope.type, "factor": rope.factor}
    if rope.type != "linear":
        values["original_max_position_embeddings"] = rope.original_max_position_embeddings
    if rope.type == "llama3":
        values |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.type == "yarn":
        values |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, **_temperature(rope)}
        values |= {} if rope.truncate else {"truncate": False}
    return values


def partial_rotary_factor(rope: RopeConfig, head_dim: int) -> float:
    """The share that a reader's ``int(head_dim * share)`` turns into ``rope.dim`` again."""
    share = rope.dim / head_dim
    return share if int(head_dim * share) == rope.dim else math.nextafter(share, 2.0)


def _temperature(rope: RopeConfig) -> dict[str, float]:
    """What makes every reader multiply cos and sin by ``attention_factor``.

    MLA in SGLang and vLLM, and SGLang's GQA, take mscale / mscale_all_dim and never ``attention_factor``; transformers
    and vLLM's GQA prefer ``attention_factor``, and ignore the other two unless both are there and not 0. vLLM's MLA
    drops the softmax scale of ``mscale_all_dim`` when it sees ``attention_factor`` = 1, so that is only written if
    need be.
    """
    factor, wanted, all_dim = rope.factor, rope.attention_factor, rope.mscale_all_dim
    if factor <= 1 or (wanted, all_dim) == (yarn_mscale(factor, 1.0), 0.0):
        return {} if factor > 1 else {"attention_factor": wanted}
    mscale = round((wanted * yarn_mscale(factor, all_dim) - 1) / (0.1 * math.log(factor)), _DIGITS)
    values = {"mscale": mscale, "mscale_all_dim": all_dim}
    if mscale and all_dim and yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim) == wanted:
        return values
    return {**values, "attention_factor": wanted}
