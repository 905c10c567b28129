"""Ranks and lazy replays of small networks against the reference at every position, and the command line for them."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from position_worlds import accepted_everywhere, candidates_everywhere, made_trace, small_draft
from test_cli import run
from test_docs_commands import assert_printed, shown
from trace_parts import refused

import eagle3ref as e3
from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.config import AcceptanceRule
from eagle3ref.draft import Eagle3Draft
from eagle3ref.positions import BEYOND, replay_positions
from eagle3ref.speedup.counts_file import read_counts

# A prompt of one token, answers shorter than num_steps, one of a single token, which has no root at all.
LENGTHS = [(1, 14), (5, 3), (4, 1), (3, 22), (2, 2)]
TREES = [
    e3.TreeConfig(3, 1, 4),
    e3.TreeConfig(1, 3, 4),
    e3.TreeConfig(4, 2, 7),
    e3.TreeConfig(4, 3, 12),
    e3.TreeConfig(3, 5, 40, "ancestor"),
    e3.TreeConfig(4, 3, 20, "ancestor"),
]
WORLDS = {
    "gqa": {},
    "mla": {"kind": "mla"},
    "two-layers": {"num_layers": 2},
    "mla-two-layers": {"kind": "mla", "num_layers": 2},
    "fp32": {"dtype": torch.float32},
    "all-equal": {"sharpness": 0.0},
    "one-or-nothing": {"sharpness": 1e4},
}
INTEGERS = ("histogram", "censored_rounds", "off_argmax_tokens", "recorded_tokens")


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A draft and a trace that it hits often."""
    folder = tmp_path_factory.mktemp(request.param)
    draft = small_draft(folder / "draft", **WORLDS[request.param])
    return draft, made_trace(folder / "trace", draft, LENGTHS)


def smaller_trees(tree: e3.TreeConfig) -> list[tuple[int, int]]:
    """(num_steps, num_draft_tokens) within a tree: the least, the most and one between, at every depth."""
    found = []
    for steps in range(1, tree.num_steps + 1):
        most = min(tree.num_draft_tokens, e3.TreeConfig(steps, tree.topk, steps + 1).num_candidates + 1)
        nodes = {steps + 1} if tree.topk == 1 else {2, (most + 2) // 2, most}
        found += [(steps, number) for number in sorted(nodes)]
    return found


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: f"{tree}-{tree.tree_kv}")
def test_ranks_answer_every_smaller_tree(world, tree) -> None:
    """Catches a rank that is off by one, a row run with the wrong prefix, state, position or own rows, and a row left
    out that mattered: every position and setting against a tree that the reference builds and verifies."""
    draft, trace = world
    ranked = e3.rank_positions(trace, draft, tree, batch_tokens=60)
    assert [sequence.id for sequence in ranked] == list(trace.ids)
    for sequence, found in zip(trace, ranked, strict=True):
        assert found.ranks.shape == (len(sequence.answer) - 1, tree.num_steps, tree.num_steps)
        if not len(found.ranks):
            continue
        candidates = candidates_everywhere(draft, sequence, tree)
        for steps, nodes in smaller_trees(tree):
            expected = accepted_everywhere(candidates, sequence, tree, steps, nodes)
            assert found.num_accepted(steps, nodes).tolist() == expected, (steps, nodes)
        roots = torch.arange(len(found.ranks)) + sequence.prompt_length
        assert found.complete(tree.num_steps).tolist() == (roots + tree.num_steps < len(sequence.tokens)).tolist()


def same_integers(left: AcceptanceCounts, right: AcceptanceCounts) -> bool:
    return left.prompt_ids == right.prompt_ids and all(
        np.array_equal(getattr(left, name), getattr(right, name)) for name in INTEGERS
    )


@pytest.mark.parametrize("tree", [TREES[0], TREES[3], TREES[5]], ids=lambda tree: f"{tree}-{tree.tree_kv}")
def test_lazy_walk_equals_replay(world, tree, monkeypatch) -> None:
    """Catches a walk that goes on from a wrong root, ends early or late, or mixes up sequences, however it is run."""
    draft, trace = world
    rounds: dict[str, e3.SequenceRounds] = {}
    expected = e3.replay(trace, draft, tree, on_sequence=lambda sequence: rounds.update({sequence.id: sequence}))
    for few in (0, 10**9):  # side by side to the end, or all at once
        monkeypatch.setattr(sys.modules["eagle3ref.positions.play"], "_few_rows", lambda _, few=few: few)
        found = replay_positions(trace, draft, tree, batch_tokens=60)
        assert same_integers(found.counts, expected)
        assert (found.counts == expected) == (tree.topk == 1)  # of a tree the depths of its drafts are not known
        for sequence in found.sequences:
            assert sequence.roots.tolist() == rounds[sequence.id].roots.tolist()
            assert sequence.num_accepted.tolist() == rounds[sequence.id].num_accepted.tolist()
            assert sequence.complete.tolist() == rounds[sequence.id].complete.tolist()
        num_rounds = sum(len(sequence.roots) for sequence in found.sequences)
        assert found.rows.branches <= found.rows.full_branches == num_rounds * tree.topk * (tree.num_steps - 1)
        assert few or not found.rows.skipped


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory):
    """One draft, its trace and their folder, for what is the same for all."""
    folder = tmp_path_factory.mktemp("positions")
    draft = small_draft(folder / "draft")
    return draft, made_trace(folder / "trace", draft, LENGTHS), folder


@pytest.mark.parametrize("tree", [TREES[0], TREES[3]], ids=str)
def test_all_positions_are_a_round_each(small, tree) -> None:
    """Catches positions left out or counted for another text, and means over positions that pass for a server's."""
    draft, trace, _ = small
    finished = []
    found = replay_positions(trace, draft, tree, positions="all", on_sequence=finished.append)
    ranked = e3.rank_positions(trace, draft, tree)
    for sequence, rounds, ranks in zip(trace, found.sequences, ranked, strict=True):
        assert rounds.roots.tolist() == list(range(sequence.prompt_length, len(sequence.tokens) - 1))
        assert torch.equal(rounds.num_accepted, ranks.num_accepted(tree.num_steps, tree.num_draft_tokens))
    assert sorted(rounds.id for rounds in finished) == sorted(trace.ids)
    assert found.counts.kind == "positions"
    walk = replay_positions(trace, draft, tree).counts
    assert found.counts.total_rounds > walk.total_rounds
    refused("one tree, one kind and one rule", lambda: found.counts + walk)


@contextmanager
def count_rows(draft: Eagle3Draft) -> Iterator[list[int]]:
    """The rows of each pass through the draft's last MLP."""
    numbers: list[int] = []
    handle = draft.layers[-1].mlp.register_forward_pre_hook(lambda _, x: numbers.append(x[0][..., 0].numel()))
    yield numbers
    handle.remove()


def test_rows_are_counted(small) -> None:
    """Catches rows that are run and not counted, by counting them where the draft runs them."""
    draft, trace, _ = small
    skipped = 0
    for tree, positions in product(TREES, ("all", "walk")):
        with count_rows(draft) as run_rows:
            found = replay_positions(trace, draft, tree, positions=positions).rows
        led = sum(len(sequence.answer) - 1 for sequence in trace)  # rows of a prompt stop before the MLP
        assert sum(run_rows) == found.branches + found.skipped + led
        assert found.committed == sum(len(s.tokens) - 2 for s in trace if len(s.answer) > 1)
        assert positions == "walk" or not found.skipped
        skipped += found.skipped
    assert skipped


def test_batches_change_nothing(small, monkeypatch) -> None:
    """Catches results that depend on which sequences, or how many rows, run together."""
    draft, trace, _ = small
    tree = TREES[3]
    expected = [sequence.ranks for sequence in e3.rank_positions(trace, draft, tree)]
    for module in ("lookahead", "draft_rows", "committed"):
        monkeypatch.setattr(sys.modules[f"eagle3ref.positions.{module}"], "rows_at_once", lambda _: 7)
    for batch_tokens in (1, 50):
        found = [sequence.ranks for sequence in e3.rank_positions(trace, draft, tree, batch_tokens=batch_tokens)]
        assert all(map(torch.equal, found, expected))


def test_refusals(small, tmp_path) -> None:
    """Catches an answer to what cannot be answered, and a message that does not say what to do."""
    draft, trace, _ = small
    sampled = made_trace(tmp_path / "sampled", draft, LENGTHS, temperature=0.7)
    rule = AcceptanceRule("rejection", "sampled")
    refused("first choices.*Use `replay`", lambda: replay_positions(sampled, draft, TREES[0], rule=rule))
    refused("sampled drafts", lambda: e3.rank_positions(sampled, draft, TREES[0], rule=rule))
    refused("the greedy rule", lambda: replay_positions(sampled, draft, TREES[0], rule=AcceptanceRule()))
    refused("longer answers", lambda: replay_positions(trace, draft, e3.TreeConfig(30, 1, 31)))
    refused("at most 6, the draft", lambda: e3.rank_positions(trace, draft, e3.TreeConfig(2, 7, 8)))
    found = e3.rank_positions(trace, draft, TREES[3])[0]
    refused("within 4/3/12", lambda: found.num_accepted(4, 13))
    refused("within 4/3/12", lambda: found.num_accepted(5, 12))
    assert replay_positions(sampled, draft, TREES[3], rule=AcceptanceRule("multi_round")).counts.kind == "unbiased"
    assert found.ranks.max() == BEYOND


def test_counts_without_the_depths_of_drafts(small) -> None:
    """Catches an unknown that turns into zeros, or is lost, when counts are added, written or compared."""
    draft, trace, _ = small
    lazy, full = replay_positions(trace, draft, TREES[3]).counts, e3.replay(trace, draft, TREES[3])
    assert lazy.proposed_at is None
    assert full.proposed_at is not None
    assert AcceptanceCounts.from_dict(json.loads(json.dumps(lazy.to_dict()))) == lazy
    assert lazy != full
    assert replace(full, proposed_at=None) == lazy
    assert (lazy + full).proposed_at is None
    assert (lazy + full) == (full + lazy)
    assert np.array_equal((lazy + full).histogram, 2 * lazy.histogram)
    refused("histogram", lambda: AcceptanceCounts.from_dict({**lazy.to_dict(), "histogram": None}))


def test_command_line(small, tmp_path) -> None:
    """Catches options that do not reach the replay, a report of all positions that shows a server's log line, and a
    file of rounds that is not the rounds."""
    draft, _, folder = small
    where = ("replay", folder / "trace", folder / "draft", "--capture-points", "2,3,4", "--dtype", "float64")
    tree = ("--num-steps", 3, "--topk", 2, "--num-draft-tokens", 6)
    full, lazy, every = (
        json.loads(result.stdout)
        for options in ((), ("--rows", "needed"), ("--positions", "all"))
        if (result := run(*where, *tree, "--json", *options)).exit_code == 0
    )
    assert full["counts"]["histogram"] == lazy["counts"]["histogram"] != every["counts"]["histogram"]
    assert full["sglang_log"] == lazy["sglang_log"]
    assert every["sglang_log"] == []
    assert (full["rows"], every["counts"]["kind"]) == (None, "positions")
    assert 0 < every["rows"]["branches"] < every["rows"]["full_branches"]
    assert every["provenance"]["settings"]["positions"] == "all"

    csv_file, lines_file, walk_file = (tmp_path / name for name in ("rounds.csv", "rounds.jsonl", "walk.csv"))
    result = run(*where, *tree, "--positions", "all", "--per-position", csv_file)
    assert result.exit_code == 0, result.stderr
    assert "accept len" not in result.stdout
    assert f"{every['rows']['branches']:,} of {every['rows']['full_branches']:,}" in result.stdout
    assert run(*where, *tree, "--positions", "all", "--per-position", lines_file).exit_code == 0
    assert run(*where, *tree, "--per-position", walk_file).exit_code == 0
    rounds = [json.loads(line) for line in lines_file.read_text().splitlines()]
    assert list(csv.DictReader(csv_file.open())) == [{k: str(v) for k, v in row.items()} for row in rounds]
    expected = replay_positions(e3.Trace.open(folder / "trace"), draft, e3.TreeConfig(3, 2, 6), positions="all")
    assert [(r["id"], r["position"], r["accepted"], bool(r["complete"])) for r in rounds] == [
        (s.id, *values)
        for s in expected.sequences
        for values in zip(s.roots.tolist(), s.num_accepted.tolist(), s.complete.tolist(), strict=True)
    ]
    visited = [(row["id"], int(row["position"]), int(row["accepted"])) for row in csv.DictReader(walk_file.open())]
    assert set(visited) < {(r["id"], r["position"], r["accepted"]) for r in rounds}

    refusals = [("--positions", "all", "--rows", "all"), ("--per-position", tmp_path / "rounds.txt")]
    for options, expected_text in zip(refusals, ("Leave --rows out", ".csv or .jsonl"), strict=True):
        result = run(*where, *tree, *options)
        assert result.exit_code == 2
        assert expected_text in " ".join(result.stderr.split())
    (tmp_path / "every.json").write_text(json.dumps(every))
    refused("all positions", lambda: read_counts(tmp_path / "every.json"))


@pytest.mark.slow
def test_a_hundred_thousand_positions(tmp_path, capsys) -> None:
    """Catches what is too rare for the tests above: every position of long texts, lazily and by all rows."""
    draft = small_draft(tmp_path / "draft")
    trace = made_trace(tmp_path / "trace", draft, [(3, 101)] * 1000)
    tree = e3.TreeConfig(4, 3, 12)
    found = replay_positions(trace, draft, tree, positions="all")
    num_positions = 0
    for sequence, rounds in zip(trace, found.sequences, strict=True):
        candidates = candidates_everywhere(draft, sequence, tree)
        assert rounds.num_accepted.tolist() == accepted_everywhere(candidates, sequence, tree, 4, 12)
        num_positions += len(rounds.roots)
    assert num_positions == 100_000
    with capsys.disabled():
        print(f"\n{num_positions:,} positions at {tree}: {found.rows.branches:,} of {found.rows.full_branches:,} rows")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")
def test_the_page_shows_what_is_printed(tmp_path) -> None:
    """Catches figures on the page that the command does not print any more."""
    target, draft, prompts = e3.nano.target_path(), e3.nano.draft_path(), e3.nano.prompts_path()
    points = ("--capture-points", "1,2,3,4,5", "--max-new-tokens", 32, "--dtype", "float32")
    run("capture", target, prompts, "-o", tmp_path / "trace", *points)
    tree = ("--num-steps", 5, "--topk", 4, "--num-draft-tokens", 16)
    walk, every = (
        run("replay", tmp_path / "trace", draft, *tree, *options).stdout
        for options in (("--rows", "needed"), ("--positions", "all"))
    )
    assert_printed(shown("positions.md", "draft rows"), every)
    assert_printed("acceptance length 3.17 95 % [2.92, 3.43]\nrounds 435 complete", walk)
    assert_printed("acceptance length 3.42 95 % [3.15, 3.68]\nrounds 1,296 complete", every)
