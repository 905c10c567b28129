"""Inspected drafts, targets and traces for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eagle3ref.inspection import DraftInspection, TargetInspection, TensorGroup, TraceSummary
from eagle3ref.report.style import facts, percent, size


def inspection_report(found: DraftInspection | TargetInspection | TraceSummary) -> RenderableType:
    """What a folder is, and what is odd about it."""
    if isinstance(found, TraceSummary):
        return trace_report(found)
    if isinstance(found, TargetInspection):
        return Group(_title("target", found.path), _target_facts(found), "", _tensor_table(found.tensors))
    return Group(_title("EAGLE-3 draft", found.path), _draft_facts(found), "", _tensor_table(found.tensors))


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
        ("sequences", f"{trace.num_sequences:,}, the longest {trace.longest:,} tokens"),
        ("tokens", f"{trace.prompt_tokens:,} of prompts and {trace.generated_tokens:,} generated"),
        ("off-argmax share", f"{percent(trace.off_argmax_share)} of the generated tokens are not the target's argmax"),
        ("distinct 4-grams", f"{percent(trace.distinct_ngram_share)} within the answers; loops are near 0"),
        ("on disk", size(trace.num_bytes)),
    ]
    return Group(_title("trace", str(trace.path)), facts(rows))


def _draft_facts(found: DraftInspection) -> Table:
    config = found.config
    attention = config.attention.kind.upper()
    return facts(
        [
            ("architecture", f"{config.architecture}, {attention}, {config.attention.num_heads} heads"),
            ("width", f"{config.hidden_size}; fc takes {config.num_aux_hidden_states} x {config.target_hidden_size}"),
            _size_row(found.tensors),
            *([] if found.variant is None else [("variant", ", ".join(found.variant) or "plain EAGLE-3")]),
            ("vocabulary", _coverage(found)),
            *found.origins.items(),
            *(("not checked", f"{need}. Give --target to check it.") for need in found.unchecked),
            *_odd_rows((*found.oddities, *_fault(found))),
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


def _coverage(found: DraftInspection) -> str:
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
