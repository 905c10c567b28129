"""``eagle3ref inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eagle3ref.cli.console import stdout
from eagle3ref.cli.options import CapturePoints, parse_capture_points
from eagle3ref.inspection import DraftInspection, inspect_path
from eagle3ref.report.inspection import inspection_report


def inspect(
    path: Annotated[Path, typer.Argument(help="A draft, a target or a trace.")],
    target: Annotated[Path | None, typer.Option(help="The draft's target: lets every check run.")] = None,
    capture_points: CapturePoints = None,
    check: Annotated[bool, typer.Option("--check", help="Of a trace, read every byte.")] = False,
) -> None:
    """Say what a folder is and what is odd about it."""
    found = inspect_path(path, target=target, check=check, capture_points=parse_capture_points(capture_points))
    stdout.print(inspection_report(found))
    if check:
        stdout.print("checked: every byte is as it was recorded", highlight=False)
    if isinstance(found, DraftInspection) and found.problem is not None:
        raise found.problem
