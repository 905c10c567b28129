"""A server of the demo for people: what it logged, whether that is right, and why it is not."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eagle3ref.crosscheck import CrossCheck
from eagle3ref.diagnose import Diagnosis
from eagle3ref.report.style import facts, rate

_CANDIDATES = 4


def served_report(server: str, log_line: str, checked: CrossCheck, diagnosis: Diagnosis) -> RenderableType:
    """The story of one server: its line, the verdict, the cause, and what the other hypotheses predict.

    Args:
        server: what serves what.
        log_line: as the engine prints it.
        checked: its request fields against the replay.
        diagnosis: of the same fields.
    """
    rows = [("it logs", log_line), ("crosscheck", checked.sentence), ("diagnose", diagnosis.sentence)]
    rows += [("do", candidate.hypothesis.fix) for candidate in diagnosis.leading]
    cost = diagnosis.cost
    note = f"{cost.hypotheses} mis-wirings, in as many draft rows as {cost.replays:.0f} plain replays of the trace"
    return Group(
        Text(f"A server: {server}", style="bold cyan"),
        Padding(Group(facts(rows), "", _candidates(diagnosis), Text(note, style="dim")), (0, 0, 0, 2)),
    )


def _candidates(diagnosis: Diagnosis) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("what it may be running")
    table.add_column("length on the trace", justify="right")
    table.add_column("requests reproduced, of those tried", justify="right")
    for candidate in diagnosis.ranked[:_CANDIDATES]:
        style = "bold" if candidate.name in diagnosis.names else ""
        equal = f"{candidate.equal} of {candidate.requests}"
        table.add_row(Text(candidate.name, style=style), rate(candidate.acceptance_length), equal)
    return table
