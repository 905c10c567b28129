"""The catalogue in ``docs/diagnose.md`` is the code's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pair_worlds import world

import eagle3ref as e3
from eagle3ref.diagnose import RUNTIME_CAUSES, SYMPTOMS, VERDICT_MEANING

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "diagnose.md").read_text()


def rows(heading: str) -> dict[str, list[str]]:
    """First column in backquotes -> cells, of the table under a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    found = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"
    ]
    return {cells[0].strip("`"): cells[1:] for cells in found}


@pytest.mark.parametrize("tree", [e3.TreeConfig(3, 1, 4), e3.TreeConfig(4, 3, 9)], ids=str)
def test_every_hypothesis_is_on_the_page(tree: e3.TreeConfig) -> None:
    """Catches a hypothesis that was added or renamed, and one that is listed under another class."""
    listed = {cause: re.findall(r"`([^`]+)`", cells[0]) for cause, cells in rows("The catalogue").items()}
    laboratory = world("llama", 4, 24).laboratory(tree)
    for one in (*laboratory.hypotheses[1:], *laboratory.left_out):
        assert one.name in listed[one.cause], one.name


def test_symptoms_are_on_the_page() -> None:
    """Catches a symptom that the page leaves out, or explains in other words, or sends elsewhere."""
    listed = rows("Symptoms and causes in the running server")
    assert list(listed) == list(SYMPTOMS)
    for name, (meaning, causes) in listed.items():
        assert meaning == SYMPTOMS[name]
        assert re.findall(r"`([^`]+)`", causes) == [cause.name for cause in RUNTIME_CAUSES if name in cause.signs]


def test_verdicts_are_on_the_page() -> None:
    """Catches a verdict that the page does not explain."""
    assert all(f"| {verdict} | " in PAGE for verdict in VERDICT_MEANING)


def test_the_blind_table_is_the_results() -> None:
    """Catches figures on the page that no run gave."""
    results = json.loads((ROOT / "benchmarks" / "results" / "blind_test.json").read_text())
    for row in results["wall_clock"]:
        cells = [row[name] for name in ("pair", "replays_by_rows", "replays_by_clock", "seconds")]
        assert "| " + " | ".join(map(str, cells)) + " |" in PAGE
    for row in results["summary"]:
        names = ("pair", "told", "tree", "temperature", "at_once", "identifiable", "alone_first", "in_leading_tie")
        names = (*names, "wrongly_named", "median_tie")
        cells = [row[name] for name in names]
        assert "| " + " | ".join(map(str, cells)) + " |" in PAGE
