"""A possible reason why a server's acceptance differs: what the engine does, how to mend it, and its wiring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eagle3ref.diagnose.wiring import Stream, Wiring

# Classes of root causes, after a collection of 178 public reports.
Cause = Literal[
    "none",
    "wrong_flag",
    "engine_reading",
    "aux_layer_ids",
    "aux_not_captured",
    "chunked_prefill",
    "draft_context_length",
    "draft_kv_state",
    "embed_lm_head",
    "norm_placement",
    "prefix_cache",
    "quant_rotation",
    "rope_position",
    "sampling_rejection",
    "token_shift",
    "tree_settings",
    "tree_topk_page",
    "vocab_map",
]


@dataclass(frozen=True)
class Hypothesis:
    """A mis-wiring that a replay can imitate.

    Args:
        name: short and unique; a pair is ``"a + b"``.
        cause: the class of the root cause; of a pair, that of its first part.
        engine_does: one sentence.
        fix: one sentence in the user's terms: a flag, a key of config.json, a file.
        looks_like: what is seen on the server.
        wiring: what is replayed.
        parts: the names that it is made of.
    """

    name: str
    cause: Cause
    engine_does: str
    fix: str
    looks_like: str
    wiring: Wiring
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", self.parts or (self.name,))

    def and_also(self, other: Hypothesis) -> Hypothesis | None:
        """Both faults at once; None if they cannot come together."""
        wiring = self.wiring.and_also(other.wiring)
        if wiring is None or RIGHT in (self, other):
            return None
        return Hypothesis(
            f"{self.name} + {other.name}",
            self.cause,
            f"{self.engine_does} {other.engine_does}",
            f"{self.fix} {other.fix}",
            f"{self.looks_like}; {other.looks_like}",
            wiring,
            self.parts + other.parts,
        )


RIGHT = Hypothesis(
    "right",
    "none",
    "The engine runs the draft as it was trained.",
    "Nothing is wrong with the wiring.",
    "the reference's own numbers",
    Wiring(),
)


@dataclass(frozen=True)
class LeftOut:
    """A mis-wiring that is not replayed here, and why.

    Args:
        name: as a hypothesis' name.
        cause: its class.
        reason: one sentence.
        action: what would make it testable; empty if it is the right wiring for this draft and trace.
        streams: states that the trace would have to hold.
    """

    name: str
    cause: Cause
    reason: str
    action: str = ""
    streams: tuple[Stream, ...] = ()

    @property
    def is_identity(self) -> bool:
        """Whether it would change nothing here."""
        return not self.action
