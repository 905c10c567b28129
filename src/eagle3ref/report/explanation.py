"""An explanation for people: the traps first, then what runs, line by line."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eagle3ref.engines.profile import Source
from eagle3ref.explain import Explanation, Severity, Statement, Trap

_COLOURS: dict[Severity, str] = {
    "fails at start": "bold red",
    "fails at first forward": "bold red",
    "silent, costs acceptance": "bold yellow",
    "silent, changes the text": "bold yellow",
    "harmless": "dim",
}


def explanation_report(explanation: Explanation) -> RenderableType:
    """What goes wrong, then what the engine runs, each with its source."""
    case, wrong = explanation.case, [trap for trap in explanation.traps if trap.is_wrong]
    title = Text.assemble(
        (case.engine, "bold cyan"),
        f" with draft {case.draft.folder} on target {case.target_folder}",
    )
    count = f"{len(wrong)} thing{'s' if len(wrong) > 1 else ''} wrong" if wrong else "nothing wrong"
    remarks = len(explanation.traps) - len(wrong)
    count += f", {remarks} remark{'s' if remarks > 1 else ''}" if remarks else ""
    parts: list[RenderableType] = [title, Text(count, style="bold red" if wrong else "bold green"), ""]
    for trap in explanation.traps:
        parts += [_trap(trap), ""]
    parts += [Text("What runs", style="bold cyan"), Padding(_statements(explanation.statements), (0, 0, 0, 2))]
    if case.flags.unrelated:
        parts += ["", Text(f"not relevant here: {' · '.join(case.flags.unrelated)}", style="dim")]
    if case.flags.unknown:
        parts += ["", Text(f"not known here, and not checked: {' · '.join(case.flags.unknown)}", style="dim")]
    return Group(*parts)


def _trap(trap: Trap) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    rows = (("seen", trap.seen), ("do", trap.fix), ("source", _source(trap.source)))
    for name, value in rows:
        table.add_row(Text(f"  {name}"), Text(value, style="dim" if name == "source" else ""))
    return Group(Text.assemble((f"{trap.severity}: ", _COLOURS[trap.severity]), (trap.what, "bold")), table)


def _statements(statements: tuple[Statement, ...]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for statement in statements:
        text = Text(statement.text)
        if statement.source is not None:
            text.append(f"  [{_source(statement.source)}]", style="dim")
        table.add_row(Text(statement.topic), text)
    return table


def _source(source: Source) -> str:
    if not source.is_established:
        return "no source yet"
    return f"{source.where}, {source.date}" if source.date else source.where
