"""A tuned surface for people: what to serve and why, then a table for each topk."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eagle3ref.config import TreeConfig
from eagle3ref.report.style import facts
from eagle3ref.tune.advice import Advice, Mark
from eagle3ref.tune.ranking import Ranking

_LADDER = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
_MOST_COLUMNS = 9
_MANY_TOKENS = 1000  # a second; from there on decimals would only fill the line
_APART = 0.1  # two columns that are nearer show much the same
_SIGN: dict[Mark, str] = {"best": "*", "may be best": "=", "refused": "x", "behind": " ", "no complete round": " "}
_STYLE: dict[Mark, str] = {"best": "bold green", "may be best": "green", "refused": "dim", "behind": ""}
_OPTIMISTIC = "Each best was chosen on the prompts that it is shown on, and looks better than it is."
_LEGEND: dict[Mark | None, tuple[str, str]] = {
    "best": ("*", "best"),
    "may be best": ("=", "cannot be told from the best, with so many compared"),
    None: (">", "the cheapest of these within 2 % of the best"),
    "refused": ("x", "the engine refuses it"),
    "no complete round": ("-", "no complete round: the answers end within its num_steps"),
}


def tune_report(advice: Advice, title: str) -> RenderableType:
    """The recommendation first, then why, then the surface."""
    recommended = advice.ranking.recommended
    loses = advice.worth is not None and advice.worth.verdict == "loses"
    claim = "not recommended, but the best there is" if loses else "recommended"
    headline = Text.assemble(
        f"{'by acceptance alone' if advice.worth is None else claim}: ",
        (f"{recommended}", "bold red" if loses else "bold green"),
        f" (num_steps/topk/num_draft_tokens), {_worth(advice)}",
    )
    reasons = [Padding(Text(f"- {sentence}"), (0, 0, 0, 2)) for sentence in advice.sentences]
    parts: list[RenderableType] = [Text(title, style="bold cyan"), headline, *reasons]
    for topk in dict.fromkeys(tree.topk for tree in advice.surface.settings):
        parts += ["", _heading(advice, topk), _chain(advice) if topk == 1 else _trees(advice, topk)]
    if advice.categories is not None:
        parts += ["", _categories(advice), Text(_OPTIMISTIC, style="dim")]
    marks = {None, *map(advice.mark, advice.surface.settings)}
    signs = [sign for mark, sign in _LEGEND.items() if mark in marks]
    return Group(*parts, "", facts([*signs, ("kind", advice.surface.kind)]))


def _worth(advice: Advice) -> str:
    recommended = advice.ranking.recommended
    length = f"acceptance length {advice.by_length.value(recommended):.2f}"
    if advice.worth is None:
        return length
    speed, gain = advice.worth.tokens_per_second.value, advice.worth.speedup
    return f"{length}\n{speed:.1f} tokens/s, {gain.value:.2f} [{gain.low:.2f}, {gain.high:.2f}] times the target alone"


def _heading(advice: Advice, topk: int) -> Text:
    what = "tokens/s" if advice.by_speed is not None else "acceptance length"
    shape = "num_draft_tokens = num_steps + 1" if topk == 1 else "num_steps down, num_draft_tokens across"
    return Text.assemble((f"topk {topk}", "bold"), f"  {what}; {shape}")


def _chain(advice: Advice) -> Table:
    chains = [tree for tree in advice.surface.settings if tree.topk == 1]
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("num_steps", "num_draft_tokens", "length", *(("tokens/s",) if advice.by_speed else ())):
        table.add_column(name, justify="right")
    for tree in chains:
        length = advice.surface.acceptance_lengths[advice.surface.index(tree)]
        values = ["- " if np.isnan(length) else f"{length:.2f} "] if advice.by_speed is not None else []
        table.add_row(str(tree.num_steps), str(tree.num_draft_tokens), *values, _cell(advice, tree))
    return table


def _trees(advice: Advice, topk: int) -> Table:
    trees = {(tree.num_steps, tree.num_draft_tokens): tree for tree in advice.surface.settings if tree.topk == topk}
    columns = _columns(advice, topk)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("", *map(str, columns)):
        table.add_column(f"{name} " if name else name, justify="right", no_wrap=True)
    for steps in sorted({steps for steps, _ in trees}):
        row = [trees.get((steps, width)) for width in columns]
        cells = [Text() if tree is None else _cell(advice, tree) for tree in row]
        table.add_row(Text(str(steps), style="bold"), *cells)
    return table


def _columns(advice: Advice, topk: int) -> list[int]:
    """The widths that are shown: the best of this topk, the recommended one, the largest, and steps of a ladder."""
    trees = [tree for tree in advice.surface.settings if tree.topk == topk]
    widths = {tree.num_draft_tokens for tree in trees}
    ranked = [tree for tree in trees if tree in advice.ranking]
    shown = {max(widths)}
    if ranked:
        shown.add(max(ranked, key=advice.ranking.value).num_draft_tokens)
    shown |= {tree.num_draft_tokens for tree in (advice.ranking.best, advice.ranking.recommended) if tree.topk == topk}
    near = {width for width in _LADDER for other in shown if abs(width - other) < _APART * other}
    ladder = [width for width in _LADDER if width in widths - near]
    while len(shown) + len(ladder) > _MOST_COLUMNS:
        gaps = {width: min(abs(width - other) / width for other in {*shown, *ladder} - {width}) for width in ladder}
        ladder.remove(min(ladder, key=lambda width: gaps[width]))
    return sorted({*shown, *ladder})


def _cell(advice: Advice, tree: TreeConfig) -> Text:
    mark = advice.mark(tree)
    if mark == "no complete round":
        return Text("- ")
    ranking, length = advice.ranking, advice.surface.acceptance_lengths[advice.surface.index(tree)]
    if mark == "refused":
        return Text(f"{length:.2f}x" if advice.by_speed is None else "x", style="dim")
    speed_digits = 1 if ranking.value(ranking.best) < _MANY_TOKENS else 0
    value = f"{ranking.value(tree):.{2 if advice.by_speed is None else speed_digits}f}"
    is_recommended = tree == ranking.recommended
    sign = ">" if is_recommended else ""
    return Text(f"{sign}{value}{_SIGN[mark]}", style="bold reverse" if is_recommended else _STYLE[mark])


def _categories(advice: Advice) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("category")
    for name in ("prompts", "best", "tokens/s", "cannot be told from it", f"{advice.ranking.recommended} here"):
        table.add_column(name, justify="right")
    assert advice.categories is not None  # asked by the caller
    for choice in advice.categories.choices:
        table.add_row(Text(choice.name), str(choice.prompts), *_fared(choice.ranking, advice.ranking.recommended))
    return table


def _fared(ranking: Ranking | None, for_all: TreeConfig) -> list[str]:
    """The best setting of a category, how clearly, and what the one for all prompts gives there."""
    if ranking is None:
        return ["-", "-", "-", "-"]
    others = int(ranking.comparison.may_be_best.sum()) - 1
    there = f"{ranking.value(for_all):.1f}" if for_all in ranking else "-"
    return [str(ranking.best), f"{ranking.value(ranking.best):.1f}", str(others), there]
