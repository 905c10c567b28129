"""docs/engines.md against the profiles."""

from pathlib import Path

import pytest
from engine_tables import history_table, side_by_side_table

from eagle3ref.engines import PROFILES, engine_profile

DOCS = (Path(__file__).parents[1] / "docs" / "engines.md").read_text(encoding="utf-8")
NEWEST = [engine_profile(package) for package in ("sglang", "vllm", "safeailab", "tensorrt-llm")]
TABLES = {
    "sglang": history_table(PROFILES["sglang"]),
    "vllm": history_table(PROFILES["vllm"]),
    "side by side": side_by_side_table(NEWEST),
}


@pytest.mark.parametrize("name", TABLES)
def test_docs_hold_the_table(name):
    """A profile that was corrected while its documentation was not. To renew: paste what this prints."""
    print(TABLES[name])
    assert TABLES[name] in DOCS


def test_each_measured_range_is_in_the_docs():
    """A table that lost a row: every release range stands in the text."""
    assert all(profile.versions in DOCS for package in ("sglang", "vllm") for profile in PROFILES[package])


def test_side_by_side_shows_what_differs():
    """A renderer that drops values: facts known by hand are in their cells."""
    rows = {line.split("`")[1]: line for line in TABLES["side by side"].splitlines()[2:]}
    assert rows["tree_kv"] == "| `tree_kv` | slot | - | ancestor | - |"
    assert rows["sampled_rule"] == "| `sampled_rule` | target_only | rejection | multi_round | - |"
    assert "*: 3/1/4" in rows["default_trees"]
    assert "block (drafts sampled)" in rows["sampled_options"]


def test_history_shows_only_what_changed():
    """A row that repeats everything, or leaves a change out."""
    (row,) = [line for line in TABLES["sglang"].splitlines() if line.startswith("| >=0.5.21")]
    assert row.count("`") == 2
    assert "SGLang PR #35798, first in 0.5.21: `sampled_rule`: target_only |" in row
    (row,) = [line for line in TABLES["sglang"].splitlines() if line.startswith("| >=0.5.10")]
    assert row.endswith("`id_rules`: kimi_k25: plus_one |")
    (row,) = [line for line in TABLES["vllm"].splitlines() if line.startswith("| >=0.9.0")]
    assert "`accept_length`: (accepted drafts + rounds) / rounds" in row
