"""``eagle3ref capture``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from eagle3ref import trace as traces
from eagle3ref.cli.console import stderr, stdout
from eagle3ref.cli.options import (
    DEFAULT_TREE,
    CapturePoints,
    Devices,
    DTypeName,
    KeptMass,
    KeptTokens,
    Memory,
    NumDraftTokens,
    NumSteps,
    Seed,
    Temperature,
    TopK,
    Weights,
    asked_tree,
    parse_capture_points,
    parse_memory,
    torch_dtype,
    usable_device,
)
from eagle3ref.config import DraftConfig, TargetConfig, TreeConfig
from eagle3ref.draft import load_draft
from eagle3ref.draft.capture_points import resolve_capture_points
from eagle3ref.engines import default_capture_points
from eagle3ref.errors import Eagle3RefError
from eagle3ref.inspection import summarize_trace
from eagle3ref.kernels import get_ops
from eagle3ref.kernels.native_library import why_not
from eagle3ref.report.inspection import trace_report
from eagle3ref.report.plan import plan_report
from eagle3ref.report.progress import LayerProgress, SequenceProgress
from eagle3ref.target import Target, load_target
from eagle3ref.target.base import device_of
from eagle3ref.target.checkpoint import refuse_gguf
from eagle3ref.target.generate import Sampling
from eagle3ref.target.inputs import check_capture_points
from eagle3ref.target.streaming import StreamedTarget
from eagle3ref.trace.access import writing
from eagle3ref.trace.format import HEADER_FILE, read_index
from eagle3ref.trace.plan import CapturePlan


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
    speculate: Annotated[bool, typer.Option("--speculate", help="Answer with the draft: fewer forwards.")] = False,
    num_steps: NumSteps = None,
    topk: TopK = None,
    num_draft_tokens: NumDraftTokens = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Prompts that run together.", show_default="32; all that fit if streamed"),
    ] = None,
    final_hidden_state: Annotated[bool, typer.Option("--final-hidden-state", help="Record it too.")] = False,
    weights: Weights = "resident",
    memory: Memory = None,
    device: Devices = "cpu",
    dtype: Annotated[DTypeName, typer.Option(help="Of weights and activations.")] = "bfloat16",
    plan: Annotated[bool, typer.Option("--plan", help="With --weights stream: say what it would take.")] = False,
) -> None:
    """Run a target over prompts and record tokens and hidden states."""
    tree = _speculation_tree(draft, speculate, asked_tree(num_steps, topk, num_draft_tokens))
    points = _points_to_record(target, draft, parse_capture_points(capture_points))
    given, tokenizer_sha256 = traces.read_prompts(prompts, target)
    settings: dict[str, Any] = {
        "capture_points": points,
        "max_new_tokens": max_new_tokens,
        "sampling": Sampling(temperature, top_p, top_k, seed),
        "batch_size": batch_size,
        "final_hidden_state": final_hidden_state,
        "tokenizer_sha256": tokenizer_sha256,
    }
    if plan and weights != "stream":
        raise typer.BadParameter("--plan goes with --weights stream")
    dequantizer = _dequantizer(device)
    model = load_target(
        target,
        device=_usable_devices(device),
        dtype=torch_dtype(dtype),
        weights=weights,
        memory=parse_memory(memory),
        dequantize_int4=get_ops(dequantizer).dequantize_int4,
    )
    if tree is not None and draft is not None:
        place = device_of(model)
        settings |= {"tree": tree, "draft": load_draft(draft, target=model, device=place, dtype=torch_dtype(dtype))}
    if plan and isinstance(model, StreamedTarget):
        ahead = traces.plan_capture(model, given, output, **settings)
        _print_plan(ahead, dequantizer)
        ahead.check_room(output)
        return
    run = _capture_streamed if isinstance(model, StreamedTarget) else _capture_resident
    stdout.print(trace_report(summarize_trace(run(model, given, output, dequantizer, settings))))


def _capture_resident(
    target: Target, prompts: list[traces.Prompt], output: Path, _: str, settings: dict[str, Any]
) -> traces.Trace:
    """With a bar by sequence."""
    num_done = len(_recorded_ids(output) & {prompt.id for prompt in prompts})
    if num_done:
        stderr.print(f"{num_done} of {len(prompts)} sequences are in {output} already", highlight=False, markup=False)
    with SequenceProgress(stderr) as progress:
        advance = progress.begin("capture", len(prompts), num_done)
        return traces.capture(
            target, prompts, output, on_sequence=lambda sequence: advance(len(sequence.answer)), **settings
        )


def _capture_streamed(
    target: Target, prompts: list[traces.Prompt], output: Path, dequantizer: str, settings: dict[str, Any]
) -> traces.Trace:
    """With the plan first, then a bar by layer."""
    with LayerProgress(stderr) as progress:

        def begin(plan: CapturePlan) -> None:
            _print_plan(plan, dequantizer)
            if plan.passes:
                progress.begin(plan)

        return traces.capture(
            target,
            prompts,
            output,
            on_plan=begin,
            on_round=progress.on_round,
            on_layer=progress.on_layer,
            **settings,
        )


def _print_plan(plan: CapturePlan, dequantizer: str) -> None:
    speeds = plan.measure() if plan.passes else None
    stderr.print(plan_report(plan, speeds, f"the {dequantizer} dequantizer"))


def _dequantizer(device: str) -> Literal["native", "torch"]:
    """The native twin where it is built: the same bits, faster. It is for the CPU."""
    return "native" if set(device.split(",")) == {"cpu"} and why_not("cpu") is None else "torch"


def _usable_devices(names: str) -> str:
    for name in names.split(","):
        usable_device(name)
    return names


def _speculation_tree(draft: Path | None, speculate: bool, asked: TreeConfig | None) -> TreeConfig | None:
    """The tree to answer with; None without speculation."""
    if speculate and draft is not None:
        return asked or DEFAULT_TREE
    if speculate or asked is not None:
        raise Eagle3RefError(
            "reading the options of the answers",
            found="--speculate without --draft" if speculate else "a tree without --speculate",
            expected="--draft and --speculate for answers with a draft; the tree's settings only with them",
            action="Add what is missing, or leave the rest out.",
        )
    return None


def _recorded_ids(output: Path) -> set[str]:
    """Ids of the sequences that an earlier capture left."""
    with writing(output):
        return {entry.id for entry in read_index(output)[1]} if (output / HEADER_FILE).is_file() else set()


def _points_to_record(target: Path, draft: Path | None, given: tuple[int, ...] | None) -> tuple[int, ...]:
    """The capture points, after saying where they come from; all that can be refused before the target is loaded."""
    refuse_gguf(target)  # which may have no config.json
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
