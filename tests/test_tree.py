"""The tree against SGLang's numbers and against a beam search over paths."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import oracles
import pytest
import torch

from eagle3ref.errors import Eagle3RefError
from eagle3ref.tree import Candidates, DraftTree, build_tree, extend_beams, select_candidates

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sglang_tree.json").read_text())
SETTINGS = [(1, 1, 2), (1, 5, 2), (1, 5, 6), (3, 1, 4), (2, 2, 7), (3, 2, 4), (4, 3, 9), (5, 4, 8), (6, 4, 33)]
LEVELS = {
    "distinct": [2.0**-3 + index * 2.0**-9 for index in range(20)],
    "tied": [0.5, 0.25],
    "certain": [1.0, 1.0, 1.0, 0.0],
    "underflow": [2.0**-70, 2.0**-75, 1.0],
    "zero": [0.0],
}


def toy_draft(seed: int, topk: int, levels: list[float]) -> oracles.Draft:
    """A draft whose K children of a path depend on nothing but the path; best first, distinct tokens."""

    def children(path: oracles.Path) -> list[tuple[float, int]]:
        rng = random.Random(f"{seed} {path}")
        tokens = rng.sample(range(100), topk)
        return list(zip(sorted(rng.choices(levels, k=topk), reverse=True), tokens, strict=True))

    return children


def propose(draft: oracles.Draft, num_steps: int, topk: int) -> Candidates:
    """The draft loop of one sequence, on the package's functions."""
    first = draft(())
    scores, tokens = torch.tensor([[p for p, _ in first]]), torch.tensor([[token for _, token in first]])
    beams, beam_scores, beam_flat = [(token,) for _, token in first], scores, list(range(topk))
    all_scores, all_tokens, all_parents = [scores], [tokens], [torch.full((1, topk), -1)]
    for step in range(1, num_steps):
        children = [draft(beam) for beam in beams]
        probs = torch.tensor([[[p for p, _ in child] for child in children]])
        scores, chosen = extend_beams(beam_scores, probs)
        all_scores.append(scores)
        all_tokens.append(torch.tensor([[token for child in children for _, token in child]]))
        all_parents.append(torch.tensor([[flat for flat in beam_flat for _ in range(topk)]]))
        beam_scores = scores.gather(1, chosen)
        beams = [(*beams[index // topk], children[index // topk][index % topk][1]) for index in chosen[0].tolist()]
        beam_flat = [topk + topk * topk * (step - 1) + index for index in chosen[0].tolist()]
    return Candidates(torch.cat(all_scores, 1), torch.cat(all_tokens, 1), torch.cat(all_parents, 1))


def golden_candidates() -> Candidates:
    """SGLang's score, token and parent lists as Candidates."""
    vector = GOLDEN["build_tree"]
    topk = vector["topk"]
    scores = torch.cat([torch.tensor(step).flatten(1) for step in vector["score_list"]], 1)
    tokens = torch.cat([torch.tensor(step) for step in vector["token_list"]], 1)
    parent_list = torch.cat([torch.tensor(step) for step in vector["parents_list"]], 1)
    flat = torch.arange(topk, scores.shape[1])
    # The first parents row starts with -1, which is what candidates 0..K-1 (flat // K == 0) find there.
    parents = torch.cat([parent_list[:, :1].expand(-1, topk), parent_list[:, flat // topk]], 1)
    return Candidates(scores, tokens, parents)


def test_sglang_tree_comes_out_exactly():
    """Bug: any slip in selection, order, parents or positions against SGLang's own test."""
    vector = GOLDEN["build_tree"]
    size = vector["num_draft_tokens"]
    tree = build_tree(
        golden_candidates(),
        root_tokens=torch.tensor(vector["root_tokens"]),
        prefix_lengths=torch.tensor(vector["prefix_lengths"]),
        num_draft_tokens=size,
    )
    assert tree.tokens.flatten().tolist() == vector["expected"]["draft_tokens"]
    assert tree.positions.flatten().tolist() == vector["expected"]["positions"]
    assert tree.next_token.tolist() == vector["expected"]["retrieve_next_token"]
    assert tree.next_sibling.tolist() == vector["expected"]["retrieve_next_sibling"]
    assert (torch.arange(2)[:, None] * size + torch.arange(size)).tolist() == vector["expected"]["retrieve_index"]
    assert select_candidates(golden_candidates(), size).tolist() == vector["derived"]["chosen"]
    assert tree.tree_mask.int().tolist() == vector["derived"]["tree_mask"]


def test_sglang_chain_comes_out_exactly():
    """Bug: a chain (topk 1, all scores 1.0 as SGLang sets them) bends or loses its order."""
    vector = GOLDEN["chain_tree"]
    tokens = torch.tensor(vector["draft_tokens"])
    parents = (torch.arange(vector["num_steps"]) - 1).expand_as(tokens)
    tree = build_tree(
        Candidates(torch.ones(tokens.shape), tokens, parents),
        root_tokens=torch.tensor(vector["root_tokens"]),
        prefix_lengths=torch.tensor(vector["prefix_lengths"]),
        num_draft_tokens=vector["num_draft_tokens"],
    )
    assert tree.tokens.flatten().tolist() == vector["derived"]["tokens"]
    assert tree.positions.flatten().tolist() == vector["expected"]["positions"]
    assert tree.next_token.tolist() == vector["derived"]["retrieve_next_token"]
    assert tree.next_sibling.tolist() == vector["derived"]["retrieve_next_sibling"]
    assert tree.tree_mask.int().tolist() == [vector["derived"]["mask_per_request"]] * 2


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_tree_equals_a_beam_search_over_paths(setting, levels):
    """Bug: wrong beams, parents, tie order or orphans; ties, p = 1.0 and underflow to 0.0 included."""
    num_steps, topk, size = setting
    drafts = [toy_draft(seed, topk, LEVELS[levels]) for seed in range(12)]
    parts = [propose(draft, num_steps, topk) for draft in drafts]
    searched = [oracles.beam_search(draft, num_steps, topk) for draft in drafts]
    candidates = Candidates(*(torch.cat([getattr(p, f) for p in parts]) for f in ("scores", "tokens", "parents")))
    assert candidates.scores.tolist() == [[score for score, _ in search] for search in searched]
    tree = build_tree(
        candidates, root_tokens=torch.arange(12), prefix_lengths=torch.arange(12) * 3, num_draft_tokens=size
    )
    for row, search in enumerate(searched):
        paths = oracles.tree_paths(search, size)
        parents = oracles.parents_of_paths(paths)
        assert tree.tokens[row].tolist() == [row, *(path[-1] for path in paths[1:])]
        assert tree.parents[row].tolist() == parents
        assert tree.depths[row].tolist() == [len(path) for path in paths]
        assert tree.positions[row].tolist() == [3 * row + len(path) for path in paths]
        assert tree.tree_mask[row].tolist() == oracles.tree_mask(parents)
        assert (tree.next_token[row].tolist(), tree.next_sibling[row].tolist()) == oracles.links(parents)


def test_trees_are_nested():
    """Bug: a candidate's rank depends on num_draft_tokens or later steps, which replay relies on never happening."""
    for seed in range(20):
        draft = toy_draft(seed, 3, LEVELS["tied"])
        deep, shallow = propose(draft, 5, 3), propose(draft, 3, 3)
        width = shallow.scores.shape[1]
        assert torch.equal(deep.tokens[:, :width], shallow.tokens)
        assert torch.equal(deep.parents[:, :width], shallow.parents)
        chosen = [set(select_candidates(deep, size)[0].tolist()) for size in range(2, deep.scores.shape[1] + 2)]
        assert all(len(larger - smaller) == 1 for smaller, larger in zip(chosen, chosen[1:], strict=False))


def test_every_topology_of_five_nodes_has_the_mask_and_links_of_a_walk():
    """Bug: pointer doubling misses an ancestor at some depth; batched rows leak into each other."""
    for size in (1, 2, 3, 4, 5):
        topologies = list(oracles.all_topologies(size))
        parents = torch.tensor(topologies)
        tree = DraftTree.from_parents(parents, parents, torch.zeros(len(parents), dtype=torch.int64))
        assert tree.tree_mask.tolist() == [oracles.tree_mask(row) for row in topologies]
        assert tree.depths.tolist() == [[len(oracles.ancestors(row, n)) - 1 for n in range(size)] for row in topologies]
        both = zip(tree.next_token.tolist(), tree.next_sibling.tolist(), strict=True)
        assert list(both) == [oracles.links(row) for row in topologies]


@pytest.mark.parametrize("size", [17, 64, 129])
def test_a_deep_chain_and_a_wide_star(size):
    """Bug: too few doubling rounds for a depth just over a power of two; a flag type that overflows past 127 nodes."""
    parents = torch.stack([torch.arange(size) - 1, torch.zeros(size, dtype=torch.int64)])
    parents[:, 0] = -1
    tree = DraftTree.from_parents(parents, parents, torch.zeros(2, dtype=torch.int64))
    assert tree.depths.tolist() == [list(range(size)), [0] + [1] * (size - 1)]
    assert tree.tree_mask[0].tolist() == torch.ones(size, size).tril().bool().tolist()
    assert tree.next_sibling.tolist() == [[-1] * size, [-1, *range(2, size), -1]]
    assert tree.next_token[1].tolist() == [1] + [-1] * (size - 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_extend_beams_multiplies_in_fp32_and_breaks_ties_low(dtype):
    """Bug: scores in another dtype or as log sums, ties to a later beam."""
    beams = torch.tensor([[0.5, 0.25]], dtype=dtype)
    probs = torch.tensor([[[0.3, 0.25], [0.6, 0.5]]], dtype=dtype)
    scores, chosen = extend_beams(beams, probs)
    assert scores.dtype == torch.float32
    factors = zip([0.5, 0.5, 0.25, 0.25], probs.flatten().tolist(), strict=True)
    assert scores.tolist() == [[oracles.fp32(beam * oracles.fp32(p)) for beam, p in factors]]
    assert chosen.tolist() == [[0, 2]]


def test_log_scores_choose_the_same_tree():
    """Bug: code that assumes scores to be positive."""
    logs = replace(golden_candidates(), scores=golden_candidates().scores.log())
    assert torch.equal(select_candidates(golden_candidates(), 8), select_candidates(logs, 8))


def small_tree(scores, parents, *, num_draft_tokens=3, roots=1, prefixes=1):
    """Two good sequences, then the given one."""
    scores = torch.tensor([[0.9, 0.1, 0.8]] * 2 + [scores])
    parents = torch.tensor([[-1, -1, 0]] * 2 + [parents])
    return build_tree(
        Candidates(scores, parents + 1, parents),
        root_tokens=torch.zeros(3 * roots, dtype=torch.int64),
        prefix_lengths=torch.zeros(3 * prefixes, dtype=torch.int64),
        num_draft_tokens=num_draft_tokens,
    )


@pytest.mark.parametrize(
    ("scores", "parents", "found"),
    [
        ([0.1, 0.9, 0.8], [-1, -1, 0], r"node 2 of sequence 2 \(candidate 2\) without its parent, candidate 0"),
        ([0.9, 0.1, 0.8], [-1, -1, 7], r"node 2 of sequence 2 \(candidate 2\) without its parent, candidate 7"),
        ([0.9, 0.1, 0.8], [-1, -1, -2], r"node 2 of sequence 2 \(candidate 2\) without its parent, candidate -2"),
        ([0.9, 0.1, 0.8], [2, -1, -1], r"node 1 of sequence 2 \(candidate 0\) without its parent, candidate 2"),
        ([0.9, 0.1, 0.8], [-1, -1, 2], r"node 2 of sequence 2 \(candidate 2\) without its parent, candidate 2"),
    ],
)
def test_an_orphan_is_refused_by_sequence_and_node(scores, parents, found):
    """Bug: SGLang only warns and leaves the node unverifiable; a negative index would silently wrap around."""
    with pytest.raises(Eagle3RefError, match=found):
        small_tree(scores, parents)


def test_nan_scores_are_refused():
    """Bug: NaN ranks first and fills the tree."""
    with pytest.raises(Eagle3RefError, match="found NaN"):
        small_tree([0.9, 0.1, float("nan")], [-1, -1, 0])
    with pytest.raises(Eagle3RefError, match="found NaN"):
        extend_beams(torch.tensor([[1.0, float("nan")]]), torch.ones(1, 2, 2))


@pytest.mark.parametrize("num_draft_tokens", [1, 5])
def test_an_impossible_size_names_the_largest(num_draft_tokens):
    """Bug: torch.topk's own message at the first round, which names neither limit nor setting."""
    with pytest.raises(Eagle3RefError, match=f"num_draft_tokens {num_draft_tokens}; expected 2 to 4"):
        small_tree([0.9, 0.1, 0.8], [-1, -1, 0], num_draft_tokens=num_draft_tokens)


def test_shapes_and_dtypes_that_do_not_fit_are_refused():
    """Bug: broadcasting one root or one prefix length over the batch; int32 ids failing deep inside."""
    good = [[0.9, 0.1, 0.8], [-1, -1, 0]]
    ids = torch.zeros(1, 3, dtype=torch.int64)
    for call in (
        lambda: small_tree(*good, roots=2),
        lambda: small_tree(*good, prefixes=2),
        lambda: Candidates(torch.zeros(1, 4), ids, ids),
        lambda: Candidates(torch.zeros(1, 3), ids.int(), ids),
        lambda: extend_beams(torch.zeros(1, 2), torch.zeros(1, 2, 3)),
        lambda: DraftTree.from_parents(ids, ids[:, :2] - 1, torch.zeros(1)),
    ):
        with pytest.raises(Eagle3RefError, match="building the draft tree"):
            call()


@pytest.mark.parametrize("parents", [[0, 0, 1], [-2, 0, 1], [-1, 0, 2], [-1, 2, 0], [-1, 0, -1], [-1, 0, -2]])
def test_parents_that_are_not_a_tree_are_refused(parents):
    """Bug: a cycle or a second root gives a mask that looks plausible."""
    parents = torch.tensor([[-1, 0, 1], parents])
    with pytest.raises(Eagle3RefError, match="of sequence 1"):
        DraftTree.from_parents(parents, parents, torch.zeros(2, dtype=torch.int64))
