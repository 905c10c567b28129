"""What follows from the layers that were found: the ids for which engines capture them, the drafts that read them."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3ref.align.align import Alignment
from eagle3ref.engines import PROFILES, ids_that_capture

_SHOWN_ENGINES = ("sglang", "vllm")


def ids_by_engine(found: Alignment) -> dict[str, tuple[int, ...] | None]:
    """``sglang==0.5.23`` -> the layer ids under which it captures these streams, None if under none.

    Empty if the states are no different streams in ascending order, which is all that an engine can capture.
    """
    points = found.capture_points
    if points is None or list(points) != sorted(set(points)):
        return {}
    newest = [PROFILES[package][-1] for package in _SHOWN_ENGINES]
    return {profile.name: ids_that_capture(profile, points, found.model_type, found.num_layers) for profile in newest}


def beside_draft(found: Alignment, draft: str, draft_points: Sequence[int]) -> str:
    """Whether a draft that was trained on these capture points can be trained on, or replayed with, the dump.

    Args:
        found: the dump.
        draft: its name.
        draft_points: what it was trained on, as its config.json says.
    """
    trained, points = ", ".join(map(str, draft_points)), found.capture_points
    if points is None:
        return f"{draft} reads points {trained}; not all of the dumped states could be named as streams."
    if tuple(draft_points) == points:
        return f"{draft} reads points {trained}, and these are they."
    if sorted(draft_points) == sorted(points):
        return f"{draft} reads points {trained}, which are here in another order."
    return f"{draft} reads points {trained}, not {', '.join(map(str, points))}: this dump is of no use to it."
