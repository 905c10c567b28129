"""One thing that is odd about a draft's weights: what was seen, what it means, what to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What a health check found.

    Args:
        tensor: plain name of the tensor, e.g. ``fc.weight``.
        found: with its numbers.
        meaning: what a server would make of it.
        action: what to do.
        is_fault: such a draft cannot work as trained; otherwise there may be a good reason for it.
    """

    tensor: str
    found: str
    meaning: str
    action: str
    is_fault: bool

    def __str__(self) -> str:
        return f"{self.tensor} {self.found}: {self.meaning} {self.action}"
