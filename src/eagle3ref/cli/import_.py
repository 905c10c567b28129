"""``eagle3ref import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eagle3ref.cli.console import stderr, stdout
from eagle3ref.cli.options import CapturePoints, KeptMass, KeptTokens, parse_capture_points
from eagle3ref.config import TargetConfig
from eagle3ref.dumps import FORMATS, FinalState, import_dump, read_dump
from eagle3ref.inspection import summarize_trace
from eagle3ref.report.inspection import trace_report
from eagle3ref.report.progress import SequenceProgress
from eagle3ref.trace import Prompt, RecordedSampling, Trace, read_prompts
from eagle3ref.trace.format import HEADER_FILE


def import_(
    dump: Annotated[Path, typer.Argument(help="File or folder of hidden states that others wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="TRACE", help="New, or one to go on with.")],
    target: Annotated[Path, typer.Option(help="Checkpoint folder of the target; config.json is enough.")],
    format: Annotated[str | None, typer.Option(help=", ".join(FORMATS), show_default="told from the files")] = None,
    capture_points: CapturePoints = None,
    prompts: Annotated[Path | None, typer.Option(help="JSONL: where the prompts end, for dumps without it.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the answers.", show_default="greedy")] = None,
    top_p: KeptMass = 1.0,
    top_k: KeptTokens = 0,
    final_state: Annotated[
        FinalState | None,
        typer.Option(help="Of the final states: normed already, not yet, or not wanted.", show_default="found out"),
    ] = None,
    skip_damaged: Annotated[bool, typer.Option("--skip-damaged", help="Leave damaged sequences out.")] = False,
) -> None:
    """Make a trace of hidden states that a server or a training pipeline has dumped.

    Says what the dump is taken for, and why, before anything is written.
    """
    given = _prompts(prompts, target)
    source = read_dump(
        dump, format=format, target=TargetConfig.from_folder(target), prompts={prompt.id: prompt for prompt in given}
    )
    with SequenceProgress(stderr) as progress:
        check = progress.begin("check", len(source))
        write = progress.begin("write", len(source), len(_recorded_ids(output).intersection(source.ids)))
        trace = import_dump(
            source,
            output,
            target=target,
            capture_points=parse_capture_points(capture_points),
            prompts=given,
            sampling=None if temperature is None else RecordedSampling(temperature, top_p, top_k, None),
            final_state=final_state,
            skip_damaged=skip_damaged,
            on_note=lambda note: progress.console.print(f"{note}.", highlight=False, markup=False),
            on_checked=lambda _: check(0),
            on_sequence=lambda sequence: write(len(sequence.tokens)),
        )
    stdout.print(trace_report(summarize_trace(trace)))


def _recorded_ids(output: Path) -> set[str]:
    """Ids of the sequences that an earlier import left."""
    return set(Trace.open(output).ids) if (output / HEADER_FILE).is_file() else set()


def _prompts(file: Path | None, target: Path) -> list[Prompt]:
    return [] if file is None else read_prompts(file, target)[0]
