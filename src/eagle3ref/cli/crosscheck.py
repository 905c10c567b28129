"""``eagle3ref crosscheck``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from eagle3ref.cli.console import stderr, stdout
from eagle3ref.cli.evidence import EVIDENCE_HELP, gather, no_tree, split_flags, stated_profile, stated_tree
from eagle3ref.cli.exit_status import CANNOT_TELL, DOES_NOT_AGREE
from eagle3ref.cli.live import Asked, ask, is_trace, lacks_answers, record_answers
from eagle3ref.cli.options import (
    CapturePoints,
    Device,
    DTypeName,
    NumDraftTokens,
    NumSteps,
    OptionalEngine,
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
from eagle3ref.config import TreeConfig, default_rule
from eagle3ref.crosscheck import CrossCheck
from eagle3ref.crosscheck import crosscheck as check
from eagle3ref.engines import EngineProfile
from eagle3ref.errors import Eagle3RefError
from eagle3ref.report.crosscheck import crosscheck_report
from eagle3ref.report.progress import SequenceProgress
from eagle3ref.servers import Evidence, RequestSettings, ServerFacts
from eagle3ref.statistics import DEFAULT_CONFIDENCE, DEFAULT_MARGIN
from eagle3ref.trace import Trace

DEFAULT_NEW_TOKENS = 256
DEFAULT_RETRIES = 8


def crosscheck(
    context: typer.Context,
    trace: Annotated[Path, typer.Argument(help="Trace folder; with --server and --target it may be a new one.")],
    draft: Annotated[Path, typer.Argument(help="Checkpoint folder of the draft.")],
    words: Annotated[list[str] | None, typer.Argument(metavar="EVIDENCE...", help=EVIDENCE_HELP)] = None,
    num_steps: NumSteps = None,
    topk: TopK = None,
    num_draft_tokens: NumDraftTokens = None,
    engine: OptionalEngine = None,
    rule: Rule = None,
    sampled_drafts: SampledDrafts = False,
    margin: Annotated[float, typer.Option(help="Tokens a round that do not matter.")] = DEFAULT_MARGIN,
    confidence: Annotated[float, typer.Option(help="Of each one-sided test.")] = DEFAULT_CONFIDENCE,
    baseline_tps: Annotated[float | None, typer.Option(help="Tokens/s of the server without speculation.")] = None,
    target: Annotated[
        Path | None, typer.Option(help="Supplies what the draft shares; records.", show_default="as the trace says")
    ] = None,
    server: Annotated[str | None, typer.Option(metavar="URL", help="Ask this running server.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="To send, as JSONL.", show_default="the trace's")] = None,
    journal: Annotated[Path | None, typer.Option(help="Folder of the live run; the same one goes on.")] = None,
    model: Annotated[str | None, typer.Option(help="The model that the server must have.")] = None,
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Never send more than these.", show_default="prompts + --retries")
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(min=0, help="Further tries, of all prompts together.", show_default=str(DEFAULT_RETRIES)),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds for one request.")] = 600.0,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of each answer.", show_default="the trace's, or 256")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of the answers.", show_default="the trace's, or 0: greedy")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Likewise.", show_default="the trace's, or 1")] = None,
    top_k: Annotated[int | None, typer.Option(help="Likewise.", show_default="the trace's, or 0: all")] = None,
    capture_points: CapturePoints = None,
    device: Device = "cpu",
    dtype: Annotated[DTypeName | None, typer.Option(help="Of the weights.", show_default="the trace's")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")] = False,
) -> None:
    """Say whether a server accepts what this draft on this target should.

    Exit status: 0 it agrees, 1 it differs, 3 the evidence cannot tell, 2 bad input.
    """
    paths = split_flags(context, words or [])
    refuse_flags_before(context, trace, draft)
    recorded = Trace.open(trace) if server is None or is_trace(trace) else None
    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    settings = _request_settings(recorded, max_new_tokens, sampling)
    if server is None:
        live = {"prompts": prompts, "journal": journal, "model": model, "max_requests": max_requests}
        _refuse_without_server(
            context, paths, {**live, "retries": retries, "max_new_tokens": max_new_tokens, **sampling}
        )
        evidence, facts = gather(paths)
    elif paths or journal is None:
        context.fail("--server takes a --journal, which keeps every answer, and no files of evidence.")
    else:
        tries = DEFAULT_RETRIES if retries is None else retries
        asked = Asked(server, journal, prompts, target, settings, model, max_requests, tries, concurrency, timeout)
        evidence, facts = ask(asked, recorded)
        paths = [str(journal)]
    if engine is not None and not context.args and facts is not None:
        context.args = list(facts.flags)
    tree = _tree(context, asked_tree(num_steps, topk, num_draft_tokens), evidence, facts)
    place, kind = usable_device(device), _dtype(dtype, recorded)
    supplier = target or (None if recorded is None else recorded_target(recorded))
    setup = set_up(
        context,
        engine,
        draft,
        supplier,
        tree,
        asked_rule(rule, sampled_drafts),
        capture_points=parse_capture_points(capture_points),
        device=place,
        dtype=kind,
    )
    if recorded is None or (server is not None and target is not None and lacks_answers(recorded, evidence)):
        recorded = record_answers(trace, evidence, target, settings, setup.draft, place, kind)
    profile = setup.profile or stated_profile(facts)
    checked = _check(recorded, setup, evidence, profile, supplier, (margin, confidence), baseline_tps)
    if as_json:
        typer.echo(json.dumps(_document(checked, recorded, draft, setup, facts), indent=1, allow_nan=False))
    else:
        options = [("--engine", engine), ("--target", target)]
        command = _diagnose_command(trace, draft, paths, setup, options, context.args)
        stdout.print(crosscheck_report(checked, _title(trace, draft, setup), command))
    if checked.verdict != "agrees":
        raise typer.Exit(DOES_NOT_AGREE if checked.verdict == "differs" else CANNOT_TELL)


def _refuse_without_server(context: typer.Context, paths: Sequence[str], live: Mapping[str, object]) -> None:
    given = [name for name, value in live.items() if value is not None]
    if given:
        context.fail(f"--{given[0].replace('_', '-')} is for a server that is asked: give --server, or leave it out.")
    if not paths:
        context.fail("No evidence: give files of the server, or --server URL.")


def _dtype(asked: DTypeName | None, trace: Trace | None) -> torch.dtype:
    if asked is not None or trace is None:
        return torch_dtype(asked or "bfloat16")
    return trace.header.torch_dtype


def _request_settings(
    trace: Trace | None, max_new_tokens: int | None, sampling: Mapping[str, float | None]
) -> RequestSettings:
    """As the trace was sampled, where there is one; the server must not be asked for anything else."""
    asked = {name: value for name, value in sampling.items() if value is not None}
    if trace is None:
        temperature, top_p, top_k = asked.get("temperature", 0.0), asked.get("top_p", 1.0), int(asked.get("top_k", 0))
        tokens = max_new_tokens or DEFAULT_NEW_TOKENS
        return RequestSettings(max_new_tokens=tokens, temperature=temperature, top_p=top_p, top_k=top_k)
    recorded = trace.header.sampling
    for name, value in asked.items():
        if value != getattr(recorded, name):
            raise Eagle3RefError(
                "asking the server",
                found=f"--{name.replace('_', '-')} {value:g}, and a trace of {getattr(recorded, name):g}",
                expected="answers that are sampled as the recorded ones",
                action="Leave it out, or name a new folder for the trace.",
            )
    longest = max(entry.num_tokens - entry.prompt_length for entry in trace.entries)
    return RequestSettings(
        max_new_tokens=max_new_tokens or recorded.max_new_tokens or longest,
        temperature=recorded.temperature,
        top_p=recorded.top_p,
        top_k=recorded.top_k,
    )


def _check(
    trace: Trace,
    setup: Setup,
    evidence: Evidence,
    profile: EngineProfile | None,
    target: Path | None,
    criterion: tuple[float, float],
    baseline: float | None,
) -> CrossCheck:
    # Every engine is greedy at temperature 0; what follows draws is its rule for them.
    is_greedy = default_rule(trace.header.sampling.temperature).name == "greedy"
    rule = None if is_greedy and setup.profile is not None else setup.rule
    with SequenceProgress(stderr) as progress:
        advance = progress.begin("replay", len(trace))
        return check(
            trace,
            setup.draft,
            evidence,
            setup.tree,
            rule=rule,
            profile=profile,
            target=target if is_of_use(target, trace, rule) else None,
            margin=criterion[0],
            confidence=criterion[1],
            baseline_tokens_per_second=baseline,
            on_sequence=lambda rounds: advance(rounds.recorded_tokens),
        )


def _tree(
    context: typer.Context, asked: TreeConfig | None, evidence: Evidence, facts: ServerFacts | None
) -> TreeConfig | None:
    """Asked for, or stated by the server; None where its flags, which are read later, have to tell."""
    tree = asked or stated_tree(evidence, facts)
    if tree is not None or context.args:
        return tree
    raise no_tree(evidence, "cross-checking a server")


def _title(trace: Path, draft: Path, setup: Setup) -> str:
    reader = None if setup.as_engine is None else setup.as_engine.explanation.case.engine
    wired = "as it was trained" if reader is None else f"as {reader} reads it"
    return f"{draft} {wired}, on {trace}, {setup.tree} (num_steps/topk/num_draft_tokens)"


def _document(
    checked: CrossCheck, trace: Trace, draft: Path, setup: Setup, facts: ServerFacts | None
) -> dict[str, object]:
    return {
        "document_version": 1,
        **checked.to_dict(),
        "trace": {"path": str(trace.path), "sha256": trace.sha256()},
        "draft": {"path": str(draft), "origins": setup.draft.origins},
        "engine": None if setup.as_engine is None else setup.as_engine.explanation.case.release,
        "server": None if facts is None else {"engine": facts.engine_name, "model": facts.model, "draft": facts.draft},
    }


def _diagnose_command(
    trace: Path,
    draft: Path,
    evidence: Sequence[str],
    setup: Setup,
    options: Sequence[tuple[str, str | Path | None]],
    flags: Sequence[str],
) -> str:
    tree = setup.tree
    words = ["eagle3ref", "diagnose", str(trace), str(draft), *evidence]
    for name, value in options:
        words += [] if value is None else [name, str(value)]
    if not flags:
        words += ["--num-steps", str(tree.num_steps), "--topk", str(tree.topk)]
        words += ["--num-draft-tokens", str(tree.num_draft_tokens)]
    return shlex.join([*words, *flags])
