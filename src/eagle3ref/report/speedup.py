"""What acceptance is worth, for people: the verdict, its figures, the round term by term, the depths of a chain."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eagle3ref.report.style import Bar, facts
from eagle3ref.speedup import ChainDepth, Span, Speedup

_VERDICT = {
    "gains": ("speculation is faster", "bold green"),
    "loses": ("speculation is slower", "bold red"),
    "cannot tell": ("cannot tell whether speculation is faster", "bold yellow"),
}
_BAR_WIDTH = 20
_CUT = "Depths are cut from the counted chain; replayed, a shallower one is some per cent longer than that."


def speedup_report(found: Speedup, depths: Sequence[ChainDepth] = ()) -> RenderableType:
    """Verdict first, then why, then the numbers."""
    verdict, style = _VERDICT[found.verdict]
    kind = "measured" if found.is_measured else "expected"
    title = Text.assemble((verdict, style), f": {_range(found.speedup, 2)} times the target alone, {kind}")
    reasons = [Padding(Text(f"- {sentence}"), (0, 0, 0, 2)) for sentence in found.sentences]
    parts: list[RenderableType] = [title, *reasons, "", _figures(found), "", _terms(found)]
    if depths:
        parts += ["", _depths(depths), Text(_CUT, style="dim")]
    return Group(*parts)


def _figures(found: Speedup) -> Table:
    requests = found.times.batch_size
    shared = "" if requests == 1 else f", of {requests} requests together"
    rows = [
        ("acceptance length", f"{_range(found.acceptance_length, 2)} tokens a round"),
        ("break-even length", f"{_range(found.break_even, 2)} tokens a round = the round in target steps"),
        ("tokens/s", f"{_range(found.tokens_per_second, 1)}{shared}"),
        ("  without", f"{_range(found.baseline_tokens_per_second, 1)}{shared}"),
        ("round", f"{_range(found.round_ms, 2)} ms"),
        ("target step", f"{_range(found.times.target_step, 2)} ms"),
    ]
    if found.needed_rate is not None:
        rows.insert(2, ("  as a rate", f"{found.needed_rate:.2f} of the drafts kept at each depth that is reached"))
    return facts(rows)


def _terms(found: Speedup) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("part of a round", "ms", "share", ""):
        table.add_column(name, justify="right" if name in ("ms", "share") else "left", no_wrap=bool(name))
    table.add_column("beyond a step", justify="right")
    table.add_column("speed-up without", justify="right")
    table.add_column("time is")
    for term in found.terms:
        share = term.ms / found.round_ms.value
        is_problem, without = term == found.problem, found.without(term)
        table.add_row(
            Text(term.name, style="bold" if is_problem else ""),
            f"{term.ms:.2f}",
            f"{100 * share:.0f} %",
            Bar(min(share, 1.0), _BAR_WIDTH, "red" if is_problem else "blue"),
            f"{term.excess_ms:.2f}",
            "-" if without is None else f"{without:.2f}",
            term.source,
        )
    return table


def _depths(depths: Sequence[ChainDepth]) -> Table:
    best = max(depths, key=lambda depth: depth.expected.tokens_per_second.value)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("num_steps", "length", "round ms", "tokens/s", "speed-up"):
        table.add_column(name, justify="right")
    table.add_column("")
    for depth in depths:
        expected = depth.expected
        remark = "fastest" if depth is best else "may be as fast" if depth.may_be_fastest else ""
        table.add_row(
            str(depth.num_steps),
            f"{expected.acceptance_length.value:.2f}",
            f"{expected.round_ms.value:.2f}",
            f"{expected.tokens_per_second.value:.1f}",
            f"{expected.speedup.value:.2f}",
            Text(remark, style="bold green" if depth is best else ""),
        )
    return table


def _range(span: Span, digits: int) -> str:
    value, low, high = (f"{number:.{digits}f}" for number in (span.value, span.low, span.high))
    return value if low == high == value else f"{value} [{low}, {high}]"
