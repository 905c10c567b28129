"""An aligned dump for people: the match table, the first values, and the sentence."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eagle3ref.align import Alignment, Candidate, TensorMatch, ids_by_engine
from eagle3ref.report.style import facts

_STYLE = {"right": "bold green", "wrong": "bold red", "cannot tell": "bold yellow"}
_VERDICT = {
    "exact": "equal",
    "same": "same place, other rounding",
    "scaled": "same direction, scaled",
    "mixed": "of two places",
    "ambiguous": "cannot be told",
    "none": "nothing fits",
}


def align_report(found: Alignment, title: str, draft: str | None = None) -> RenderableType:
    """The whole report.

    Args:
        found: the alignment.
        title: what the dump is.
        draft: what it means for a draft; None if none was given.
    """
    ids = [
        (f"ids for {engine}", "none capture these" if layer_ids is None else ", ".join(map(str, layer_ids)))
        for engine, layer_ids in ids_by_engine(found).items()
    ]
    draft_rows = [] if draft is None else [("draft", draft)]
    rows = [*ids, *draft_rows, *(("note", note) for note in found.notes)]
    return Group(
        Text.assemble(("dump ", "bold cyan"), (title, "bold")),
        _match_table(found.matches),
        "",
        _values_table(found.matches),
        "",
        Text.assemble((f"{found.verdict}  ", _STYLE[found.verdict]), found.sentence),
        *([facts(rows)] if rows else []),
    )


def _match_table(matches: Sequence[TensorMatch]) -> Table:
    table = _table(("state", "is called", "comes from"), ("error", "cosine", "norm"), ("next best",), ("error", "rows"))
    table.add_column("verdict")
    for match in matches:
        best, other = match.best, match.runner_up
        table.add_row(
            Text(match.label),
            Text("-" if match.claim is None else match.claim.text),
            Text("-" if best is None else _place(best)),
            "-" if best is None else f"{best.error:.2g}",
            "-" if best is None else f"{best.cosine:.4f}",
            "-" if best is None else f"x {best.norm_ratio:.3g}",
            Text("-" if other is None else _place(other)),
            "-" if other is None else f"{other.error:.2g}",
            f"{match.num_rows:,}",
            _VERDICT[match.verdict],
        )
    return table


def _values_table(matches: Sequence[TensorMatch]) -> Table:
    """One row of each state as it was dumped, and as the target has it at the best place."""
    table = _table(("one row of",), ("norm",), ("first values",), ())
    for match in matches:
        target = None if match.best is None else match.best.shown
        for name, sample in ((match.label, match.shown), ("  in the target", target)):
            if sample is not None:
                norm, values = sample
                table.add_row(Text(name), f"{norm:.4g}", "  ".join(f"{value:9.4f}" for value in values))
    return table


def _table(left: Sequence[str], right: Sequence[str], middle: Sequence[str], last: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for names, justify in ((left, "left"), (right, "right"), (middle, "left"), (last, "right")):
        for name in names:
            table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    return table


def _place(candidate: Candidate) -> str:
    shift = candidate.place.shift
    if shift.is_none:
        return str(candidate.place.boundary)
    where = "last row at the last token" if shift.anchor == "end" else "rows"
    return f"{candidate.place.boundary}, {where} {shift.rows:+d}"
