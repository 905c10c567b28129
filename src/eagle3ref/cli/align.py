"""``eagle3ref align``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from eagle3ref.align import DEFAULT_MAX_SEQUENCES, DEFAULT_MAX_TOKENS, Alignment, beside_draft, ids_by_engine
from eagle3ref.align import align as find_layers
from eagle3ref.cli.console import stderr, stdout
from eagle3ref.cli.exit_status import CANNOT_TELL, DOES_NOT_AGREE
from eagle3ref.cli.options import Devices, DTypeName, Memory, parse_memory, torch_dtype, usable_device
from eagle3ref.config import DraftConfig, TargetConfig
from eagle3ref.config.target import KIMI_MODEL_TYPES
from eagle3ref.draft.capture_points import resolve_capture_points
from eagle3ref.dumps import FORMATS, Dump, read_dump
from eagle3ref.report.align import align_report
from eagle3ref.report.progress import SequenceProgress
from eagle3ref.target import Target, load_target
from eagle3ref.trace import Prompt, Trace, read_prompts
from eagle3ref.trace.format import HEADER_FILE

_NO_LIMIT = 2**31 - 1  # a trace does not tell how long texts may be, and nothing here depends on it


def align(
    dump: Annotated[Path, typer.Argument(help="File or folder of hidden states that others wrote.")],
    reference: Annotated[Path, typer.Argument(metavar="TRACE-or-TARGET", help="A trace, or the target's folder.")],
    labels: Annotated[
        str | None,
        typer.Option(metavar="embed,layer3,31", help="What the states are called.", show_default="as in the dump"),
    ] = None,
    draft: Annotated[Path | None, typer.Option(help="Say whether this draft reads these layers.")] = None,
    format: Annotated[str | None, typer.Option(help=", ".join(FORMATS), show_default="told from the files")] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSONL of the prompts, for dumps without their tokens.")] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Rows of each sequence that are compared.")] = (
        DEFAULT_MAX_TOKENS
    ),
    sequences: Annotated[int, typer.Option(min=1, help="Sequences that are compared.")] = DEFAULT_MAX_SEQUENCES,
    weights: Annotated[
        Literal["resident", "stream"] | None,
        typer.Option(help="Of Kimi-K2: load them, or read them layer by layer.", show_default="stream for Kimi-K2"),
    ] = None,
    memory: Memory = None,
    device: Devices = "cpu",
    dtype: Annotated[
        DTypeName | None, typer.Option(help="To run the target in.", show_default="that of the dump")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")] = False,
) -> None:
    """Find the target layers that dumped states come from, and say what their labels should have been.

    Exit status 1 means wrong labels or states that no draft can read, 3 that it cannot be told.
    """
    trace = Trace.open(reference) if (reference / HEADER_FILE).exists() else None
    config = TargetConfig.from_folder(reference) if trace is None else _recorded_config(trace)
    given = [] if prompts is None else _prompts(prompts, config)
    source = read_dump(dump, format=format, target=config, prompts={prompt.id: prompt for prompt in given})
    drafted = None if draft is None else _draft_points(draft, config.num_layers)
    on_hand: Trace | Target
    if trace is None:
        kind = _dtype(source) if dtype is None else torch_dtype(dtype)
        how = weights or ("stream" if config.model_type in KIMI_MODEL_TYPES else "resident")
        for name in device.split(","):
            usable_device(name)
        on_hand = load_target(reference, device=device, dtype=kind, weights=how, memory=parse_memory(memory))
    else:
        on_hand = trace
    with SequenceProgress(stderr) as progress:
        advance = progress.begin("layers", config.num_layers) if trace is None else lambda _: None
        found = find_layers(
            source,
            on_hand,
            claimed=None if labels is None else [label.strip() for label in labels.split(",")],
            max_tokens=max_tokens,
            max_sequences=sequences,
            on_layer=lambda _: advance(0),
        )
    beside = None if drafted is None else beside_draft(found, str(draft), drafted)
    if as_json:
        typer.echo(json.dumps(_document(found, source, beside), indent=1, allow_nan=False))
    else:
        stdout.print(align_report(found, _title(source, reference), beside))
    if found.verdict != "right":
        raise typer.Exit(DOES_NOT_AGREE if found.verdict == "wrong" else CANNOT_TELL)


def _recorded_config(trace: Trace) -> TargetConfig:
    target = trace.header.target
    sizes = (target.num_layers, target.hidden_size, target.vocab_size)
    return TargetConfig(target.name, target.path, target.model_type, *sizes, _NO_LIMIT, ())


def _prompts(file: Path, config: TargetConfig) -> list[Prompt]:
    return read_prompts(file, Path(config.path))[0]


def _draft_points(draft: Path, num_layers: int) -> tuple[int, ...]:
    return resolve_capture_points(DraftConfig.from_folder(draft), num_layers, None, str(draft))[0]


def _dtype(dump: Dump) -> torch.dtype:
    """Of the dump's states, so that equal ones can be seen to be equal; float16 overflows in many targets."""
    sequence = dump.sequence(dump.ids[0])
    states = [*sequence.states.values(), *([] if sequence.final is None else [sequence.final])]
    known = (torch.bfloat16, torch.float32, torch.float64)
    return states[0].dtype if states and states[0].dtype in known else torch.float32


def _title(dump: Dump, reference: Path) -> str:
    sequences = f"{len(dump):,} sequence{'s' * (len(dump) != 1)}"
    return f"{shlex.quote(str(dump.path))} ({dump.format}), {sequences}, beside {reference}"


def _document(found: Alignment, dump: Dump, draft: str | None) -> dict[str, object]:
    return {
        "document_version": 1,
        **found.to_dict(),
        "format": dump.format,
        "believed": None if dump.capture_points is None else list(dump.capture_points),
        "reason": dump.reason,
        "engine_ids": ids_by_engine(found),
        "draft": draft,
    }
