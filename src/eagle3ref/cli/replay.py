"""``eagle3ref replay``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.cli.console import stderr, stdout
from eagle3ref.cli.options import (
    CapturePoints,
    Device,
    DTypeName,
    FinalNormOption,
    HiddenDoubleNorm,
    NumDraftTokens,
    NumSteps,
    OptionalEngine,
    RopeTheta,
    Rule,
    SampledDrafts,
    TopK,
    asked_rule,
    asked_tree,
    parse_capture_points,
    refuse_flags_before,
    torch_dtype,
    usable_device,
)
from eagle3ref.cli.setup import Setup, is_of_use, recorded_target, set_up
from eagle3ref.config import TreeKV, default_rule
from eagle3ref.replay import replay as replay_trace
from eagle3ref.report.document import replay_document
from eagle3ref.report.progress import SequenceProgress
from eagle3ref.report.terminal import legend, replay_report
from eagle3ref.trace import Trace


def replay(
    context: typer.Context,
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    draft: Annotated[Path, typer.Argument(help="Checkpoint folder of the draft.")],
    num_steps: NumSteps = None,
    topk: TopK = None,
    num_draft_tokens: NumDraftTokens = None,
    tree_kv: Annotated[
        TreeKV, typer.Option(help="Rows that a tree row sees: slot as SGLang, ancestor as is right.")
    ] = "slot",
    engine: OptionalEngine = None,
    rule: Rule = None,
    sampled_drafts: SampledDrafts = False,
    seed: Annotated[int, typer.Option(help="Of the coins of sampled drafts.")] = 0,
    target: Annotated[
        Path | None,
        typer.Option(help="Supplies what the draft shares, and probabilities.", show_default="as the trace says"),
    ] = None,
    capture_points: CapturePoints = None,
    rope_theta: RopeTheta = None,
    hidden_double_norm: HiddenDoubleNorm = False,
    final_norm: FinalNormOption = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Bounds the memory.")] = 16384,
    device: Device = "cpu",
    dtype: Annotated[DTypeName | None, typer.Option(help="Of the draft.", show_default="the trace's")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")] = False,
) -> None:
    """Count what a draft would have had accepted on a trace."""
    refuse_flags_before(context, trace, draft)
    recorded = Trace.open(trace)
    supplier = target or recorded_target(recorded)
    setup = set_up(
        context,
        engine,
        draft,
        supplier,
        asked_tree(num_steps, topk, num_draft_tokens, tree_kv),
        asked_rule(rule, sampled_drafts),
        variant={"rope_theta": rope_theta, "hidden_double_norm": hidden_double_norm, "final_norm": final_norm},
        capture_points=parse_capture_points(capture_points),
        device=usable_device(device),
        dtype=torch_dtype(dtype) if dtype else recorded.header.torch_dtype,
    )
    counts = _replay(recorded, setup, supplier, batch_tokens, seed)
    log = None if setup.profile is None else setup.profile.log_line(counts)
    if as_json:
        settings = {"device": device, "batch_tokens": batch_tokens, "seed": seed}
        if setup.as_engine is not None:
            settings |= {"engine": setup.as_engine.explanation.case.release, "flags": context.args}
            settings |= {"engine_log": log, "differences": list(setup.as_engine.differences)}
        document = replay_document(counts, recorded, setup.draft, draft, settings)
        typer.echo(json.dumps(document, indent=1, allow_nan=False))
        return
    engine_name = "" if setup.as_engine is None else f" as {setup.as_engine.explanation.case.engine}"
    title = f"{draft} on {trace}{engine_name}, {counts.tree} (num_steps/topk/num_draft_tokens)"
    stdout.print(replay_report(counts, title, setup.profile))
    stdout.print()
    stdout.print(legend([counts]))


def _replay(trace: Trace, setup: Setup, target: Path | None, batch_tokens: int, seed: int) -> AcceptanceCounts:
    # Every engine is greedy at temperature 0; what follows draws is its rule for them.
    is_greedy = default_rule(trace.header.sampling.temperature).name == "greedy"
    rule = None if is_greedy and setup.profile is not None else setup.rule
    with SequenceProgress(stderr) as progress:
        advance = progress.begin("replay", len(trace))
        return replay_trace(
            trace,
            setup.draft,
            setup.tree,
            rule=rule,
            target=target if is_of_use(target, trace, rule) else None,
            seed=seed,
            batch_tokens=batch_tokens,
            on_sequence=lambda rounds: advance(rounds.recorded_tokens),
        )
