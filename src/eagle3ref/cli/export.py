"""``eagle3ref export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eagle3ref.cli.console import stdout
from eagle3ref.cli.options import CapturePoints, FinalNormOption, HiddenDoubleNorm, RopeTheta, parse_capture_points
from eagle3ref.draft import ExportFormat, export_draft, load_draft


def export(
    draft: Annotated[Path, typer.Argument(help="Checkpoint folder of the draft, of any family.")],
    format: Annotated[ExportFormat, typer.Option(help="Who is to read the copy.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="Must not exist.")],
    target: Annotated[
        Path | None,
        typer.Option(help="Needed by a draft without an embedding of its own; decides SGLang's numbering of layers."),
    ] = None,
    capture_points: CapturePoints = None,
    rope_theta: RopeTheta = None,
    hidden_double_norm: HiddenDoubleNorm = False,
    final_norm: FinalNormOption = None,
) -> None:
    """Write a clean copy of a draft as one engine reads it, or say what that engine would lose."""
    loaded = load_draft(
        draft,
        target=target,
        capture_points=parse_capture_points(capture_points),
        rope_theta=rope_theta,
        hidden_double_norm=hidden_double_norm,
        final_norm=final_norm,
    )
    export_draft(loaded, output, format=format, target=target)
    for part, origin in loaded.origins.items():
        stdout.print(f"{part}: {origin}", highlight=False, markup=False)
    stdout.print(f"written: {output}", highlight=False, markup=False)
