"""The walk of all settings at once, against a walk of one that takes a round at a time. Integers only."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import eagle3ref.tune.walk
from eagle3ref.config import TreeConfig
from eagle3ref.positions import BEYOND, RowCounts, SequenceRanks
from eagle3ref.tune import walk_settings
from eagle3ref.tune.tune import largest_tree, settings_within

NO_ROWS = RowCounts(*[0] * len(fields(RowCounts)))


def random_ranks(name: str, num_roots: int, tree: TreeConfig, generator: torch.Generator) -> SequenceRanks:
    """Tables as ranks are: a parent before its child, deeper candidates only push places back, nothing past the end."""
    ranks = torch.full((num_roots, tree.num_steps, tree.num_steps), BEYOND, dtype=torch.int16)
    for root in range(num_roots):
        reach = int(torch.randint(0, tree.num_steps + 1, (), generator=generator))
        for steps in range(1, tree.num_steps + 1):
            depths = min(reach, steps, num_roots - root)
            places = torch.randperm(tree.num_draft_tokens + 4, generator=generator)[:depths].sort().values + 1
            places = torch.arange(1, depths + 1) if tree.topk == 1 else places
            places = places.where(places < tree.num_draft_tokens, BEYOND)
            ranks[root, :depths, steps - 1] = places.to(torch.int16)
    return SequenceRanks(name, 3, num_roots + 4, tree, ranks, 0, num_roots + 1, NO_ROWS)


def walk_slowly(ranks: SequenceRanks, tree: TreeConfig) -> tuple[Counter[int], int]:
    """Complete rounds by accepted drafts, and the number of the others."""
    complete, censored, root = Counter[int](), 0, ranks.prompt_length
    while root + 1 < ranks.num_tokens:
        places = ranks.ranks[root - ranks.prompt_length, :, tree.num_steps - 1].tolist()
        accepted = 0
        while accepted < tree.num_steps and places[accepted] <= tree.num_draft_tokens - 1:
            accepted += 1
        if root + tree.num_steps < ranks.num_tokens:
            complete[accepted] += 1
        else:
            censored += 1
        root += accepted + 1
    return complete, censored


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4), st.lists(st.integers(0, 17), min_size=1, max_size=5)
)
def test_every_setting_walks_as_it_would_alone(seed: int, topk: int, steps: int, lengths: list[int]) -> None:
    """Would catch lanes that are mixed up, a padded root that is walked, a round complete by another's num_steps."""
    generator = torch.Generator().manual_seed(seed)
    tree = largest_tree(topk, steps, 9)
    ranks = [random_ranks(str(i), length, tree, generator) for i, length in enumerate(lengths)]
    below = settings_within(tree)
    histogram, censored = walk_settings(ranks, below)
    assert histogram.shape == (len(below), len(ranks), tree.num_steps + 1)
    for k, setting in enumerate(below):
        for p, sequence in enumerate(ranks):
            complete, cut = walk_slowly(sequence, setting)
            assert {c: n for c, n in enumerate(histogram[k, p].tolist()) if n} == complete
            assert censored[k, p] == cut


def test_batches_do_not_change_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch results that land at another sequence when memory makes several batches of them."""
    generator = torch.Generator().manual_seed(5)
    tree = largest_tree(2, 3, 8)
    ranks = [random_ranks(str(i), length, tree, generator) for i, length in enumerate((9, 0, 14, 3, 14, 7))]
    together = walk_settings(ranks, settings_within(tree))
    monkeypatch.setattr(eagle3ref.tune.walk, "_CELLS_AT_ONCE", 200)
    apart = walk_settings(ranks, settings_within(tree))
    assert all((a == b).all() for a, b in zip(together, apart, strict=True))


def test_settings_within_a_tree() -> None:
    """Would catch a setting that is left out, or one that the draft loop has no candidates for."""
    assert [str(tree) for tree in settings_within(TreeConfig(3, 1, 4))] == ["1/1/2", "2/1/3", "3/1/4"]
    found = [str(tree) for tree in settings_within(largest_tree(2, 2, 64, "ancestor"))]
    assert found == ["1/2/2", "1/2/3", "2/2/2", "2/2/3", "2/2/4", "2/2/5", "2/2/6", "2/2/7"]
    assert {tree.tree_kv for tree in settings_within(largest_tree(2, 2, 64, "ancestor"))} == {"ancestor"}
    assert str(largest_tree(1, 8, 4)) == "3/1/4"
    assert len(settings_within(largest_tree(8, 8, 64))) == 7 + 7 * 63 + 1
