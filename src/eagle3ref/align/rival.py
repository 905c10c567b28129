"""The place that comes nearest to being named in the place of the nearest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from eagle3ref.align.measure import Distances, Place

# A place is named if no other place is nearer on more than the rest of the rows. On unrelated noise it is half of them.
NEARER_ROWS = 0.9
# Fewer rows than that may all be nearer by accident: then the runner-up must be that much farther off. Rows that are so
# much nearer to another place come from there.
FEW_ROWS, CLEARLY = 5, 0.5


class Rival(NamedTuple):
    """The place that comes nearest to being the one named.

    Args:
        place: None if only one place was looked at.
        nearer_rows: share of the rows on which the best place is nearer.
        clearly_nearer: share of the rows on which the rival is, and clearly.
        is_close: whether so few rows cannot tell the two apart.
    """

    place: Place | None
    nearer_rows: float = 1.0
    clearly_nearer: float = 0.0
    is_close: bool = False


def strongest_rival(ranked: Sequence[Place], distances: Mapping[Place, Distances], is_scaled: bool) -> Rival:
    """The runner-up; or, of places that are nearer than the best on too many rows, the clearest such."""
    rivals = [_versus(ranked[0], place, distances, is_scaled) for place in ranked[1:]]
    if not rivals:
        return Rival(None)
    strongest = max(rivals, key=lambda rival: (rival.clearly_nearer, -rival.nearer_rows))
    if strongest.clearly_nearer <= 1 - NEARER_ROWS:
        strongest = min(rivals, key=lambda rival: rival.nearer_rows)
    return strongest if strongest.nearer_rows < NEARER_ROWS else rivals[0]


def _versus(best: Place, other: Place, distances: Mapping[Place, Distances], is_scaled: bool) -> Rival:
    here, there = (1 - each.cosine if is_scaled else each.error for each in (distances[best], distances[other]))
    counted = torch.isfinite(here) & torch.isfinite(there)
    if best.boundary == other.boundary:  # where two ways to lay rows agree, neither is nearer
        counted &= here != there
    here, there = here[counted], there[counted]
    if not len(here):
        return Rival(other)
    is_close = len(here) < FEW_ROWS and median(here) > CLEARLY * median(there)
    return Rival(other, _share(here < there), _share(there < CLEARLY * here), is_close)


def _share(rows: Tensor) -> float:
    return float(rows.double().mean())


def median(values: Tensor) -> float:
    """Over the rows that have a value."""
    return float(values.nanmedian())
