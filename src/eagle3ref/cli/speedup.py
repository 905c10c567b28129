"""``eagle3ref speedup``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.cli.console import stdout
from eagle3ref.cli.exit_status import DOES_NOT_AGREE
from eagle3ref.cli.options import NumDraftTokens, NumSteps, TopK, asked_tree
from eagle3ref.errors import Eagle3RefError
from eagle3ref.report.speedup import speedup_report
from eagle3ref.servers import Rounded
from eagle3ref.speedup import ChainDepth, Quantity, RoundTimes, chain_depths, read_counts, target_step_from
from eagle3ref.speedup import speedup as worth_of

_AS_PRINTED = "As printed: 2.50 is 2.495 to 2.505."


def speedup(
    acceptance_length: Annotated[str | None, typer.Option(help=f"Bonus counted. {_AS_PRINTED}")] = None,
    counts: Annotated[Path | None, typer.Option(help="What replay --json printed; brings tree and interval.")] = None,
    num_steps: NumSteps = None,
    topk: TopK = None,
    num_draft_tokens: NumDraftTokens = None,
    target_step_ms: Annotated[float | None, typer.Option(help="The target on 1 token a request.")] = None,
    baseline_tps: Annotated[str | None, typer.Option(help="Instead: tokens/s without speculation, as printed.")] = None,
    measured_tps: Annotated[str | None, typer.Option(help="Tokens/s with speculation, as printed.")] = None,
    verify_step_ms: Annotated[
        float | None, typer.Option(help="The target on num_draft_tokens tokens.", show_default="a target step")
    ] = None,
    draft_pass_ms: Annotated[float | None, typer.Option(help="One pass of the draft.")] = None,
    draft_extend_ms: Annotated[
        float | None, typer.Option(help="The draft over the verified rows.", show_default="a draft pass")
    ] = None,
    overhead_ms: Annotated[float | None, typer.Option(help="Everything else in a round.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests decoded together.")] = 1,
    cuda_graph: Annotated[
        bool | None, typer.Option("--cuda-graph/--no-cuda-graph", help="Whether the steps ran as graphs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")] = False,
) -> None:
    """Say what acceptance is worth in tokens per second, and what stands in the way.

    Exit status 1 means that speculation is slower than the target alone.
    """
    counted = None if counts is None else read_counts(counts)
    tree = asked_tree(num_steps, topk, num_draft_tokens)
    if counted is not None and tree is not None:
        raise _refusal("--counts and a tree", "one of them: the counts have their tree", "Leave the tree options out.")
    times = RoundTimes(
        _target_step(target_step_ms, baseline_tps, batch_size),
        verify_step_ms,
        draft_pass_ms,
        draft_extend_ms,
        overhead_ms,
        batch_size,
        cuda_graph,
    )
    measured = None if measured_tps is None else _printed("--measured-tps", measured_tps)
    found = worth_of(_acceptance(acceptance_length, counted), times, tree, tokens_per_second=measured)
    depths = _depths(counted, times) if measured is None else ()
    if as_json:
        document = {**found.to_dict(), "depths": [depth.to_dict() for depth in depths]}
        typer.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        stdout.print(speedup_report(found, depths))
    if found.verdict == "loses":
        raise typer.Exit(DOES_NOT_AGREE)


def _acceptance(printed: str | None, counted: AcceptanceCounts | None) -> Quantity | AcceptanceCounts:
    if counted is not None and printed is None:
        return counted
    if printed is not None and counted is None:
        return _printed("--acceptance-length", printed)
    found = "neither of the two" if printed is None else "both"
    raise _refusal(found, "either --acceptance-length or --counts", "Give one of them.")


def _target_step(target_step_ms: float | None, baseline_tps: str | None, batch_size: int) -> Quantity:
    if target_step_ms is not None and baseline_tps is None:
        return target_step_ms
    if baseline_tps is not None and target_step_ms is None:
        return target_step_from(_printed("--baseline-tps", baseline_tps), batch_size)
    found = "neither of the two" if baseline_tps is None else "both"
    raise _refusal(found, "either --target-step-ms or --baseline-tps: each gives the other", "Give one of them.")


def _depths(counted: AcceptanceCounts | None, times: RoundTimes) -> tuple[ChainDepth, ...]:
    """Of a chain whose draft pass has a time; nothing else can be weighed."""
    if counted is None or counted.tree.topk > 1 or times.draft_pass_ms is None:
        return ()
    return chain_depths(counted, times)


def _printed(option: str, text: str) -> Rounded:
    try:
        return Rounded.printed(text)
    except (ValueError, ArithmeticError) as error:
        raise _refusal(f"{option} {text!r}", "a decimal number such as 2.50", "Correct it.") from error


def _refusal(found: str, expected: str, action: str) -> Eagle3RefError:
    return Eagle3RefError("reading the options of speedup", found=found, expected=expected, action=action)
