"""``eagle3ref diagnose``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from eagle3ref.cli.console import stderr, stdout
from eagle3ref.cli.evidence import EVIDENCE_HELP, gather, no_tree, split_flags, stated_tree
from eagle3ref.cli.exit_status import CANNOT_TELL, DOES_NOT_AGREE
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
from eagle3ref.cli.setup import recorded_target
from eagle3ref.config import AcceptanceRule, TreeConfig, default_rule
from eagle3ref.diagnose import DEFAULT_BUDGET, SYMPTOMS, Diagnosis, diagnose_files
from eagle3ref.diagnose import diagnose as diagnose_server
from eagle3ref.draft import load_draft
from eagle3ref.engines import engine_profile
from eagle3ref.errors import Eagle3RefError
from eagle3ref.explain import EngineDraft, Explanation, load_draft_as
from eagle3ref.explain import explain as explain_wiring
from eagle3ref.report.diagnosis import diagnosis_report
from eagle3ref.servers import Evidence
from eagle3ref.statistics import DEFAULT_MARGIN
from eagle3ref.trace import Trace


def diagnose(
    context: typer.Context,
    trace: Annotated[Path, typer.Argument(help="Trace folder, of the server's target.")],
    draft: Annotated[Path, typer.Argument(help="Checkpoint folder of the draft.")],
    evidence: Annotated[list[str], typer.Argument(help=EVIDENCE_HELP)],
    engine: OptionalEngine = None,
    target: Annotated[
        Path | None,
        typer.Option(help="Supplies what the draft shares, and tests more causes.", show_default="as the trace says"),
    ] = None,
    num_steps: NumSteps = None,
    topk: TopK = None,
    num_draft_tokens: NumDraftTokens = None,
    rule: Rule = None,
    sampled_drafts: SampledDrafts = False,
    against: Annotated[
        list[str] | None, typer.Option(help="Evidence of the same server with one thing changed; may be repeated.")
    ] = None,
    symptom: Annotated[
        list[str] | None, typer.Option(help=f"What you saw besides; may be repeated: {', '.join(SYMPTOMS)}.")
    ] = None,
    margin: Annotated[float, typer.Option(min=0, help="Tokens per round that do not matter.")] = DEFAULT_MARGIN,
    budget: Annotated[
        float, typer.Option(min=1, help="Most draft rows, in plain replays of the trace.")
    ] = DEFAULT_BUDGET,
    capture_points: CapturePoints = None,
    device: Device = "cpu",
    dtype: Annotated[DTypeName | None, typer.Option(help="Of the draft.", show_default="the trace's")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")] = False,
) -> None:
    """Say why a server accepts less than it should: every known mis-wiring is replayed and held against its numbers.

    The server's own flags may follow the evidence, after --engine; then what the command itself makes wrong is known.
    """
    refuse_flags_before(context, trace, draft)
    paths = split_flags(context, evidence)
    if not paths:
        context.fail("There is no evidence: name a log, request fields, metrics, or a journal of crosscheck --server.")
    recorded = Trace.open(trace)
    said, facts = gather(paths)
    other = gather(against)[0] if against else None
    wired = _Wired.of(
        context,
        draft,
        target or recorded_target(recorded),
        engine or (None if facts is None else facts.engine_name),
        parse_capture_points(capture_points),
        device=usable_device(device),
        dtype=torch_dtype(dtype) if dtype else recorded.header.torch_dtype,
    )
    tree = _tree(asked_tree(num_steps, topk, num_draft_tokens), wired.explanation, stated_tree(said, facts))
    found = _from_files(wired, said, symptom or ())
    if found is None:
        if tree is None:
            raise no_tree(said, "diagnosing a server")
        found = diagnose_server(
            recorded,
            load_draft(draft, target=wired.target, capture_points=wired.capture_points, **wired.options),
            said,
            tree,
            rule=_rule(recorded, asked_rule(rule, sampled_drafts), wired.as_engine),
            target=wired.target,
            engine_draft=wired.as_engine,
            explanation=wired.explanation,
            against=other,
            symptoms=symptom or (),
            margin=margin,
            budget=budget,
            on_stage=lambda stage: stderr.print(Text(stage, style="dim")),
        )
    settings = "" if tree is None else f", {tree} (num_steps/topk/num_draft_tokens)"
    _print(found, f"{draft} on {trace}, {', '.join(paths)}{settings}", as_json)


@dataclass(frozen=True)
class _Wired:
    """The draft's folder, and what the named engine makes of it and of its command."""

    folder: Path
    target: Path | None
    capture_points: tuple[int, ...] | None
    options: Mapping[str, Any]
    explanation: Explanation | None = None
    as_engine: EngineDraft | None = None

    @classmethod
    def of(
        cls,
        context: typer.Context,
        folder: Path,
        target: Path | None,
        engine: str | None,
        capture_points: tuple[int, ...] | None,
        **options: Any,
    ) -> _Wired:
        plain = cls(folder, target, capture_points, options)
        if engine is None:
            if context.args:
                context.fail(f"No such option or argument: {' '.join(context.args)}. Server flags need --engine.")
            return plain
        if target is None:
            context.fail("--engine needs the target: give --target.")
        explanation = explain_wiring(folder, target, engine, context.args, capture_points=capture_points)
        try:
            as_engine = load_draft_as(engine, folder, target, context.args, capture_points=capture_points, **options)
        except Eagle3RefError as error:  # the engine would fail, or run without the draft's weights: a finding, no end
            stderr.print(Text.assemble((f"{engine}: ", "bold yellow"), f"{error.found}. {error.action}"))
            as_engine = None
        return replace(plain, explanation=explanation, as_engine=as_engine)


def _from_files(wired: _Wired, evidence: Evidence, symptoms: Sequence[str]) -> Diagnosis | None:
    """What the files decide alone; by the newest engine of the evidence's name if none was given."""
    explanation = wired.explanation
    tools = {reading.tool.lower() for reading in evidence.readings} & {"sglang", "vllm"}
    if explanation is None and wired.target is not None and len(tools) == 1:
        newest = engine_profile(tools.pop()).name
        explanation = explain_wiring(wired.folder, wired.target, newest, capture_points=wired.capture_points)
    return None if explanation is None else diagnose_files(explanation, evidence, symptoms)


def _tree(asked: TreeConfig | None, explanation: Explanation | None, stated: TreeConfig | None) -> TreeConfig | None:
    """As asked for, as the server's flags make it, as the server states it, or the engine's default; else None."""
    flags = None if explanation is None else explanation.wiring.tree
    tree = asked or (flags.tree if flags is not None and flags.asked else None) or stated
    tree = tree or (None if flags is None else flags.tree)
    if tree is None:
        return None
    kv = None if explanation is None else explanation.case.profile.tree_kv
    return replace(tree, tree_kv=kv or tree.tree_kv)


def _rule(trace: Trace, asked: AcceptanceRule | None, as_engine: EngineDraft | None) -> AcceptanceRule | None:
    """At temperature 0 every engine is greedy; above it, as asked for or as the engine has it."""
    is_greedy = default_rule(trace.header.sampling.temperature).name == "greedy"
    if is_greedy or as_engine is None:
        return asked
    return as_engine.rule(asked)


def _print(found: Diagnosis, title: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1, allow_nan=False))
    else:
        stdout.print(diagnosis_report(found, title))
    if found.is_wrong:
        raise typer.Exit(DOES_NOT_AGREE)
    if found.verdict == "cannot tell":
        raise typer.Exit(CANNOT_TELL)
