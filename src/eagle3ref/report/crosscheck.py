"""A cross-check for people: the verdict, the two numbers, what lies between them, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eagle3ref.crosscheck import KIND_MEANING, Comparison, Correction, CrossCheck
from eagle3ref.report.style import ends, facts
from eagle3ref.statistics import Difference, Verdict

_COLOURS: dict[Verdict, str] = {"agrees": "bold green", "differs": "bold red", "cannot tell": "bold yellow"}
_STRONGER = "Requests with their token ids tell with far fewer rounds: ask with --server, or give request fields."
_OTHER_PROMPTS = (
    "First make sure that the trace's prompts are the server's workload: other prompts alone may differ as much. "
    "Requests with their token ids leave no doubt."
)
_MOST_REQUESTS = 8  # unequal ones that are listed; the JSON has all


def crosscheck_report(checked: CrossCheck, title: str, diagnose_command: str) -> RenderableType:
    """The whole report.

    Args:
        checked: what came of it.
        title: what was held against what.
        diagnose_command: to run when it differs.
    """
    best = checked.best
    parts: list[RenderableType] = [
        Text(checked.sentence, style=_COLOURS[checked.verdict]),
        Text(title, style="dim"),
        "",
        Padding(_figures(checked, best), (0, 0, 0, 2)),
        *_section("Corrections, in tokens of acceptance length", _corrections(best.corrections)),
        *_section("Not equal", _unequal(best)),
        *_section("Not matched", _unmatched(checked)),
        *_section("Other figures", _others(checked)),
        *_section("Speed", _sentences(() if checked.speed is None else checked.speed.sentences)),
        *_section("To know", _sentences(checked.remarks)),
        *_section("Taken for granted", _sentences((*checked.assumptions, *best.assumptions))),
        *_section("What next", _sentences(_next(checked, diagnose_command))),
    ]
    return Group(*parts)


def _figures(checked: CrossCheck, best: Comparison) -> Table:
    counts = checked.counts
    of_rounds = "" if best.server_rounds is None else f", {best.server_rounds:,} rounds"
    rounding = f" [{best.server_low:.3f}, {best.server_high:.3f}]" if best.server_high > best.server_low else ""
    moved = best.reference - best.plain_reference
    return facts(
        [
            ("server", f"{best.server:.2f}{rounding}  {best.of}{of_rounds}"),
            (
                "reference",
                f"{best.reference:.2f}  what it should print: {best.plain_reference:.2f}, corrected by {moved:+.2f}",
            ),
            (
                "  of the trace",
                f"{counts.acceptance_length:.2f}  95 % {ends(counts.interval('acceptance_length'), 2)}, "
                f"{counts.total_rounds:,} rounds of {len(counts.prompt_ids)} prompts, {counts.kind}",
            ),
            ("difference", f"{best.difference.estimate:+.3f} = server - reference, tokens a round"),
            *_intervals(best, checked.confidence, checked.margin),
            ("kind", f"{best.kind}: {KIND_MEANING[best.kind]}"),
            ("figure", best.form),
            *_requests(checked),
        ]
    )


def _intervals(best: Comparison, confidence: float, margin: float) -> list[tuple[str, str]]:
    level = 2 * confidence - 1
    if best.difference.variance == 0:
        of_these = (
            f"{_ends(best.difference, confidence)}, of these requests: nothing was drawn, chance has no part in it"
        )
        if best.as_sample is None:
            return [("  interval", of_these)]
        like_these = f"{_ends(best.as_sample, level)}, of requests like these"
        return [("  interval", of_these), (f"  {level:.0%} interval", like_these)]
    decides = f"agrees if all of it is within ± {margin:g}, differs if all of it is beyond"
    return [
        (f"  {level:.0%} interval", f"{_ends(best.difference, level)}: {decides}"),
        (f"  {confidence:.0%} interval", f"{_ends(best.difference, confidence)}: differs only if 0 is not in it"),
    ]


def _requests(checked: CrossCheck) -> list[tuple[str, str]]:
    if not checked.matches:
        return []
    counted = [f"{checked.matched(how)} {how}" for how in ("same answer", "same prompt", "unmatched")]
    return [("requests", " · ".join(counted))]


def _corrections(corrections: Sequence[Correction]) -> Table | None:
    if not corrections:
        return None
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for correction in corrections:
        opened = correction.below or correction.above
        size = f"{correction.tokens:+.3f}" if not opened else f"-{correction.below:.3f} to +{correction.above:.3f}"
        source = f"  [{correction.source}]" if correction.source else ""
        table.add_row(Text(correction.name), Text(size), Text.assemble(correction.why, (source, "dim")))
    return table


def _unequal(best: Comparison) -> Table | None:
    listed = best.unequal[:_MOST_REQUESTS]
    rows = [(request.request_id or request.sequence_id, "; ".join(request.what)) for request in listed]
    further = len(best.unequal) - len(listed)
    return facts(rows + ([("…", f"{further} more; --json has them all")] if further else [])) if rows else None


def _unmatched(checked: CrossCheck) -> Table | None:
    reasons: dict[str, list[str]] = {}
    for match in checked.matches:
        if match.reason:
            name = match.request.request_id or "a request without id"
            reasons.setdefault(f"{match.how}: {match.reason}", []).append(name)
    shown = list(reasons.items())[:_MOST_REQUESTS]
    rows = [(_names(names), reason) for reason, names in shown]
    further = sum(len(names) for names in list(reasons.values())[_MOST_REQUESTS:])
    return facts(rows + ([("…", f"{further} more; --json has them all")] if further else [])) if rows else None


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} requests"


def _others(checked: CrossCheck) -> Table | None:
    others = [comparison for comparison in checked.comparisons if comparison is not checked.best]
    if not others:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("verdict", "server", "reference", "difference", f"{2 * checked.confidence - 1:.0%}", "kind", "figure"):
        table.add_column(name, overflow="fold")
    for other in others:
        table.add_row(
            Text(other.verdict, style=_COLOURS[other.verdict]),
            f"{other.server:.2f}",
            f"{other.reference:.2f}",
            f"{other.difference.estimate:+.2f}",
            Text(_ends(other.difference, 2 * checked.confidence - 1)),
            other.kind,
            Text(other.of),
        )
    return table


def _next(checked: CrossCheck, diagnose_command: str) -> list[str]:
    best, loses = checked.best, checked.speed is not None and checked.speed.verdict == "loses"
    slow = ["The speed is another matter: `eagle3ref speedup` says which term of a round it is."] if loses else []
    if best.verdict == "differs":
        doubt = [_OTHER_PROMPTS] if best.kind == "same workload only" else []
        return [*doubt, f"Find the cause: {diagnose_command}", *slow]
    if best.verdict == "cannot tell":
        more = [best.more.sentence] if best.more else []
        return [*more, *([] if checked.matches else [_STRONGER]), *slow]
    return [*slow] or ["Nothing: the server accepts what this draft on this target should."]


def _sentences(sentences: Sequence[str]) -> Table | None:
    return facts([("·", sentence) for sentence in sentences]) if sentences else None


def _section(name: str, body: RenderableType | None) -> list[RenderableType]:
    return [] if body is None else ["", Text(name, style="bold cyan"), Padding(body, (0, 0, 0, 2))]


def _ends(difference: Difference, confidence: float) -> str:
    low, high = difference.ends(confidence)
    return "unknown" if math.isinf(low) or math.isinf(high) else f"[{low:+.3f}, {high:+.3f}]"
