"""``eagle3ref inspect``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eagle3ref.cli.console import stdout
from eagle3ref.cli.exit_status import DOES_NOT_AGREE
from eagle3ref.cli.options import CapturePoints, parse_capture_points
from eagle3ref.inspection import DraftInspection, inspect_path
from eagle3ref.report.inspection import inspection_report
from eagle3ref.report.inspection_document import inspection_document


def inspect(
    path: Annotated[Path, typer.Argument(help="A draft, a target or a trace.")],
    target: Annotated[Path | None, typer.Option(help="The draft's target: lets every check run.")] = None,
    capture_points: CapturePoints = None,
    corpus: Annotated[
        Path | None, typer.Option(help="A trace, or prompts in JSONL, to count against the draft's vocabulary.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Of a trace, read every byte.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")] = False,
) -> None:
    """Say what a folder is and what is odd about it; of a draft, whether its weights are sound.

    Exit status 1 means a draft with a fault in its weights.
    """
    points = parse_capture_points(capture_points)
    found = inspect_path(path, target=target, check=check, capture_points=points, corpus=corpus)
    if as_json:
        typer.echo(json.dumps(inspection_document(found), indent=1, allow_nan=False))
    else:
        stdout.print(inspection_report(found))
        if check:
            stdout.print("checked: every byte is as it was recorded", highlight=False)
    if isinstance(found, DraftInspection) and found.problem is not None:
        raise found.problem
    if isinstance(found, DraftInspection) and found.is_faulty:
        raise typer.Exit(DOES_NOT_AGREE)
