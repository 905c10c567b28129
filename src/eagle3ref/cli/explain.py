"""``eagle3ref explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eagle3ref.cli.console import stdout
from eagle3ref.cli.exit_status import DOES_NOT_AGREE
from eagle3ref.cli.options import CapturePoints, Engine, parse_capture_points, refuse_flags_before
from eagle3ref.explain import explain as explain_wiring
from eagle3ref.report.explanation import explanation_report


def explain(
    context: typer.Context,
    draft: Annotated[Path, typer.Argument(help="Checkpoint folder of the draft.")],
    target: Annotated[Path, typer.Argument(help="Checkpoint folder of the target.")],
    engine: Engine,
    prompt_length: Annotated[int | None, typer.Option(min=1, help="Tokens of the longest sequence.")] = None,
    capture_points: CapturePoints = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")] = False,
) -> None:
    """Say what a server would really run, and what goes wrong, without starting it.

    All other words are the server's own flags, as you type them there. They go last.
    """
    refuse_flags_before(context, draft, target)
    explanation = explain_wiring(
        draft,
        target,
        engine,
        context.args,
        prompt_length=prompt_length,
        capture_points=parse_capture_points(capture_points),
    )
    if as_json:
        typer.echo(json.dumps(explanation.to_dict(), indent=1, allow_nan=False))
    else:
        stdout.print(explanation_report(explanation))
    if explanation.is_wrong:
        raise typer.Exit(DOES_NOT_AGREE)
