"""Looking into a draft, a target or a trace without running it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eagle3ref.errors import Eagle3RefError
from eagle3ref.inspection.corpus import Coverage
from eagle3ref.inspection.draft import DraftInspection, inspect_draft, is_draft
from eagle3ref.inspection.finding import Finding
from eagle3ref.inspection.health import Health
from eagle3ref.inspection.off_argmax import OffArgmax
from eagle3ref.inspection.target import TargetInspection, inspect_target
from eagle3ref.inspection.tensors import TensorGroup
from eagle3ref.inspection.trace import TraceSummary, summarize_trace
from eagle3ref.target.checkpoint import refuse_gguf
from eagle3ref.trace import Trace
from eagle3ref.trace.format import HEADER_FILE
from eagle3ref.weights import Weights

__all__ = [
    "Coverage",
    "DraftInspection",
    "Finding",
    "Health",
    "OffArgmax",
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
    corpus: str | Path | None = None,
) -> DraftInspection | TargetInspection | TraceSummary:
    """Find out what a folder is, and look into it.

    Args:
        path: a draft, a target or a trace.
        target: for a draft, its target's folder.
        check: for a trace, read every byte of it.
        capture_points: for a draft, what it was trained on, when its files do not say so.
        corpus: for a draft, tokens to hold against its vocabulary, see ``inspect_draft``.

    Raises:
        Eagle3RefError: none of the three, one that is damaged, or an option that does not apply to what it is.
    """
    folder = Path(path)
    of_drafts = {"target": target, "capture points": capture_points, "corpus": corpus}
    given = [name for name, value in of_drafts.items() if value is not None]
    if (folder / HEADER_FILE).is_file():
        _refuse_options(folder, "a trace", given)
        trace = Trace.open(folder)
        if check:
            trace.check()
        return summarize_trace(trace)
    refuse_gguf(folder)
    if not (folder / "config.json").is_file():
        raise Eagle3RefError(
            f"inspecting {folder}",
            found="a folder without either" if folder.is_dir() else "a file" if folder.exists() else "no such folder",
            expected=f"a trace ({HEADER_FILE}) or a checkpoint (config.json)",
            action="Check the path.",
        )
    if is_draft(Weights(folder)):
        _refuse_options(folder, "a draft", ["check"] if check else [])
        return inspect_draft(folder, target, capture_points, corpus)
    _refuse_options(folder, "a target", [*given, *(["check"] if check else [])])
    return inspect_target(folder)


def _refuse_options(folder: Path, kind: str, given: list[str]) -> None:
    """An option that is ignored looks like one that was honoured."""
    if given:
        raise Eagle3RefError(
            f"inspecting {folder}",
            found=f"{kind}, and {' and '.join(given)} given",
            expected="target, capture points and corpus only for a draft, and check only for a trace",
            action="Leave it out, or check which folder was meant.",
        )
