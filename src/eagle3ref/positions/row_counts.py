"""How many draft rows a replay ran, against how many the full one runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class RowCounts:
    """Draft rows, by kind. ``a + b`` adds.

    A row is one token through the draft's layers; most of its cost is independent of how it is reached.

    Args:
        committed: of recorded tokens, from the target's states: one for every token but the last.
        branches: of draft tokens, in the passes that follow the first level, of the roots that were counted.
        skipped: the same of roots that a walk turned out to skip, when it looked ahead of itself.
        full_branches: those that a replay runs that knows nothing of the answer: ``topk`` rows in each of the
            ``num_steps - 1`` passes of every root that was counted.
    """

    committed: int
    branches: int
    skipped: int
    full_branches: int

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(
            self.committed + other.committed,
            self.branches + other.branches,
            self.skipped + other.skipped,
            self.full_branches + other.full_branches,
        )

    def to_dict(self) -> dict[str, int]:
        """JSON-able."""
        return asdict(self)
