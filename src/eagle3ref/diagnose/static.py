"""What files and command say before any number is looked at."""

from __future__ import annotations

from collections.abc import Mapping

from eagle3ref.diagnose.hypothesis import Cause
from eagle3ref.explain import Explanation
from eagle3ref.explain.trap import Trap

# The causes that a trap makes true. Each of them raises the odds of its hypotheses; none decides alone.
CAUSES_OF_TRAP: Mapping[str, tuple[Cause, ...]] = {
    "wrong-algorithm": ("wrong_flag",),
    "capture-off": ("wrong_flag", "aux_not_captured"),
    "skipped-fc": ("wrong_flag",),
    "other-capture-points": ("aux_layer_ids", "engine_reading"),
    "ids-not-read": ("aux_layer_ids", "engine_reading"),
    "ids-out-of-order": ("aux_layer_ids", "engine_reading"),
    "missing-lm-head": ("embed_lm_head",),
    "replaced-lm-head": ("embed_lm_head", "engine_reading"),
    "replaced-embedding": ("embed_lm_head", "engine_reading"),
    "unsaid-vocabulary": ("vocab_map", "embed_lm_head"),
    "missing-d2t": ("vocab_map",),
    "wrong-d2t": ("vocab_map",),
    "ignored-key": ("norm_placement", "engine_reading"),
    "missing-key": ("norm_placement", "engine_reading"),
    "norm-output": ("norm_placement",),
    "short-context": ("draft_context_length",),
    "short-rope": ("draft_context_length", "rope_position"),
    "draft-window": ("draft_context_length",),
    "low-thresholds": ("sampling_rejection",),
}

# Traps after which hardly a draft is accepted, whatever else is right: the file check alone names the cause.
_DECISIVE = (
    "wrong-algorithm",
    "capture-off",
    "skipped-fc",
    "missing-lm-head",
    "missing-d2t",
    "wrong-d2t",
    "unsaid-vocabulary",
    "missing-tensors",
    "other-number-of-layers",
)


def said_by_files(explanation: Explanation | None) -> Mapping[Cause, Trap]:
    """The trap that makes each cause true, the worst of several; empty without an explanation."""
    said: dict[Cause, Trap] = {}
    for trap in () if explanation is None else explanation.traps:
        for cause in CAUSES_OF_TRAP.get(trap.name, ()) if trap.is_wrong else ():
            said.setdefault(cause, trap)
    return said


def decisive_traps(explanation: Explanation | None) -> tuple[Trap, ...]:
    """Traps that explain a dead draft without any replay, the worst first."""
    traps = () if explanation is None else explanation.traps
    return tuple(trap for trap in traps if trap.is_wrong and trap.name in _DECISIVE)
