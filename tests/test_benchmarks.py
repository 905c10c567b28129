"""The benchmarks' own parts: the workload is what it says, the guard can fail, the page is what was measured."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import guard
import mid_size
import pytest
import torch
from frozen_loop import FrozenLoop, build_trees
from peers import tables
from peers.safeailab import states_of

import eagle3ref as e3

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"

SIZE = mid_size.Size(64, 128, 4, 2, 256, 128)
TREES = (e3.TreeConfig(3, 1, 4), e3.TreeConfig(4, 3, 9, tree_kv="ancestor"))


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> tuple[e3.Eagle3Draft, e3.Trace]:
    folder = tmp_path_factory.mktemp("workload")
    draft = e3.load_draft(mid_size.write_draft(folder / "draft", SIZE), dtype=torch.float32)
    return draft, mid_size.write_trace(draft, folder / "trace", 16, 96)


def test_the_made_trace_agrees_as_often_as_its_page_says(workload):
    """Catches streams that do not fuse to the state that was passed on: then nothing below the first draft is right."""
    draft, trace = workload
    trace.check()
    counts = e3.replay(trace, draft, TREES[0])
    assert 1.7 < counts.acceptance_length < 2.6
    first, second, third = (float(counts.histogram.sum(0)[d:].sum()) for d in (1, 2, 3))
    assert second / first > 0.4
    assert third / second > 0.4


def test_the_made_trace_is_the_same_every_time(workload, tmp_path):
    """Catches a random number that no seed decides: two runs would score different work."""
    _, trace = workload
    draft = e3.load_draft(mid_size.write_draft(tmp_path / "draft", SIZE), dtype=torch.float32)
    again = mid_size.write_trace(draft, tmp_path / "trace", 16, 96)
    for one, other in zip(trace, again, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert all(torch.equal(one.aux_hidden_states[p], other.aux_hidden_states[p]) for p in mid_size.CAPTURE_POINTS)


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_the_frozen_loop_is_the_reference(workload, tree):
    """Catches a baseline that does less work than it should, or other work."""
    draft, trace = workload
    reference = {sequence.id: sequence.num_accepted.tolist() for sequence in e3.replay_rounds(trace, draft, tree)}
    loop = FrozenLoop(draft)
    for sequence in list(trace)[:4]:
        found = loop.accepted(sequence.tokens, states_of(sequence, draft), sequence.prompt_length, tree)
        assert found == reference[sequence.id]


def test_the_frozen_trees_are_the_library_s():
    """Catches a baseline that builds other trees than it is held against."""
    candidates = guard.random_candidates(5)
    parents, masks = build_trees(candidates, 12)
    roots = torch.zeros(5, dtype=torch.int64)
    tree = e3.build_tree(candidates, root_tokens=roots, prefix_lengths=roots, num_draft_tokens=12)
    assert torch.equal(parents, tree.parents)
    assert torch.equal(masks, tree.tree_mask)


def test_a_slow_down_fails_the_guard(monkeypatch, capsys, tmp_path):
    """Catches a guard that passes whatever it measures, one that fails at once, and one that looks only once."""
    expected = tmp_path / "guard.json"
    expected.write_text(json.dumps({"work": 20.0}))
    monkeypatch.setattr(guard, "EXPECTED", expected)
    monkeypatch.setattr(sys, "argv", ["guard.py"])
    looks = []

    def work(milliseconds: float) -> guard.Work:
        """Counted seconds instead of real ones, so that this test does not depend on the machine."""
        return lambda: looks.append(milliseconds)

    def counted(one: guard.Work) -> float:
        one()
        return looks[-1] / 1000

    monkeypatch.setattr(guard, "processor_seconds", counted)
    for ours, status, times in ((1.0, 0, guard.REPEATS), (1.3, 0, guard.REPEATS), (1.4, 1, 2 * guard.REPEATS)):
        looks.clear()
        monkeypatch.setattr(guard, "comparisons", lambda _folder, ours=ours: {"work": (work(20.0), work(ours))})
        assert guard.main() == status
        assert looks.count(ours) == times
        assert ("has fallen by 29%" in capsys.readouterr().out) == bool(status)


def test_the_guard_s_clock_sees_real_work():
    """Catches a clock that stands still, or counts waiting."""
    work = guard.processor_seconds(lambda: torch.randn(300, 300).svd())
    assert work > 0.0005
    assert guard.processor_seconds(lambda: time.sleep(0.05)) < 0.04


def test_every_ratio_of_the_guard_has_its_expected_one():
    """Catches a comparison that was added or renamed and is never held against anything."""
    expected = json.loads(guard.EXPECTED.read_text())
    names = [f"walk of {guard.CHAIN}", f"all settings within {guard.TREE}", f"{guard.ROOTS} trees at once"]
    assert list(expected) == names
    assert all(ratio > 1 for ratio in expected.values())


def test_the_page_has_what_was_measured():
    """Catches figures on the page that no run gave, and a run that the page does not show."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    results = json.loads((BENCHMARKS / "results" / "bench_vs_peers_cpu.json").read_text())
    made = tables.tables(results)
    assert set(made) == {"replays", "steps", "engines", "growth", "rate", "goals"}
    for name, table in made.items():
        assert f"<!-- {name} -->\n{table}\n<!-- end -->" in page, name


def test_what_was_not_run_says_why():
    """Catches a peer that was left out without a word."""
    results = json.loads((BENCHMARKS / "results" / "bench_vs_peers_cpu.json").read_text())
    for part in results.values():
        assert part["rows"] or part["not_run"]
        assert all(part["not_run"].values())
