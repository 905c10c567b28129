"""Looking into a draft, a target or a trace without running it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eagle3ref.errors import Eagle3RefError
from eagle3ref.inspection.draft import DraftInspection, inspect_draft, is_draft
from eagle3ref.inspection.target import TargetInspection, inspect_target
from eagle3ref.inspection.tensors import TensorGroup
from eagle3ref.inspection.trace import TraceSummary, summarize_trace
from eagle3ref.trace import Trace
from eagle3ref.trace.format import HEADER_FILE
from eagle3ref.weights import Weights

__all__ = [
    "DraftInspection",
    "TargetInspection",
    "TensorGroup",
    "TraceSummary",
    "inspect_draft",
    "inspect_path",
    "inspect_target",
    "summarize_trace",
]


def inspect_path(
    path: str | Path,
    *,
    target: str | Path | None = None,
    check: bool = False,
    capture_points: Sequence[int] | None = None,
) -> DraftInspection | TargetInspection | TraceSummary:
    """Find out what a folder is, and look into it.

    Args:
        path: a draft, a target or a trace.
        target: for a draft, its target's folder.
        check: for a trace, read every byte of it.
        capture_points: for a draft, what it was trained on, when its files do not say so.

    Raises:
        Eagle3RefError: none of the three, or one that is damaged.
    """
    folder = Path(path)
    if (folder / HEADER_FILE).is_file():
        trace = Trace.open(folder)
        if check:
            trace.check()
        return summarize_trace(trace)
    if not (folder / "config.json").is_file():
        raise Eagle3RefError(
            f"inspecting {folder}",
            found="a folder without either" if folder.is_dir() else "a file" if folder.exists() else "no such folder",
            expected=f"a trace ({HEADER_FILE}) or a checkpoint (config.json)",
            action="Check the path.",
        )
    return inspect_draft(folder, target, capture_points) if is_draft(Weights(folder)) else inspect_target(folder)
