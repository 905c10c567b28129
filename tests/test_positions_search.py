"""The lazy search against the whole beam search, on scores alone: no network, no trace."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_candidates import BEYOND, STYLES, VOCAB, MadeDraft

from eagle3ref.config import TreeConfig
from eagle3ref.positions import visited_positions, walk_positions
from eagle3ref.positions.bounds import most_outranking
from eagle3ref.positions.search import TreeSearch

NUM_ROOTS = 4


def made_case(seed: int) -> tuple[MadeDraft, TreeConfig]:
    """A draft, a tree, and roots whose true continuations follow the draft for a while, or leave it."""
    rng = random.Random(seed)
    topk, steps = rng.randint(1, 4), rng.randint(1, 5)
    most = topk + (steps - 1) * topk**2 + 1
    tree = TreeConfig(steps, topk, steps + 1 if topk == 1 else rng.randint(2, most), rng.choice(["slot", "ancestor"]))
    draft = MadeDraft(seed, topk, rng.choice(list(STYLES)), [])
    paths: list[tuple[int, ...]] = []
    for root in range(NUM_ROOTS):
        path: tuple[int, ...] = ()
        for _ in range(rng.randint(0, steps + 1)):
            tokens = draft.children(root, path)[1]
            path += (rng.choice([tokens[0], rng.choice(tokens), rng.randrange(VOCAB)]),)
        paths.append(path)
    draft.recorded = paths
    return draft, tree


def search(draft: MadeDraft, tree: TreeConfig, *, every_setting: bool) -> TreeSearch:
    found = TreeSearch(draft, NUM_ROOTS, tree, every_setting=every_setting, device=torch.device("cpu"))
    found.run()
    return found


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_lazy_search_equals_the_whole_beam_search(seed: int) -> None:
    """Catches a row left out that could have come before a true node: ties, certainty and underflow included; a row
    that sees another slot's rows; a true node that is followed although it is no beam."""
    draft, tree = made_case(seed)
    expected = [draft.ranks(root, tree) for root in range(NUM_ROOTS)]
    exact = search(draft, tree, every_setting=True)
    assert exact.ranks.tolist() == expected
    assert int(exact.num_rows.sum()) == draft.num_rows
    single = search(draft, tree, every_setting=False)
    kept = [[row[-1] != BEYOND for row in table] for table in expected]
    assert [[row[-1] != BEYOND for row in table] for table in single.ranks.tolist()] == kept
    assert int(single.num_rows.sum()) == draft.num_rows - int(exact.num_rows.sum()) <= int(exact.num_rows.sum())


def test_rows_are_left_out() -> None:
    """Catches a search that is right because it runs everything; and one tree must need less than all settings."""
    rows = {"full": 0, "exact": 0, "single": 0}
    for seed in range(40):
        draft, tree = made_case(seed)
        rows["full"] += NUM_ROOTS * tree.topk * (tree.num_steps - 1)
        rows["exact"] += int(search(draft, tree, every_setting=True).num_rows.sum())
        rows["single"] += int(search(draft, tree, every_setting=False).num_rows.sum())
    assert rows["single"] < 0.9 * rows["exact"] < 0.5 * rows["full"]


@pytest.mark.parametrize("tree_kv", ["slot", "ancestor"])
def test_a_miss_needs_no_row(tree_kv) -> None:
    """Catches rows that are run for a root whose first drafts all miss, or whose record has ended."""
    draft = MadeDraft(
        0,
        2,
        "smooth",
        [
            (),
            *[
                (next(t for t in range(VOCAB) if t not in tokens), 0, 0)
                for tokens in (MadeDraft(0, 2, "smooth", []).children(root, ())[1] for root in range(1, NUM_ROOTS))
            ],
        ],
    )
    assert int(search(draft, TreeConfig(4, 2, 8, tree_kv), every_setting=True).num_rows.sum()) == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10**9), st.integers(1, 4), st.integers(1, 3))
def test_no_more_candidates_come_than_the_bound_says(seed: int, topk: int, levels: int) -> None:
    """Catches a bound that is too low, which would end a search too early; scores of 0 and ties included."""
    rng = random.Random(seed)
    draft = MadeDraft(seed, topk, rng.choice(list(STYLES)), [])
    scores, _ = draft.children(0, ())
    beams = torch.tensor([scores])
    score = torch.tensor([rng.choice([0.0, *scores, scores[-1] / 3, scores[0] / 2])])
    is_open = torch.tensor([[rng.random() < 0.8 for _ in range(topk)]])
    bound = int(most_outranking(beams, score, levels, is_open))
    nodes = [(value, bool(is_open[0, slot]), (slot,)) for slot, value in enumerate(beams[0].tolist())]
    coming = 0
    for level in range(levels):
        children = [
            (float(torch.tensor(value) * torch.tensor(p)), (*path, k))
            for value, counted, path in nodes
            if counted or level
            for k, p in enumerate(draft.children(1, path)[0])
        ]
        coming += sum(value >= float(score) for value, _ in children)
        if not level:  # the children of closed beams are known, and can still have children
            children += [
                (float(torch.tensor(value) * torch.tensor(p)), (*path, k))
                for value, counted, path in nodes
                if not counted
                for k, p in enumerate(draft.children(1, path)[0])
            ]
        nodes = [(value, True, path) for value, path in sorted(children, reverse=True)[:topk]]
    assert coming <= bound


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 4), max_size=20), min_size=1, max_size=4))
def test_walks_side_by_side_equal_one_walk_each(accepted: list[list[int]]) -> None:
    """Catches a walk that skips or doubles a root, runs past its end, or is disturbed by padding or a neighbor."""
    longest = max(map(len, accepted))
    padded = torch.tensor([row + [7] * (longest - len(row)) for row in accepted]).reshape(len(accepted), longest)
    visited = visited_positions(padded)
    for row, of_row in zip(accepted, visited, strict=True):
        expected, root = [], 0
        while root < len(row):
            expected.append(root)
            root += row[root] + 1
        assert walk_positions(torch.tensor(row, dtype=torch.int64)).tolist() == expected
        assert of_row[: len(row)].nonzero()[:, 0].tolist() == expected
