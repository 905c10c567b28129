"""All positions of a trace at once, or a server's walk, with only the draft rows that can change what is accepted.

Twins of ``replay``: the same integers, chosen by the caller.
"""

from eagle3ref.positions.positions import (
    POSITIONS_BATCH_TOKENS,
    PositionReplay,
    Positions,
    rank_positions,
    replay_positions,
)
from eagle3ref.positions.ranks import BEYOND, SequenceRanks
from eagle3ref.positions.row_counts import RowCounts
from eagle3ref.positions.visits import visited_positions, walk_positions

__all__ = [
    "BEYOND",
    "POSITIONS_BATCH_TOKENS",
    "PositionReplay",
    "Positions",
    "RowCounts",
    "SequenceRanks",
    "rank_positions",
    "replay_positions",
    "visited_positions",
    "walk_positions",
]
