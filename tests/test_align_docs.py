"""docs/align.md shows what benchmarks/align_noise.py counted."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_table_is_the_one_that_was_counted():
    counted = json.loads((ROOT / "benchmarks" / "results" / "align_noise.json").read_text())
    page = (ROOT / "docs" / "align.md").read_text().splitlines()
    rows = {cells[1]: cells[2:-1] for line in page if len(cells := [part.strip() for part in line.split("|")]) == 11}
    header = rows.pop("what was dumped")
    shown = {
        family: dict(zip(header, map(int, counts), strict=True)) for family, counts in rows.items() if family[0] != "-"
    }
    assert shown == counted["named"]
    assert f"How many dumps of {counted['draws']} were named" in "\n".join(page)


def test_no_dump_was_given_a_layer_that_is_not_its_own():
    counted = json.loads((ROOT / "benchmarks" / "results" / "align_noise.json").read_text())
    assert {number for row in counted["misnamed"].values() for number in row.values()} == {0}
