"""Inspected drafts, targets and traces for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eagle3ref.inspection import (
    Coverage,
    DraftInspection,
    Finding,
    OffArgmax,
    TargetInspection,
    TensorGroup,
    TraceSummary,
)
from eagle3ref.report.style import ends, facts, percent, size


def inspection_report(found: DraftInspection | TargetInspection | TraceSummary) -> RenderableType:
    """What a folder is, and what is odd about it."""
    if isinstance(found, TraceSummary):
        return trace_report(found)
    if isinstance(found, TargetInspection):
        return Group(_title("target", found.path), _target_facts(found), "", _tensor_table(found.tensors))
    findings = [part for finding in found.findings for part in (_finding(finding), "")]
    title = _title("EAGLE-3 draft", found.path)
    return Group(title, _draft_facts(found), "", *findings, _tensor_table(found.tensors))


def trace_report(trace: TraceSummary) -> RenderableType:
    """Header and numbers of a trace."""
    header = trace.header
    target, sampling = header.target, header.sampling
    shape = f"{target.num_layers} layers, {target.hidden_size} wide, {target.vocab_size:,} tokens"
    how = "greedy"
    if sampling.temperature > 0:
        how = f"temperature {sampling.temperature}, top_p {sampling.top_p}, top_k {sampling.top_k}"
        how += f", seed {'unknown' if sampling.seed is None else sampling.seed}"
    limit = "" if sampling.max_new_tokens is None else f", at most {sampling.max_new_tokens} new tokens"
    rows = [
        ("target", f"{target.name}, {shape}"),
        ("target path", target.path or "none, it was in memory"),
        ("recorded by", f"{header.engine}, {header.provenance.get('date', 'date unknown')}"),
        ("capture points", f"{header.capture_points}, in {header.dtype}"),
        ("final hidden state", "recorded" if trace.has_final_hidden_state else "not recorded"),
        ("sampling", how + limit),
        ("sequences", f"{trace.num_sequences:,}{_of_all(trace)}, the longest {trace.longest:,} tokens"),
        ("tokens", f"{trace.prompt_tokens:,} of prompts and {trace.generated_tokens:,} generated"),
        *_off_argmax_rows(trace.off_argmax),
        ("distinct 4-grams", f"{percent(trace.distinct_ngram_share)} within the answers; loops are near 0"),
        ("on disk", size(trace.num_bytes)),
    ]
    return Group(_title("trace", str(trace.path)), facts(rows))


def _of_all(trace: TraceSummary) -> str:
    """How many were to be imported, if not all of them were: an import that was killed leaves a sound trace."""
    wanted = trace.header.provenance.get("sequences", "")
    is_part = wanted.isdecimal() and trace.num_sequences < int(wanted)
    return f" of {int(wanted):,} that were to be imported (import again to go on)" if is_part else ""


def _off_argmax_rows(found: OffArgmax) -> list[tuple[str, str]]:
    """The verdict is a row of its own, so that nobody has to know what shares and gaps are usual."""
    if found.share is None:
        return [("off-argmax share", "unknown; the argmax was not recorded")]
    rows = [("off-argmax share", f"{percent(found.share)} of the generated tokens are not the target's argmax")]
    if found.median_gap is not None:
        gaps = f"log-prob behind the argmax: median {found.median_gap:.2f}, largest {found.largest_gap:.2f} nats"
        rows.append(("  their gap", gaps))
    if found.verdict is not None:
        rows.append(
            ("  worst", ", ".join(f"{worst.id} ({worst.tokens} of {worst.generated_tokens})" for worst in found.worst))
        )
        rows.append(("  odd", found.verdict))
    return rows


def _draft_facts(found: DraftInspection) -> Table:
    config = found.config
    attention = config.attention.kind.upper()
    return facts(
        [
            ("architecture", f"{config.architecture}, {attention}, {config.attention.num_heads} heads"),
            ("width", f"{config.hidden_size}; fc takes {config.num_aux_hidden_states} x {config.target_hidden_size}"),
            _size_row(found.tensors),
            *([] if found.variant is None else [("variant", ", ".join(found.variant) or "plain EAGLE-3")]),
            ("vocabulary", _vocabulary(found)),
            *found.origins.items(),
            *_health_rows(found),
            *(("not checked", f"{need}. Give --target to check it.") for need in found.unchecked),
            *_odd_rows((*found.oddities, *map(_short, found.findings), *_fault(found))),
        ]
    )


def _target_facts(found: TargetInspection) -> Table:
    config = found.config
    sizes = f"{config.num_layers} layers, {config.hidden_size} wide, {config.vocab_size:,} tokens"
    return facts(
        [
            ("model type", config.model_type),
            ("shape", sizes),
            _size_row(found.tensors),
            *found.facts.items(),
            *_odd_rows(found.oddities),
        ]
    )


def _health_rows(found: DraftInspection) -> list[tuple[str, str]]:
    health = found.health
    if health is None:
        return []
    measured = {"fc output": health.fc, "head": health.head_rows, "  beside target": health.head}
    measured |= {"embedding": health.embedding}
    rows = [(name, str(value)) for name, value in measured.items() if value is not None]
    return rows + ([] if health.coverage is None else _corpus_rows(health.coverage))


def _corpus_rows(coverage: Coverage) -> list[tuple[str, str]]:
    outside = coverage.outside
    common = ", ".join(f"{token} ({count:,})" for token, count in coverage.missing)
    ceilings = ", ".join(
        f"{ratio.value:.2f} at num_steps {depth}" for depth, ratio in sorted(coverage.ceilings.items())
    )
    return [
        ("corpus", f"{outside.denominators.sum():,} {coverage.source}"),
        (
            "  outside",
            f"{percent(outside.value)} are not in the draft's vocabulary, 95 % {ends(outside.interval(), 4)}: at most "
            f"{percent(1 - outside.value)} can be accepted",
        ),
        *([("  commonest", f"token {common}")] if common else []),
        ("  ceiling", f"acceptance length {ceilings}" if ceilings else "answers too short"),
        (
            "  best map",
            f"{percent(coverage.best_outside)} outside with the {coverage.num_rows:,} tokens that suit it best",
        ),
        (
            "  unused",
            f"{coverage.unused_rows:,} of {coverage.num_rows:,} draft tokens and {coverage.unused_embeddings:,} "
            "embedding rows do not occur here",
        ),
    ]


def _short(finding: Finding) -> str:
    return f"{finding.tensor} {finding.found}; see below"


def _finding(finding: Finding) -> RenderableType:
    kind = ("fault: ", "bold red") if finding.is_fault else ("odd: ", "bold yellow")
    return Group(
        Text.assemble(kind, (f"{finding.tensor} {finding.found}", "bold")),
        facts([("  means", finding.meaning), ("  do", finding.action)]),
    )


def _vocabulary(found: DraftInspection) -> str:
    ids, total = found.mapped_ids, found.config.vocab_size
    if ids is None:
        return f"unreadable map to the target's {total:,} tokens"
    share = percent(len(ids) / total)
    return f"{len(ids):,} of the target's {total:,} tokens ({share}), ids {int(ids.min())} to {int(ids.max())}"


def _size_row(tensors: tuple[TensorGroup, ...]) -> tuple[str, str]:
    parameters, num_bytes = sum(t.num_parameters for t in tensors), sum(t.num_bytes for t in tensors)
    return "parameters", f"{parameters:,} in {sum(t.count for t in tensors):,} tensors, {size(num_bytes)}"


def _odd_rows(oddities: tuple[str, ...]) -> list[tuple[str, str]]:
    return [("odd", oddity) for oddity in oddities] or [("odd", "nothing found")]


def _fault(found: DraftInspection) -> tuple[str, ...]:
    return () if found.problem is None else (f"{found.problem.found}; expected {found.problem.expected}",)


def _tensor_table(tensors: tuple[TensorGroup, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("tensor", overflow="fold")
    for name in ("count", "shape", "dtype", "size"):
        table.add_column(name, justify="right", no_wrap=name != "shape")
    for group in tensors:
        shape = " x ".join(map(str, group.shape)) or "scalar"
        table.add_row(Text(group.name), f"{group.count:,}", shape, group.dtype, size(group.num_bytes))
    return table


def _title(kind: str, path: str) -> Text:
    return Text.assemble((f"{kind} ", "bold cyan"), (path, "bold"))
