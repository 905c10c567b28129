"""``eagle3ref demo``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from eagle3ref.cli.console import stderr, stdout
from eagle3ref.nano import draft_path, target_path
from eagle3ref.nano.demo import run_demo
from eagle3ref.report.progress import SequenceProgress
from eagle3ref.report.served import served_report
from eagle3ref.report.terminal import demo_report


def demo(
    keep: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Keep the traces there.")] = None,
) -> None:
    """Capture and replay the embedded nano models, and show what comes out."""
    with tempfile.TemporaryDirectory(prefix="eagle3ref-") as scratch, SequenceProgress(stderr) as progress:
        result = run_demo(keep or Path(scratch), progress.begin)
    runs = [(run.answers, run.draft, run.counts) for run in result.runs]
    stdout.print(demo_report(runs, result.traces))
    stdout.print()
    served = result.server
    title = f"{served.engine} on the same files, {served.checked.counts.tree}"
    stdout.print(served_report(title, served.log_line, served.checked, served.diagnosis))
    stdout.print("\nNext: what would a server make of this draft?", style="bold cyan")
    command = f"{sys.executable} -m eagle3ref explain {draft_path()} {target_path()}"  # runs without an activated venv
    stdout.print(f"{command} --engine sglang==0.5.23 --speculative-algorithm EAGLE", highlight=False, soft_wrap=True)
