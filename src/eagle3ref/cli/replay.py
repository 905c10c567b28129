"""``eagle3ref replay``."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.cli.console import stderr, stdout
from eagle3ref.cli.options import CapturePoints, Device, DType, parse_capture_points, torch_dtype, usable_device
from eagle3ref.config import TreeConfig
from eagle3ref.draft import Eagle3Draft, load_draft
from eagle3ref.replay import replay as replay_trace
from eagle3ref.report.document import replay_document
from eagle3ref.report.progress import SequenceProgress
from eagle3ref.report.terminal import legend, replay_report
from eagle3ref.trace import Trace
from eagle3ref.trace.format import file_sha256


class TreeKVChoice(str, Enum):
    """See ``TreeConfig.tree_kv``."""

    slot = "slot"
    ancestor = "ancestor"


def replay(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    draft: Annotated[Path, typer.Argument(help="Checkpoint folder of the draft.")],
    num_steps: Annotated[int, typer.Option(help="Depth of the tree.")] = 3,
    topk: Annotated[int, typer.Option(help="Children kept per beam; 1 is a chain.")] = 1,
    num_draft_tokens: Annotated[int, typer.Option(help="Nodes verified per round, the root included.")] = 4,
    tree_kv: Annotated[
        TreeKVChoice, typer.Option(help="Rows that a tree row sees: slot as SGLang, ancestor as is right.")
    ] = TreeKVChoice.slot,
    target: Annotated[
        Path | None, typer.Option(help="Supplies what the draft shares.", show_default="as the trace says")
    ] = None,
    capture_points: CapturePoints = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Bounds the memory.")] = 16384,
    device: Device = "cpu",
    dtype: Annotated[DType | None, typer.Option(help="Of the draft.", show_default="the trace's")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")] = False,
) -> None:
    """Count what a draft would have had accepted on a trace."""
    tree = TreeConfig(num_steps, topk, num_draft_tokens, tree_kv.value)
    recorded = Trace.open(trace)
    model = _load_draft(
        draft,
        target=target or _recorded_target(recorded),
        capture_points=parse_capture_points(capture_points),
        device=usable_device(device),
        dtype=torch_dtype(dtype) if dtype else recorded.header.torch_dtype,
    )
    counts = _replay(recorded, model, tree, batch_tokens)
    if as_json:
        _print_json(counts, recorded, model, draft, {"device": device, "batch_tokens": batch_tokens})
    else:
        _print_report(counts, f"{draft} on {trace}, {tree} (num_steps/topk/num_draft_tokens)")


def _replay(trace: Trace, draft: Eagle3Draft, tree: TreeConfig, batch_tokens: int) -> AcceptanceCounts:

    with SequenceProgress(stderr) as progress:
        advance = progress.begin("replay", len(trace))
        return replay_trace(
            trace, draft, tree, batch_tokens=batch_tokens, on_sequence=lambda rounds: advance(rounds.recorded_tokens)
        )


def _print_json(
    counts: AcceptanceCounts, trace: Trace, draft: Eagle3Draft, draft_folder: Path, settings: dict[str, object]
) -> None:

    document = replay_document(counts, trace, draft, draft_folder, settings)
    typer.echo(json.dumps(document, indent=1, allow_nan=False))


def _print_report(counts: AcceptanceCounts, title: str) -> None:

    stdout.print(replay_report(counts, title))
    stdout.print()
    stdout.print(legend([counts]))


def _recorded_target(trace: Trace) -> Path | None:
    """The target that the trace names, if it is still there: that config.json, not another one in its place."""
    recorded = trace.header.target
    try:
        same = file_sha256(Path(recorded.path) / "config.json") == recorded.config_sha256
    except (OSError, ValueError):  # nothing there, or no path at all
        return None
    return Path(recorded.path) if recorded.path and same else None


def _load_draft(folder: Path, **options: Any) -> Eagle3Draft:
    """Load, and say on stderr where everything came from; what is odd is warned of."""
    draft = load_draft(folder, **options)
    for part, origin in draft.origins.items():
        stderr.print(Text(f"{part}: {origin}", style="dim"))
    return draft
