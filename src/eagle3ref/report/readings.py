"""What servers said, for people: one row for each format, then what follows from it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from eagle3ref.report.style import facts, percent
from eagle3ref.servers import Reading, Rounded, RoundsEstimate, Trend
from eagle3ref.servers.evidence.summary import Group, Summary


def readings_report(summary: Summary) -> RenderableType:
    """The table of formats, and under it what the figures mean, change with, and contradict."""
    rows = [row for group in summary.groups for row in _notes(group)]
    parts: list[RenderableType] = [_table(summary.groups), ""]
    parts += [facts(list(_findings(summary))), ""]
    parts += [Text("What these figures are", style="bold cyan"), facts(rows), ""]
    parts += [Text(f"next: {step}", style="dim") for step in summary.next_steps]
    return Lines(*parts)


def live_line(reading: Reading) -> Text:
    """One reading as it came."""
    time = "" if reading.time is None else f"{reading.time:%H:%M:%S}  "
    figures = [f"length {interval(reading.accept_length or reading.length_with_bonus)}"]
    figures += [] if reading.accept_rate is None else [f"rate {interval(reading.accept_rate)}"]
    figures += [] if reading.running_requests is None else [f"{reading.running_requests} running"]
    name = " ".join(filter(None, (reading.tool, reading.format, reading.source, reading.request_id or "")))
    return Text.assemble((time, "dim"), (name, "bold"), "  ", ", ".join(figures))


def interval(number: Rounded | None) -> str:
    """``2.50 [2.495, 2.505]``; the ends are left out where nothing was rounded."""
    if number is None:
        return "-"
    digits = 4 if abs(number.value) < 1 else 3
    if number.high - number.low < 1e-9:
        return f"{number.value:.{digits}f}"
    return f"{number.value:.{digits}f} [{number.low:.{digits}f}, {number.high:.{digits}f}]"


def _table(groups: tuple[Group, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("what was read", overflow="fold")
    table.add_column("number", justify="right", no_wrap=True)
    table.add_column("period", overflow="fold")
    table.add_column("length with bonus", no_wrap=True)
    table.add_column("rounds", justify="right", no_wrap=True)
    for group in groups:
        pooled = group.pooled
        table.add_row(
            Text(f"{group.tool} {group.format}"),
            f"{group.count:,}",
            _period(group),
            Text(_range(group) if pooled is None else interval(pooled.length)),
            "-" if pooled is None or pooled.rounds is None else _rounds(pooled.rounds),
        )
    return table


def _findings(summary: Summary) -> Iterator[tuple[str, str]]:
    best = summary.best
    if best is None:
        yield "length", "none: what was read does not determine one, or is of no round at all"
    else:
        yield "length", f"{interval(best.length)} tokens a round, bonus token counted: {best.length_how}"
        if best.rounds is not None and not best.rounds.is_counted:
            yield "rounds", f"{_rounds(best.rounds)}: {best.rounds.how}"
        if best.accept_rate_at:
            rates = " ".join(f"{rate.value:.3f}" for rate in best.accept_rate_at)
            yield "accepted at least 1, 2, …", f"{rates} (of all rounds: joint rates)"
        if best.histogram:
            yield "rounds by accepted drafts", " ".join(f"{c}:{number:,}" for c, number in enumerate(best.histogram))
    if summary.rate is not None:
        yield "accept rate", summary.rate.sentence
        yield from (("", remark) for remark in summary.rate.remarks)
    for trend in summary.trends:
        yield f"{trend.direction} with {trend.by.replace('_', ' ')}", _trend(trend)
    if summary.no_graph_share:
        share = "all" if summary.no_graph_share == 1 else percent(summary.no_graph_share)
        yield "CUDA graphs", f"off in {share} of the lines: on a GPU, small batches then run far below its speed"
    for warning in summary.warnings:
        yield "the server warned", warning
    for remark in summary.remarks:
        yield "dropped", remark
    if summary.not_acceptance:
        yield "not about acceptance", ", ".join(f"{number:,} {kind}" for kind, number in summary.not_acceptance.items())


def _notes(group: Group) -> Iterator[tuple[str, str]]:
    name = f"{group.tool} {group.format}"
    yield name, f"length is {group.meaning}"
    if len(group.sources) > 1:
        shown = ", ".join(group.sources[:8]) + (", …" if len(group.sources) > 8 else "")
        yield name, f"{len(group.sources)} sources: {shown}"
    if group.least is not None and group.most is not None and group.least != group.most:
        yield name, f"printed lengths from {group.least.value:g} to {group.most.value:g}"
    elif group.least is not None and group.length_kind != "with_bonus":
        yield name, f"printed length {interval(group.least)}"
    if group.rates is not None:
        low, high = group.rates
        yield name, f"printed rate {interval(low)}" if low == high else f"printed rates {low.value:g} to {high.value:g}"
    for remark, number in group.remarks:
        yield name, remark if number == 1 else f"{remark} ({number:,} times)"
    if group.pooled is not None:
        yield from ((name, remark) for remark in group.pooled.remarks)


def _period(group: Group) -> str:
    if group.first is None or group.last is None:
        return "-"
    if group.first == group.last:
        return f"{group.first:%Y-%m-%d %H:%M:%S}"
    same_day = group.first.date() == group.last.date()
    return f"{group.first:%Y-%m-%d %H:%M} to {group.last:{'%H:%M' if same_day else '%Y-%m-%d %H:%M'}}"


def _range(group: Group) -> str:
    if group.least is None or group.most is None:
        return "-"
    return f"{group.least.value:g} to {group.most.value:g}"


def _rounds(rounds: RoundsEstimate) -> str:
    if rounds.is_counted:
        return f"{rounds.value:,.0f}"
    return f"~{rounds.value:,.0f} [{rounds.low:,.0f}, {rounds.high:,.0f}]"


def _trend(trend: Trend) -> str:
    ends = f"[{trend.low:+.4f}, {trend.high:+.4f}]"
    return f"{trend.change:+.3f} in all, {trend.slope:+.4f} {ends} per {trend.unit}, of {trend.points:,} readings"
