"""What all terminal reports share: tables, bars, numbers."""

from __future__ import annotations

import math

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from eagle3ref.statistics import Interval

_EIGHTHS = " ▏▎▍▌▋▊▉█"


class Bar:
    """A horizontal bar: ``share`` of a full one, in eighths of a cell, or in ``#`` where the output is ASCII.

    Args:
        share: 0 to 1; nan gives an empty bar.
        width: cells of a full bar.
        style: rich style of the filled part.
    """

    def __init__(self, share: float, width: int, style: str) -> None:
        self.share, self.width, self.style = (0.0 if math.isnan(share) else share), width, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = self.share * min(self.width, options.max_width)
        if options.ascii_only:
            yield Text("#" * round(cells), style=self.style)
            return
        full, eighths = divmod(round(cells * 8), 8)
        yield Text("█" * full + (_EIGHTHS[eighths] if eighths else ""), style=self.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(4, self.width), self.width)


def facts(rows: list[tuple[str, str]]) -> Table:
    """Two columns without lines: what, and its value."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    return table


def rate(value: float) -> str:
    """Two decimals, ``-`` where it is undefined."""
    return "-" if math.isnan(value) else f"{value:.2f}"


def ends(interval: Interval, digits: int) -> str:
    """Both ends of an interval, in brackets."""
    if math.isinf(interval.low):
        return "unknown, of one prompt"
    return f"[{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def percent(value: float | None) -> str:
    """A share in per cent, ``unknown`` when there is none."""
    return "unknown" if value is None else f"{100 * value:.1f} %"


def size(num_bytes: int) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    value, units = float(num_bytes), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{num_bytes} bytes" if units[0] == "bytes" else f"{value:.1f} {units[0]}"


def duration(seconds: float) -> str:
    """In the units that matter: ``3 h 20 min``, ``4 min 10 s``, ``12 s``, ``0.4 s``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
