"""A diagnosis for people: the verdict, the ranked table, what to look at next, the fix, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eagle3ref.diagnose import VERDICT_MEANING, Candidate, Diagnosis, LeftOut, RuntimeCause, Verdict
from eagle3ref.report.style import Bar, facts, rate

_ROWS = 8
_NAME_WIDTH = 23  # of most hypotheses; longer names are folded
_COLOURS: dict[Verdict, str] = {
    "as it should be": "bold green",
    "cause named": "bold red",
    "tie": "bold yellow",
    "none fits": "bold red",
    "cannot tell": "bold yellow",
}


def diagnosis_report(diagnosis: Diagnosis, title: str) -> RenderableType:
    """Everything that a colleague needs to act on it, the verdict first."""
    verdict = Text.assemble((diagnosis.verdict, _COLOURS[diagnosis.verdict]), f"  {diagnosis.sentence}")
    parts: list[RenderableType] = [Text(title, style="bold cyan"), verdict, ""]
    parts += [_section("Evidence", facts([("", line) for line in diagnosis.seen]))] if diagnosis.seen else []
    if diagnosis.from_files:
        rows = [row for trap in diagnosis.from_files for row in (("found", trap.what), ("do", trap.fix))]
        parts.append(_section("In the files and the command", facts(rows)))
    if diagnosis.ranked:
        parts.append(_section("What explains it", _table(diagnosis)))
    if diagnosis.not_carried_through:
        names = ", ".join(diagnosis.not_carried_through)
        rows = [("", f"{names}. The budget was spent before they were replayed on every sequence: raise --budget.")]
        parts.append(_section("Not carried through", facts(rows)))
    if diagnosis.is_wrong and diagnosis.verdict != "none fits" and diagnosis.leading:
        parts.append(_section("What to do", _fixes(diagnosis.leading)))
    if diagnosis.following:
        rows = [(str(i), f"{one.what} {_expected(one.expected)}") for i, one in enumerate(diagnosis.following, 1)]
        parts.append(_section("What would tell them apart, the cheapest first", facts(rows)))
    parts += _runtime(diagnosis)
    if diagnosis.untestable:
        parts.append(_section("Not tested: the record lacks what they need", _left_out(diagnosis.untestable)))
    parts.append(_section("What the verdict claims", facts([(diagnosis.verdict, VERDICT_MEANING[diagnosis.verdict])])))
    if diagnosis.ranked:
        parts.append(Text(_cost(diagnosis), style="dim"))
    return Group(*parts)


def _section(title: str, body: RenderableType) -> RenderableType:
    return Group(Text(title, style="bold cyan"), Padding(body, (0, 0, 1, 2)))


def _table(diagnosis: Diagnosis) -> RenderableType:
    """The leading ones, and the next ones after them; columns that would be empty are left out, for narrow screens."""
    leading, every = set(diagnosis.names), max(candidate.sequences for candidate in diagnosis.ranked)
    shown = diagnosis.ranked[: max(_ROWS, min(len(leading) + 3, 2 * _ROWS))]
    columns = {
        "share": [_share(candidate) for candidate in shown],
        "length": [rate(candidate.acceptance_length) for candidate in shown],
        "joint rates": [" ".join(rate(value) for value in candidate.rates) for candidate in shown],
        "equal requests": [f"{one.equal}/{one.requests}" if one.requests else "-" for one in shown],
        "fits": ["-" if one.sequences < every else "yes" if one.fits else "no" for one in shown],
        "replayed": [f"{candidate.sequences}" for candidate in shown],
        "said by": ["-" if one.said_by is None else one.said_by.name for one in shown],
    }
    told = {name: column for name, column in columns.items() if set(column) != {"-"}}
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("hypothesis", overflow="fold", min_width=_NAME_WIDTH)
    table.add_column("")
    for name in told:
        table.add_column(name, justify="right", no_wrap=True)
    for candidate, *cells in zip(shown, *told.values(), strict=True):
        style = "bold" if candidate.name in leading else ""
        table.add_row(Text(candidate.name, style=style), Bar(candidate.share, 10, "green"), *cells)
    hidden = len(diagnosis.ranked) - len(shown)
    rest = [Text(f"and {hidden} more, less probable still", style="dim")] if hidden else []
    return Group(table, *rest)


def _share(candidate: Candidate) -> str:
    return f"{candidate.share:.3f}" if candidate.share >= 0.0005 else f"e^{candidate.log_odds:.0f}"


def _fixes(leading: Sequence[Candidate]) -> RenderableType:
    return facts([(candidate.name, candidate.hypothesis.fix) for candidate in leading[:_ROWS]])


def _expected(expected: object) -> str:
    items = expected.items() if isinstance(expected, dict) else ()
    some = [f"{name}: {value}" for name, value in items]
    return "Predicted: " + "; ".join(some[:_ROWS]) if some else ""


def _runtime(diagnosis: Diagnosis) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if diagnosis.against is not None:
        changed = [("", line) for line in diagnosis.against.changed]
        parts.append(_section("The other evidence", facts([("", diagnosis.against.sentence), *changed])))
    if diagnosis.signs:
        rows = [(sign.symptom, sign.shown_by) for sign in diagnosis.signs]
        parts.append(_section("Symptoms", facts(rows)))
    if diagnosis.runtime:
        title = "Causes in the running server, which no replay imitates"
        parts.append(_section(title, Group(*(_cause(cause) for cause in diagnosis.runtime[:_ROWS]))))
    return parts


def _cause(cause: RuntimeCause) -> RenderableType:
    rows = [("try", cause.experiment), ("then", cause.fix), ("reports", cause.reports)]
    return Group(Text.assemble((f"{cause.name}: ", "bold"), cause.what), Padding(facts(rows), (0, 0, 0, 2)))


def _left_out(left_out: Sequence[LeftOut]) -> RenderableType:
    by_action: dict[str, list[str]] = {}
    for one in left_out:
        by_action.setdefault(one.action, []).append(one.name)
    return facts([(action, ", ".join(names)) for action, names in by_action.items()])


def _cost(diagnosis: Diagnosis) -> str:
    cost = diagnosis.cost
    return (
        f"{cost.hypotheses} hypotheses in {cost.forwards:,} draft forwards and {cost.seconds:.0f} s: as many draft "
        f"rows as {cost.replays:.1f} plain replays of the trace"
    )
