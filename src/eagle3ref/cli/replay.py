"""``eagle3ref replay``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from rich.text import Text

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
from eagle3ref.config import AcceptanceRule, TreeKV, default_rule
from eagle3ref.errors import Eagle3RefError
from eagle3ref.positions import POSITIONS_BATCH_TOKENS, Positions, RowCounts, replay_positions
from eagle3ref.replay import DEFAULT_BATCH_TOKENS, SequenceRounds
from eagle3ref.replay import replay as replay_trace
from eagle3ref.report.document import replay_document
from eagle3ref.report.progress import SequenceProgress
from eagle3ref.report.rounds_file import check_rounds_file, write_rounds
from eagle3ref.report.terminal import legend, replay_report, rows_report
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
    positions: Annotated[
        Positions, typer.Option(help="walk: the roots that a server visits. all: a round from every position.")
    ] = "walk",
    rows: Annotated[
        Literal["all", "needed"] | None,
        typer.Option(
            help="Draft rows to run: all, as the server, or those that can change what is accepted.",
            show_default="all of a walk",
        ),
    ] = None,
    per_position: Annotated[
        Path | None, typer.Option(metavar="FILE.csv|.jsonl", help="Write what each round accepted; replaces FILE.")
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Bounds the memory.", show_default="16384, or 65536 with needed rows")
    ] = None,
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
    if per_position is not None:
        check_rounds_file(per_position)
    if positions == "walk" and rows != "needed":
        batch_tokens = batch_tokens or DEFAULT_BATCH_TOKENS
        result = _replay(recorded, setup, supplier, batch_tokens, seed)
    else:
        _refuse_all_rows(rows, positions)
        batch_tokens = batch_tokens or POSITIONS_BATCH_TOKENS
        result = _look_ahead(recorded, setup, supplier, positions, batch_tokens)
    counts = result.counts
    if per_position is not None:
        write_rounds(per_position, result.sequences)
    if as_json:
        settings: dict[str, Any] = {
            "device": device,
            "batch_tokens": batch_tokens,
            "seed": seed,
            "positions": positions,
        }
        if setup.as_engine is not None:
            log = None if positions == "all" else setup.as_engine.profile.log_line(counts)
            settings |= {"engine": setup.as_engine.explanation.case.release, "flags": context.args}
            settings |= {"engine_log": log, "differences": list(setup.as_engine.differences)}
        document = replay_document(counts, recorded, setup.draft, draft, settings)
        document["rows"] = result.rows and result.rows.to_dict()
        typer.echo(json.dumps(document, indent=1, allow_nan=False))
        return
    engine_name = "" if setup.as_engine is None else f" as {setup.as_engine.explanation.case.engine}"
    title = f"{draft} on {trace}{engine_name}, {counts.tree} (num_steps/topk/num_draft_tokens)"
    stdout.print(replay_report(counts, title, setup.profile))
    stdout.print()
    if result.rows is not None:
        stdout.print(rows_report(result.rows))
        stdout.print()
    stdout.print(legend([counts]))


class _Result(NamedTuple):
    """Of either replay; ``rows`` is None if all of them were run."""

    counts: AcceptanceCounts
    sequences: Sequence[SequenceRounds]
    rows: RowCounts | None


def _replay(trace: Trace, setup: Setup, target: Path | None, batch_tokens: int, seed: int) -> _Result:
    rule = _rule(trace, setup)
    rounds: dict[str, SequenceRounds] = {}
    with SequenceProgress(stderr) as progress:
        advance = progress.begin("replay", len(trace))

        def finish(sequence: SequenceRounds) -> None:
            rounds[sequence.id] = sequence
            advance(sequence.recorded_tokens)

        counts = replay_trace(
            trace,
            setup.draft,
            setup.tree,
            rule=rule,
            target=target if is_of_use(target, trace, rule) else None,
            seed=seed,
            batch_tokens=batch_tokens,
            on_sequence=finish,
        )
    return _Result(counts, [rounds[sequence_id] for sequence_id in trace.ids], None)


def _look_ahead(trace: Trace, setup: Setup, target: Path | None, positions: Positions, batch_tokens: int) -> _Result:
    rule = _rule(trace, setup)
    if is_of_use(target, trace, rule):
        stderr.print(Text("expected acceptance: left out, which takes --rows all and --positions walk", style="dim"))
    with SequenceProgress(stderr) as progress:
        advance = progress.begin("replay", len(trace))
        found = replay_positions(
            trace,
            setup.draft,
            setup.tree,
            positions=positions,
            rule=rule,
            batch_tokens=batch_tokens,
            on_sequence=lambda rounds: advance(rounds.recorded_tokens),
        )
    return _Result(found.counts, found.sequences, found.rows)


def _refuse_all_rows(rows: str | None, positions: Positions) -> None:
    if rows == "all":
        raise Eagle3RefError(
            "reading the options of replay",
            found=f"--rows all with --positions {positions}",
            expected="--rows needed, which gives the same integers",
            action="Leave --rows out.",
        )


def _rule(trace: Trace, setup: Setup) -> AcceptanceRule | None:
    """Every engine is greedy at temperature 0; what follows draws is its rule for them."""
    is_greedy = default_rule(trace.header.sampling.temperature).name == "greedy"
    return None if is_greedy and setup.profile is not None else setup.rule
