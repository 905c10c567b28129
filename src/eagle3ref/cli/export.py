"""``eagle3ref export``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from eagle3ref.cli.console import stdout
from eagle3ref.cli.options import CapturePoints, FinalNorm, HiddenDoubleNorm, RopeTheta, parse_capture_points
from eagle3ref.draft import export_draft, load_draft


class Format(str, Enum):
    """See ``export_draft``."""

    sglang = "sglang"
    vllm = "vllm"
    speculators = "speculators"


def export(
    draft: Annotated[Path, typer.Argument(help="Checkpoint folder of the draft, of any family.")],
    format: Annotated[Format, typer.Option(help="Who is to read the copy.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="Must not exist.")],
    target: Annotated[
        Path | None, typer.Option(help="Supplies what the draft lacks, and decides SGLang's numbering of layers.")
    ] = None,
    capture_points: CapturePoints = None,
    rope_theta: RopeTheta = None,
    hidden_double_norm: HiddenDoubleNorm = False,
    final_norm: FinalNorm = None,
) -> None:
    """Write a clean copy of a draft as one engine reads it, or say what that engine would lose."""
    loaded = load_draft(
        draft,
        target=target,
        capture_points=parse_capture_points(capture_points),
        rope_theta=rope_theta,
        hidden_double_norm=hidden_double_norm,
        final_norm=final_norm.value if final_norm else None,
    )
    export_draft(loaded, output, format=format.value, target=target)
    for part, origin in loaded.origins.items():
        stdout.print(f"{part}: {origin}", highlight=False, markup=False)
    stdout.print(f"written: {output}", highlight=False, markup=False)
