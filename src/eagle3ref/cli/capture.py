"""``eagle3ref capture``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from eagle3ref import trace as traces
from eagle3ref.cli.console import stderr, stdout
from eagle3ref.cli.options import (
    CapturePoints,
    Device,
    DTypeName,
    KeptMass,
    KeptTokens,
    Seed,
    Temperature,
    parse_capture_points,
    torch_dtype,
    usable_device,
)
from eagle3ref.config import DraftConfig, TargetConfig
from eagle3ref.draft.capture_points import resolve_capture_points
from eagle3ref.engines import default_capture_points
from eagle3ref.inspection import summarize_trace
from eagle3ref.report.inspection import trace_report
from eagle3ref.report.progress import SequenceProgress
from eagle3ref.target import load_target
from eagle3ref.target.generate import Sampling
from eagle3ref.target.inputs import check_capture_points
from eagle3ref.trace.access import writing
from eagle3ref.trace.format import HEADER_FILE, read_index


def capture(
    target: Annotated[Path, typer.Argument(help="Checkpoint folder of the target.")],
    prompts: Annotated[Path, typer.Argument(help="JSONL: tokens, text or messages on each line.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="TRACE", help="New, or one to go on with.")],
    draft: Annotated[Path | None, typer.Option(help="Record what this draft needs.")] = None,
    capture_points: CapturePoints = None,
    max_new_tokens: Annotated[int, typer.Option(help="Of each answer.")] = 256,
    temperature: Temperature = 0.0,
    top_p: KeptMass = 1.0,
    top_k: KeptTokens = 0,
    seed: Seed = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts that run together.")] = 32,
    final_hidden_state: Annotated[bool, typer.Option("--final-hidden-state", help="Record it too.")] = False,
    device: Device = "cpu",
    dtype: Annotated[DTypeName, typer.Option(help="Of weights and activations.")] = "bfloat16",
) -> None:
    """Run a target over prompts and record tokens and hidden states."""
    trace = _capture(
        target,
        prompts,
        output,
        usable_device(device),
        torch_dtype(dtype),
        capture_points=_points_to_record(target, draft, parse_capture_points(capture_points)),
        max_new_tokens=max_new_tokens,
        sampling=Sampling(temperature, top_p, top_k, seed),
        batch_size=batch_size,
        final_hidden_state=final_hidden_state,
    )
    stdout.print(trace_report(summarize_trace(trace)))


def _capture(
    target_folder: Path, prompts_file: Path, output: Path, device: torch.device, dtype: torch.dtype, **settings: Any
) -> traces.Trace:
    """With a progress bar; ``settings`` go to ``eagle3ref.capture``."""
    prompts, tokenizer_sha256 = traces.read_prompts(prompts_file, target_folder)
    num_done = len(_recorded_ids(output) & {prompt.id for prompt in prompts})
    if num_done:
        stderr.print(f"{num_done} of {len(prompts)} sequences are in {output} already", highlight=False, markup=False)
    target = load_target(target_folder, device=device, dtype=dtype)
    with SequenceProgress(stderr) as progress:
        advance = progress.begin("capture", len(prompts), num_done)
        return traces.capture(
            target,
            prompts,
            output,
            tokenizer_sha256=tokenizer_sha256,
            on_sequence=lambda sequence: advance(len(sequence.answer)),
            **settings,
        )


def _recorded_ids(output: Path) -> set[str]:
    """Ids of the sequences that an earlier capture left."""
    with writing(output):
        return {entry.id for entry in read_index(output)[1]} if (output / HEADER_FILE).is_file() else set()


def _points_to_record(target: Path, draft: Path | None, given: tuple[int, ...] | None) -> tuple[int, ...]:
    """The capture points, after saying where they come from; all that can be refused before the target is loaded."""
    config = TargetConfig.from_folder(target)
    num_layers = config.num_layers
    drafted = None if draft is None else DraftConfig.from_folder(draft)
    if drafted is not None:
        drafted.check_target(config.hidden_size, config.vocab_size, f"capturing {target} for the draft {draft}")
    if given is not None:
        points, origin = given, "given by --capture-points"
        check_capture_points(given, num_layers)
    elif drafted is not None:
        points, origin = resolve_capture_points(drafted, num_layers, None, str(draft))
    else:
        points, origin = default_capture_points(num_layers), f"the default (2, n // 2, n - 3) for {num_layers} layers"
    stderr.print(f"capture points {points}: {origin}", highlight=False, markup=False)
    return points
