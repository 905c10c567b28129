"""The place that a dumped state comes from, or why none can be named."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from eagle3ref.align.boundary import Boundary
from eagle3ref.align.claims import Claim
from eagle3ref.align.measure import Distances, Place, Sample
from eagle3ref.align.rival import NEARER_ROWS, median, strongest_rival

Verdict = Literal["exact", "same", "scaled", "mixed", "ambiguous", "none"]

# A place fits if it is at least that much nearer than the same place at other tokens, where distances are those of
# states that have nothing to do with each other.
FITS_BELOW = 0.5
# A neighbor that a trace does not hold is ruled out below this: streams of adjacent layers are farther apart, 0.045
# where their cosine is as high as 0.999.
NEIGHBORS_ARE_FARTHER = 0.02
# It is a scaled copy if the direction is that much nearer than the state itself, and the length differs that much.
SCALED_BELOW, SCALED_BY = 0.25, 0.02


@dataclass(frozen=True)
class Candidate:
    """A place, and how near it is: medians over the rows.

    Args:
        place: boundary and rows.
        error: |dumped - target| / |dumped|.
        cosine: between the two.
        norm_ratio: |dumped| / |target|.
        shown: norm and first values of the target at the row that is shown.
    """

    place: Place
    error: float
    cosine: float
    norm_ratio: float
    shown: Sample | None

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        boundary, shift = self.place.boundary, self.place.shift
        return {
            "boundary": str(boundary),
            "kind": boundary.kind,
            "layer": boundary.layer,
            "capture_point": boundary.capture_point,
            "rows_from": shift.anchor,
            "shift": shift.rows,
            **{name: _finite(getattr(self, name)) for name in ("error", "cosine", "norm_ratio")},
        }


@dataclass(frozen=True)
class TensorMatch:
    """Where one dumped state comes from.

    Args:
        label: in the dump.
        claim: what the label says; None if it says nothing.
        verdict: ``exact``: equal within the rounding of its dtype. ``same``: the same place, computed with another
            rounding or quantization. ``scaled``: its direction, at another length. ``mixed``: some rows come from
            there, and others from ``runner_up``. ``ambiguous``: it fits, and so do others, or neighbors that fit as
            well were not looked at. ``none``: nothing fits.
        best: the nearest place; None if no row could be compared.
        runner_up: the next one; or one that is nearer on too many of the rows.
        nearer_rows: share of the rows on which ``best`` is nearer than ``runner_up``.
        unrelated: ``error`` at the best place with the rows of other tokens.
        num_rows: that were compared.
        shown: norm and first values of the dumped row that is shown.
        bad_rows: NaN, infinity or zeros; None if there are none.
        unrecorded: neighbors of the best place that the trace does not hold and that therefore were not looked at.
        only_recorded: whether only the boundaries of a trace were looked at.
    """

    label: str
    claim: Claim | None
    verdict: Verdict
    best: Candidate | None
    runner_up: Candidate | None
    nearer_rows: float
    unrelated: float
    num_rows: int
    shown: Sample | None
    bad_rows: str | None
    unrecorded: tuple[Boundary, ...] = ()
    only_recorded: bool = False

    @property
    def boundary(self) -> Boundary | None:
        """The place that is named; None if none is."""
        unnamed = self.verdict in ("mixed", "ambiguous", "none")
        return None if unnamed or self.best is None else self.best.place.boundary

    def to_dict(self) -> dict[str, Any]:
        """For programs; what is unknown is null."""
        return {
            "label": self.label,
            "claim": None if self.claim is None else self.claim.text,
            "verdict": self.verdict,
            "best": None if self.best is None else self.best.to_dict(),
            "runner_up": None if self.runner_up is None else self.runner_up.to_dict(),
            "nearer_rows": _finite(self.nearer_rows),
            "unrelated_error": _finite(self.unrelated),
            "num_rows": self.num_rows,
            "bad_rows": self.bad_rows,
            "unrecorded_neighbors": [str(boundary) for boundary in self.unrecorded],
        }


def find_match(
    label: str,
    claim: Claim | None,
    distances: Mapping[Place, Distances],
    rounding: float,
    *,
    shown: Sample | None,
    bad_rows: str | None,
    looked_at: Collection[Boundary] | None = None,
) -> TensorMatch:
    """Name the place of one state.

    Args:
        label, claim, shown, bad_rows: as in ``TensorMatch``.
        distances: to every place.
        rounding: relative, of the coarser of the two dtypes.
        looked_at: the boundaries of a trace; None if all were looked at.
    """
    by_error = sorted(distances, key=lambda place: (median(distances[place].error), _order(place)))
    by_angle = sorted(distances, key=lambda place: (_angle(distances[place]), _order(place)))
    if not by_error:
        return TensorMatch(label, claim, "none", None, None, math.nan, math.nan, 0, shown, bad_rows)
    is_scaled = _is_scaled(distances[by_angle[0]], distances[by_error[0]])
    ranked = by_angle if is_scaled else by_error
    best, here = ranked[0], distances[ranked[0]]
    error, unrelated = median(here.error), median(here.unrelated)
    rival = strongest_rival(ranked, distances, is_scaled)
    runner_up, nearer = rival.place, rival.nearer_rows
    unrecorded = _unrecorded_neighbors(best.boundary, looked_at)
    verdict: Verdict = "same"
    if not is_scaled and not error <= FITS_BELOW * unrelated:
        verdict = "none"
    elif nearer < NEARER_ROWS:
        verdict = "mixed" if rival.clearly_nearer > 1 - NEARER_ROWS else "ambiguous"
    elif rival.is_close and error > rounding:
        verdict = "ambiguous"
    elif is_scaled:
        verdict = "scaled"
    elif error <= rounding:
        verdict = "exact"
    elif unrecorded and error > NEIGHBORS_ARE_FARTHER:
        verdict = "ambiguous"
    return TensorMatch(
        label,
        claim,
        verdict,
        _candidate(best, here),
        None if runner_up is None else _candidate(runner_up, distances[runner_up]),
        nearer,
        unrelated,
        int(torch.isfinite(here.error).sum()),
        shown,
        bad_rows,
        unrecorded,
        looked_at is not None,
    )


def _is_scaled(by_angle: Distances, by_error: Distances) -> bool:
    """Whether one place has the direction of the dumped rows, and none has the rows themselves."""
    is_longer = abs(median(by_angle.norm_ratio) - 1) > SCALED_BY
    return is_longer and _angle(by_angle) < SCALED_BELOW * min(1.0, median(by_error.error))


def _unrecorded_neighbors(best: Boundary, looked_at: Collection[Boundary] | None) -> tuple[Boundary, ...]:
    if looked_at is None or best.kind != "stream":
        return ()
    near = (best.layer - 1, best.layer + 1)
    neighbors = [Boundary("stream", layer, best.num_layers) for layer in near if 0 <= layer <= best.num_layers]
    return tuple(boundary for boundary in neighbors if boundary not in looked_at)


def _candidate(place: Place, found: Distances) -> Candidate:
    return Candidate(place, median(found.error), median(found.cosine), median(found.norm_ratio), found.shown)


def _order(place: Place) -> tuple[object, ...]:
    """Of equally near places: the rows as the dump says them, streams first."""
    return not place.shift.is_none, place.boundary.kind != "stream", place.boundary, place.shift


def _angle(found: Distances) -> float:
    cosine = min(1.0, max(-1.0, median(found.cosine)))
    return math.sqrt(1 - cosine * cosine) if cosine > 0 else 1.0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
