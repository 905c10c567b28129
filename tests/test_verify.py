"""Greedy verification against SGLang's numbers, a recursive walk and brute force."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import oracles
import pytest
import torch

from eagle3ref.errors import Eagle3RefError
from eagle3ref.tree import DraftTree
from eagle3ref.verify import Verification, verify_greedy

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sglang_tree.json").read_text())["verify_greedy"]


def tree_of(tokens: list[list[int]], parents: list[list[int]]) -> DraftTree:
    prefix_lengths = torch.zeros(len(tokens), dtype=torch.int64)
    return DraftTree.from_parents(torch.tensor(tokens), torch.tensor(parents), prefix_lengths)


def check(result: Verification, row: int, path: list[int], tokens: list[int], target: list[int]) -> None:
    """Everything that a verification says, from the path alone."""
    padding = [-1] * (len(tokens) - 1 - len(path))
    assert result.num_accepted[row] == len(path)
    assert result.accepted_nodes[row].tolist() == path + padding
    assert result.accepted_tokens[row].tolist() == [tokens[node] for node in path] + padding
    assert result.bonus_token[row] == target[([0, *path])[-1]]


def test_sglang_verification_comes_out_exactly():
    """Bug: any slip in the walk or in the bonus against SGLang's own test."""
    links = zip(GOLDEN["retrieve_next_token"], GOLDEN["retrieve_next_sibling"], strict=True)
    tree = tree_of(GOLDEN["candidates"], [oracles.parents_from_links(*link) for link in links])
    target = GOLDEN["target_predict"]
    result = verify_greedy(tree, torch.tensor(target))
    index, predicts, accept_index = GOLDEN["retrieve_index"], [-1] * 12, []
    for row, nodes in enumerate(result.accepted_nodes.tolist()):
        path = [0, *(node for node in nodes if node >= 0)]
        accept_index.append(([index[row][node] for node in path] + [-1] * 4)[: GOLDEN["accept_width"]])
        for node in path:
            predicts[index[row][node]] = target[row][node]
    assert result.num_accepted.tolist() == GOLDEN["expected"]["accept_token_num"]
    assert accept_index == GOLDEN["expected"]["accept_index"]
    assert predicts == GOLDEN["expected"]["predicts"]
    assert result.bonus_token.tolist() == [18, 18]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_small_tree_against_the_recursive_walk(size):
    """Bug: any case at all among trees of up to four nodes, two tokens, every target; equal siblings included."""
    cases = [
        (parents, [0, *tokens], list(target))
        for parents in oracles.all_topologies(size)
        for tokens in itertools.product(range(2), repeat=size - 1)
        for target in itertools.product(range(2), repeat=size)
    ]
    tree = tree_of([tokens for _, tokens, _ in cases], [parents for parents, _, _ in cases])
    result = verify_greedy(tree, torch.tensor([target for _, _, target in cases]))
    for row, (parents, tokens, target) in enumerate(cases):
        check(result, row, oracles.greedy_walk(tokens, parents, target), tokens, target)


def random_cases(count: int, size: int, vocabulary: int) -> list[tuple[list[int], list[int], list[int]]]:
    """Trees with distinct siblings, and targets that agree with some child more often than chance."""
    rng = random.Random(size)
    cases = []
    while len(cases) < count:
        parents = [-1, *(rng.randrange(max(0, node - 5), node) for node in range(1, size))]
        children = [[node for node in range(size) if parents[node] == parent] for parent in range(size)]
        tokens = [0] * size
        for siblings in children:
            for node, token in zip(siblings, rng.sample(range(vocabulary), len(siblings)), strict=True):
                tokens[node] = token
        target = [tokens[rng.choice(c)] if c and rng.random() < 0.8 else rng.randrange(vocabulary) for c in children]
        cases.append((parents, tokens, target))
    return cases


@pytest.mark.parametrize("size", [5, 16, 64])
def test_the_walk_finds_the_one_longest_path(size):
    """Bug: the walk stops early, jumps between branches, or rows of a batch stop one another."""
    cases = random_cases(40, size, 50)
    tree = tree_of([tokens for _, tokens, _ in cases], [parents for parents, _, _ in cases])
    result = verify_greedy(tree, torch.tensor([target for _, _, target in cases]))
    for row, (parents, tokens, target) in enumerate(cases):
        [longest] = oracles.longest_accepted(tokens, parents, target)
        check(result, row, longest, tokens, target)
    assert result.num_accepted.unique().numel() > 2  # the cases are not all alike


def test_renumbering_siblings_changes_no_token():
    """Bug: the outcome depends on node numbers when siblings are distinct."""
    for parents, tokens, target in random_cases(40, 12, 50):
        plain = verify_greedy(tree_of([tokens], [parents]), torch.tensor([target]))
        depth = [len(oracles.ancestors(parents, node)) for node in range(12)]
        order = sorted(range(12), key=lambda node, depth=depth: (depth[node], -node))  # parents stay in front
        new = {node: place for place, node in enumerate(order)}
        moved_parents = [new.get(parents[node], -1) for node in order]
        moved = verify_greedy(
            tree_of([[tokens[node] for node in order]], [moved_parents]), torch.tensor([[target[n] for n in order]])
        )
        assert torch.equal(moved.accepted_tokens, plain.accepted_tokens)
        assert torch.equal(moved.bonus_token, plain.bonus_token)


def test_a_chain_is_plain_speculative_decoding():
    """Bug: off by one between a draft and the target's token before it; all accepted and none accepted included."""
    drafts = [5, 6, 7, 8]
    for agreed in range(5):
        target = [*drafts[:agreed], 99, *drafts[agreed + 1 :], 42][:5]
        result = verify_greedy(tree_of([[1, *drafts]], [[-1, 0, 1, 2, 3]]), torch.tensor([target]))
        assert result.num_accepted.item() == agreed
        assert result.accepted_tokens.tolist() == [drafts[:agreed] + [-1] * (4 - agreed)]
        assert result.bonus_token.item() == 99


def test_a_match_below_a_rejected_node_counts_for_nothing():
    """Bug: counting nodes that agree with their parent, rather than walking from the root."""
    result = verify_greedy(tree_of([[0, 1, 2, 3]], [[-1, 0, 1, 2]]), torch.tensor([[9, 2, 3, 4]]))
    assert result.num_accepted.item() == 0
    assert result.bonus_token.item() == 9


def test_the_first_of_equal_siblings_is_taken():
    """Bug: the later sibling wins, and the path below it is accepted, which SGLang's walk never reaches."""
    result = verify_greedy(tree_of([[0, 7, 7, 8]], [[-1, 0, 0, 2]]), torch.tensor([[7, 5, 8, 6]]))
    assert result.accepted_nodes.tolist() == [[1, -1, -1]]
    assert result.bonus_token.item() == 5


def test_target_tokens_of_another_shape_are_refused():
    """Bug: the argmax of the last node only is broadcast over the tree."""
    with pytest.raises(Eagle3RefError, match=r"shape \[1, 1\]; expected \[1, 3\]"):
        verify_greedy(tree_of([[0, 1, 2]], [[-1, 0, 1]]), torch.tensor([[1]]))
