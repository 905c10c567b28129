"""What goes wrong with one wiring, in four parts: what, how it shows, what to do, who says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eagle3ref.engines.profile import Source

Severity = Literal[
    "fails at start", "fails at first forward", "silent, costs acceptance", "silent, changes the text", "harmless"
]

# The releases whose files were read for facts that are no field of a profile.
_READ = {"SGLang": ("SGLang 0.5.23", "2026-10-30"), "vLLM": ("vLLM 0.32.0", "2026-10-18")}


@dataclass(frozen=True)
class Trap:
    """Something about a draft, a target and flags that an engine handles in another way than the user expects.

    Args:
        name: short, for programs, e.g. ``"wrong-algorithm"``.
        severity: what it does; ``harmless`` changes nothing that counts.
        what: what is there, in one sentence.
        seen: what the user will see.
        fix: what to do, in the user's own flags and files.
        source: who says so.
    """

    name: str
    severity: Severity
    what: str
    seen: str
    fix: str
    source: Source

    @property
    def is_wrong(self) -> bool:
        """Whether the server will not do what was asked for."""
        return self.severity != "harmless"


def read_in(engine: str, file: str) -> Source:
    """A fact that was read in a file of the engine itself."""
    release, date = _READ.get(engine, (engine, ""))
    return Source(f"{release}, {file}", date)
