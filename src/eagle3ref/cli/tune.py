"""``eagle3ref tune``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eagle3ref.cli.console import stderr, stdout
from eagle3ref.cli.exit_status import DOES_NOT_AGREE
from eagle3ref.cli.options import (
    CapturePoints,
    Device,
    DTypeName,
    OptionalEngine,
    Rule,
    asked_rule,
    parse_capture_points,
    refuse_flags_before,
    torch_dtype,
    usable_device,
)
from eagle3ref.cli.setup import Setup, recorded_target, set_up
from eagle3ref.config import TreeConfig, TreeKV, default_rule
from eagle3ref.engines import engine_profile
from eagle3ref.errors import Eagle3RefError
from eagle3ref.explain import parse_server_flags
from eagle3ref.report.progress import SequenceProgress
from eagle3ref.report.tune import tune_report
from eagle3ref.report.tune_document import tune_document
from eagle3ref.trace import Trace
from eagle3ref.tune import (
    EngineLimits,
    StepTimes,
    Surface,
    TimeTable,
    advise,
    categories_of,
    check_categories,
    largest_tree,
    read_categories,
)
from eagle3ref.tune import tune as tune_trace

_SMALLEST = TreeConfig(1, 1, 2)  # what any engine runs: its limits are asked for each setting afterwards


def tune(
    context: typer.Context,
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    draft: Annotated[Path, typer.Argument(help="Checkpoint folder of the draft.")],
    topk: Annotated[str, typer.Option(metavar="1,4,8", help="Children kept per beam, each to be tried.")] = "1,4,8",
    max_num_steps: Annotated[int, typer.Option(help="Depths from 1 to this are tried.")] = 8,
    max_num_draft_tokens: Annotated[int, typer.Option(help="Trees of 2 to so many nodes are tried.")] = 64,
    tree_kv: Annotated[
        TreeKV, typer.Option(help="Rows that a tree row sees: slot as SGLang, ancestor as is right.")
    ] = "slot",
    target_step_ms: Annotated[float | None, typer.Option(help="The target on 1 token a request.")] = None,
    verify_ms: Annotated[
        str | None, typer.Option(metavar="8:12.5,64:19", help="The target on N draft tokens, interpolated between.")
    ] = None,
    draft_pass_ms: Annotated[
        str | None, typer.Option(metavar="1.2", help="One pass of the draft; or by topk, 1:1.1,8:1.3.")
    ] = None,
    draft_extend_ms: Annotated[
        str | None, typer.Option(metavar="1.5", help="The draft over N verified rows; or by N.", show_default="a pass")
    ] = None,
    overhead_ms: Annotated[float | None, typer.Option(help="Everything else in a round.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests decoded together, for these times.")] = 1,
    engine: OptionalEngine = None,
    rule: Rule = None,
    categories: Annotated[
        Path | None, typer.Option(help='JSONL: {"id": ..., "category": ...} for each prompt.', show_default=False)
    ] = None,
    category_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Instead: the category stands before it in each prompt's id.")
    ] = None,
    confidence: Annotated[float, typer.Option(min=0.51, max=0.999, help="That the best is in the set.")] = 0.95,
    target: Annotated[
        Path | None, typer.Option(help="Supplies what the draft shares.", show_default="as the trace says")
    ] = None,
    capture_points: CapturePoints = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Bounds the memory.")] = 16384,
    device: Device = "cpu",
    dtype: Annotated[DTypeName | None, typer.Option(help="Of the draft.", show_default="the trace's")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")] = False,
) -> None:
    """Compare every (num_steps, topk, num_draft_tokens) on a trace, from one replay for each topk.

    Exit status 1 means that the target alone is faster than the setting that is recommended.
    """
    refuse_flags_before(context, trace, draft)
    times = _times(target_step_ms, verify_ms, draft_pass_ms, draft_extend_ms, overhead_ms, batch_size)
    topks = _topks(topk)
    recorded = Trace.open(trace)
    if times is not None:  # sizes that were not measured are told before the work
        for children in topks:
            times.round_times(largest_tree(children, max_num_steps, max_num_draft_tokens))
    groups = _groups(categories, category_separator, recorded, times)
    _put_tree_aside(context, engine)
    setup = set_up(
        context,
        engine,
        draft,
        target or recorded_target(recorded),
        _SMALLEST,
        asked_rule(rule, sampled_drafts=False),
        capture_points=parse_capture_points(capture_points),
        device=usable_device(device),
        dtype=torch_dtype(dtype) if dtype else recorded.header.torch_dtype,
    )
    mode = setup.tree.tree_kv if setup.as_engine is not None else tree_kv
    surface = _tuned(recorded, setup, topks, max_num_steps, max_num_draft_tokens, mode, batch_tokens)
    limits = None if setup.as_engine is None else EngineLimits(setup.as_engine.explanation)
    advice = advise(surface, times, limits=limits, categories=groups, confidence=confidence)
    if as_json:
        settings = {"device": device, "batch_tokens": batch_tokens, "engine": engine, "flags": context.args}
        document = tune_document(advice, recorded, setup.draft, draft, settings)
        typer.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        as_engine = "" if engine is None else f" as {engine}"
        stdout.print(tune_report(advice, f"{draft} on {trace}{as_engine}"))
    if advice.worth is not None and advice.worth.verdict == "loses":
        raise typer.Exit(DOES_NOT_AGREE)


def _tuned(
    trace: Trace, setup: Setup, topks: list[int], most_steps: int, most_tokens: int, tree_kv: TreeKV, batch_tokens: int
) -> Surface:
    # Every engine is greedy at temperature 0; what set_up found is its rule for draws.
    is_greedy = default_rule(trace.header.sampling.temperature).name == "greedy"
    with SequenceProgress(stderr) as progress:
        advance = progress.begin("rank", len(trace) * len(topks))
        return tune_trace(
            trace,
            setup.draft,
            topks=topks,
            max_num_steps=most_steps,
            max_num_draft_tokens=most_tokens,
            tree_kv=tree_kv,
            rule=None if is_greedy and setup.as_engine is not None else setup.rule,
            batch_tokens=batch_tokens,
            on_sequence=lambda ranks: advance(ranks.recorded_tokens),
        )


def _put_tree_aside(context: typer.Context, engine: str | None) -> None:
    """SGLang's defaults may be a tree that the backend refuses, while a chain of one step runs everywhere."""
    if engine is None:
        return
    dialect = engine_profile(engine).engine
    flags = parse_server_flags(dialect, context.args)
    said = [name for name in ("num_steps", "topk", "num_draft_tokens") if getattr(flags, name) is not None]
    if said:
        raise _refusal(
            f"server flags that set {', '.join(said)}",
            "none of these: every setting is tried",
            "Leave them out, and write --topk, --max-num-steps and --max-num-draft-tokens.",
        )
    if dialect == "SGLang":
        for name, count in (("num-steps", 1), ("eagle-topk", 1), ("num-draft-tokens", 2)):
            context.args += [f"--speculative-{name}", str(count)]


def _topks(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise _refusal(f"--topk {text!r}", "numbers such as 1,4,8", "Correct it.") from error


def _times(
    target_step_ms: float | None,
    verify_ms: str | None,
    draft_pass_ms: str | None,
    draft_extend_ms: str | None,
    overhead_ms: float | None,
    batch_size: int,
) -> StepTimes | None:
    needed = {"--target-step-ms": target_step_ms, "--verify-ms": verify_ms, "--draft-pass-ms": draft_pass_ms}
    if target_step_ms is not None and verify_ms is not None and draft_pass_ms is not None:
        extend = None if draft_extend_ms is None else TimeTable.parse(draft_extend_ms)
        verify, draft_pass = TimeTable.parse(verify_ms), TimeTable.parse(draft_pass_ms)
        return StepTimes(target_step_ms, verify, draft_pass, extend, overhead_ms, batch_size)
    given = [*needed.values(), draft_extend_ms, overhead_ms]
    if any(value is not None for value in given) or batch_size > 1:
        missing = ", ".join(name for name, value in needed.items() if value is None)
        raise _refusal(
            f"times without {missing}",
            "all three of a target step, verify steps by size, and a draft pass",
            "Give it, or no time at all: then acceptance lengths alone are compared.",
        )
    return None


def _groups(file: Path | None, separator: str | None, trace: Trace, times: StepTimes | None) -> list[str] | None:
    if file is None and separator is None:
        return None
    if file is not None and separator is not None:
        raise _refusal("--categories and --category-separator", "one of them", "Leave one out.")
    if times is None:
        action = "Give --target-step-ms, --verify-ms and --draft-pass-ms."
        raise _refusal("categories without times", "times: by acceptance alone the largest tree is best", action)
    groups = categories_of(trace.ids, separator or "") if file is None else read_categories(file, trace.ids)
    check_categories(groups)
    return groups


def _refusal(found: str, expected: str, action: str) -> Eagle3RefError:
    return Eagle3RefError("reading the options of tune", found=found, expected=expected, action=action)
