"""Values that no trained draft has: NaN, tensors of zeros, norms that stand as they were initialised."""

from __future__ import annotations

import math
from collections.abc import Iterator

from eagle3ref.inspection.finding import Finding
from eagle3ref.inspection.initialization import looks_initialised
from eagle3ref.inspection.stored import StoredDraft, value_range

_EXPORT = "Export or download the draft again."


def check_values(stored: StoredDraft) -> Iterator[Finding]:
    """Every float tensor of a draft, read once."""
    norms = []
    for name, tensor in stored.floats():
        if tensor.numel() == 0:
            continue
        low, high = value_range(tensor)
        if not (math.isfinite(low) and math.isfinite(high)):
            yield Finding(
                name, "holds NaN or infinity", "a server would accept nothing, without a word.", _EXPORT, True
            )
            continue
        if name.endswith("weight") and low == high == 0:
            yield Finding(name, "is all zeros", _meaning_of_zeros(name), _EXPORT, True)
        if name.endswith("norm.weight") or "fc_norm." in name:
            norms.append(tensor)
    if norms and all(bool((norm == 1).all()) for norm in norms) and _all_initialised(stored):
        yield Finding(
            "all tensors",
            "look as they were initialised: norms are exactly 1, and the values of every matrix are drawn alike",
            "a server would accept nothing.",
            "This checkpoint was written before training, or training did not reach these tensors; " + _EXPORT.lower(),
            True,
        )


def _meaning_of_zeros(name: str) -> str:
    if name == "fc.weight":
        return "the draft cannot see the target: it was never trained, or never saved."
    if name == "lm_head.weight":
        return "every token has the same score: nothing but chance is accepted."
    if "norm" in name:
        return "it wipes out what it should scale: nothing passes."
    return "that part of the layer does nothing: it was never trained, or never saved."


def _all_initialised(stored: StoredDraft) -> bool:
    """Of the tensors that belong to the draft alone; embedding and head may be the target's."""
    shared = ("embed_tokens.weight", "lm_head.weight")
    return all(looks_initialised(tensor) is not False for name, tensor in stored.matrices() if name not in shared)
