"""Trees and greedy verification in Triton: the reference's integers, and a rule for what the reference refuses."""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sm90 import compiled
from test_tree import LEVELS, golden_candidates, propose, toy_draft
from torch import Tensor

from eagle3ref import tree as reference_tree
from eagle3ref import verify as reference_verify
from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels.trees import FAULT_NAN, FAULT_ORPHAN, build_tree
from eagle3ref.kernels.verification import verify_greedy
from eagle3ref.tree import Candidates, DraftTree
from eagle3ref.verify import Verification

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # there Triton's kernels are interpreted
Record = TypeVar("Record", Candidates, DraftTree)
SHAPES = [(1, 1), (1, 6), (3, 1), (8, 1), (2, 2), (3, 4), (4, 3), (2, 9)]  # num_steps, topk


def drafted(seed: int, num_steps: int, topk: int, levels: str) -> Candidates:
    return propose(toy_draft(seed, topk, LEVELS[levels]), num_steps, topk)


def of_root(scores: list[float], parents: list[int] | None = None) -> Candidates:
    """One sequence; without parents all are children of the root."""
    number = len(scores)
    parents = [-1] * number if parents is None else parents
    return Candidates(torch.tensor([scores]), torch.arange(100, 100 + number)[None], torch.tensor([parents]))


def both(candidates: Candidates, size: int, faults: Tensor | None = None) -> tuple[DraftTree, DraftTree]:
    """Triton's tree, on the device, and the reference's."""
    batch = len(candidates.scores)
    roots, prefix_lengths = torch.arange(7, 7 + batch), torch.arange(batch) * 2**33 + 5
    on_device = {"root_tokens": roots.to(DEVICE), "prefix_lengths": prefix_lengths.to(DEVICE), "faults": faults}
    mine = build_tree(moved(candidates), **on_device, num_draft_tokens=size)
    given = {"root_tokens": roots, "prefix_lengths": prefix_lengths, "num_draft_tokens": size}
    return mine, reference_tree.build_tree(candidates, **given)


def both_paths(tree: DraftTree, target: Tensor) -> tuple[Verification, Verification]:
    return verify_greedy(moved(tree), target.to(DEVICE)), reference_verify.verify_greedy(tree, target)


def moved(record: Record) -> Record:
    return type(record)(*(getattr(record, field.name).to(DEVICE) for field in fields(record)))


def assert_same(mine: DraftTree | Verification, reference: DraftTree | Verification) -> None:
    for field in fields(reference):
        found, expected = getattr(mine, field.name).cpu(), getattr(reference, field.name)
        assert found.dtype == expected.dtype, field.name
        assert torch.equal(found, expected), field.name


def test_sglang_numbers():
    """Bug: any slip against the tree of SGLang's own test, two sequences of it."""
    faults = torch.full((2,), 9, dtype=torch.int32, device=DEVICE)
    assert_same(*both(golden_candidates(), 8, faults))
    assert faults.tolist() == [0, 0]


DRAFTS = {
    "shape": st.sampled_from(SHAPES),
    "levels": st.sampled_from(sorted(LEVELS)),
    "seed": st.integers(0, 2**20),
    "share": st.sampled_from([0.0, 0.3, 0.7, 1.0]),
}


def check_draft(shape: tuple[int, int], levels: str, seed: int, share: float) -> None:
    """Distinct, tied, certain and vanishing probabilities; from the smallest tree to all candidates."""
    candidates = drafted(seed, *shape, levels)
    largest = candidates.scores.shape[1] + 1
    assert_same(*both(candidates, 2 + round(share * (largest - 2))))


@given(**DRAFTS)
@settings(max_examples=8, deadline=None)
def test_the_tree_is_the_references(shape, levels, seed, share):
    """Bug: a tie to the higher index, a parent by its flat index, a mask of one generation, a tree one too large."""
    check_draft(shape, levels, seed, share)


@pytest.mark.slow
@given(**DRAFTS)
@settings(max_examples=60, deadline=None)
def test_many_trees_are_the_references(shape, levels, seed, share):
    """As above."""
    check_draft(shape, levels, seed, share)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20), st.integers(0, 19))
@settings(max_examples=6, deadline=None)
def test_any_score_has_its_place(scores, cut):
    """Bug: scores out of order that no draft has."""
    assert_same(*both(of_root(scores), 2 + cut % len(scores)))


@pytest.mark.parametrize("size", range(2, 11))
def test_zeros_denormals_and_infinities_have_their_place(size):
    """Bug: -0 below 0, what underflows taken for 0, an infinity for no number."""
    tiny = 2.0**-149
    assert_same(*both(of_root([-0.0, 0.0, -tiny, tiny, float("-inf"), 0.0, -0.0, float("inf"), 2 * tiny]), size))


@pytest.mark.parametrize(("num_candidates", "size"), [(456, 64), (710, 711), (8192, 300)])
def test_large_trees(num_candidates, size):
    """Bug: more candidates than a program holds at once, or a count that only fits small trees."""
    batch = 2
    scores = torch.rand(batch, num_candidates).mul(8).round().div(8).cummin(1).values
    parents = (torch.rand(batch, num_candidates) * torch.arange(num_candidates)).long() - 1
    candidates = Candidates(scores, torch.randint(0, 2**40, scores.shape), parents.clamp(max=20))
    assert_same(*both(candidates, size))


def test_rows_need_not_be_contiguous():
    """Bug: candidates read as if they lay close together."""
    parts = [drafted(seed, 3, 4, "distinct") for seed in range(3)]
    scores, tokens, parents = (torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Candidates))
    lying = Candidates(*(part.t().contiguous().t() for part in (scores, tokens, parents)))
    mine, reference = both(lying, 9)
    assert_same(mine, reference)
    wide = torch.zeros(3, 18, dtype=torch.int32)
    wide[:, ::2] = reference.tokens.roll(1, 1)
    assert_same(*both_paths(reference, wide[:, ::2]))


def test_what_the_reference_refuses_becomes_a_tree_and_a_fault():
    """Bug: memory read at a parent that is not there, a NaN on top, a fault of one sequence told of another."""
    nan = float("nan")
    told = torch.full((6,), 9, dtype=torch.int32, device=DEVICE)
    rows = [
        ([0.9, 0.5, 0.4, 0.3], [-1, 0, 1, 1], 0),
        ([nan, 0.5, nan, 0.3], [-1, -1, -1, -1], FAULT_NAN),
        ([0.1, 0.5, 0.4, 0.3], [-1, 0, 1, 1], FAULT_ORPHAN),  # candidate 0 is not chosen
        ([0.9, 0.5, 0.4, 0.3], [-1, -7, 2**40, 3], FAULT_ORPHAN),
        ([0.9, 0.5, 0.4, nan], [2, 3, 0, 0], FAULT_NAN + FAULT_ORPHAN),
        ([nan, nan, nan, nan], [-1, -1, -1, -1], FAULT_NAN),
    ]
    scores, parents = torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
    candidates = Candidates(scores, torch.arange(24).view(6, 4), parents)
    given = {"root_tokens": torch.zeros(6, dtype=torch.int32), "prefix_lengths": torch.zeros(6, dtype=torch.int64)}
    on_device = {name: tensor.to(DEVICE) for name, tensor in given.items()}
    mine = build_tree(moved(candidates), **on_device, num_draft_tokens=4, faults=told)
    assert told.tolist() == [row[2] for row in rows]

    kept = torch.tensor([[0, 1, 2], [0, 1, 3], [1, 2, 3], [0, 1, 2], [0, 1, 2], [0, 1, 2]])  # NaN last
    repaired = [[-1, 0, 1, 2], [-1, 0, 0, 0], [-1, 0, 1, 1], [-1, 0, 0, 0], [-1, 0, 0, 1], [-1, 0, 0, 0]]
    tokens = torch.cat((torch.zeros(6, 1, dtype=torch.int64), candidates.tokens.gather(1, kept)), 1)
    assert_same(mine, DraftTree.from_parents(tokens, torch.tensor(repaired), given["prefix_lengths"]))


def random_tree(generator: torch.Generator, size: int, vocabulary: int) -> DraftTree:
    parents = (torch.rand(2, size, generator=generator) * torch.arange(size)).long()
    parents[:, 0] = -1
    tokens = torch.randint(0, vocabulary, (2, size), generator=generator)
    return DraftTree.from_parents(tokens, parents, torch.tensor([0, 9]))


@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 2**20))
@settings(max_examples=10, deadline=None)
def test_the_path_is_the_references(size, vocabulary, seed):
    """Bug: a later sibling first, a bonus of the wrong node, a path that goes on or stops at the wrong place."""
    generator = torch.Generator().manual_seed(seed)
    tree = random_tree(generator, size, vocabulary)
    target = torch.randint(0, vocabulary, tree.tokens.shape, generator=generator)
    assert_same(*both_paths(tree, target))


def test_parents_in_a_circle_end():
    """Bug: a walk without an end, on a root with a parent, which no tree has."""
    parents = torch.tensor([[1, 0, 0, 0], [-1, 0, 1, 2]])
    nothing = torch.zeros_like(parents)
    tree = DraftTree(nothing + 3, parents, nothing, nothing, torch.zeros(2, 4, 4, dtype=torch.bool))
    assert_same(*both_paths(tree, nothing + 3))


def test_no_sequences():
    """Bug: a launch of no programs, which a device refuses."""
    none = Candidates(torch.zeros(0, 5), torch.zeros(0, 5).long(), torch.zeros(0, 5).long())
    mine, reference = both(none, 3)
    assert_same(mine, reference)
    assert_same(*both_paths(reference, reference.tokens))


CANDIDATES = moved(of_root([0.5, 0.4, 0.3]))
ONE = torch.ones(1, dtype=torch.int64, device=DEVICE)
REFUSED = {
    "one node": {"num_draft_tokens": 1},
    "more nodes than candidates": {"num_draft_tokens": 5},
    "two roots": {"root_tokens": ONE.expand(2)},
    "lengths as floats": {"prefix_lengths": ONE.float()},
    "faults in int64": {"faults": ONE},
    "faults with gaps": {
        "candidates": Candidates(*(getattr(CANDIDATES, field.name).expand(2, 3) for field in fields(Candidates))),
        "root_tokens": ONE.expand(2),
        "prefix_lengths": ONE.expand(2),
        "faults": ONE.int().repeat(4)[::2],
    },
    "fp64 scores": {"candidates": Candidates(CANDIDATES.scores.double(), CANDIDATES.tokens, CANDIDATES.parents)},
    "too many": {"candidates": moved(of_root([0.0] * 8193))},
    "elsewhere": {"root_tokens": ONE.to("meta")},
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(change):
    """Bug: a shape that is broadcast, or memory that is read as something else."""
    given = {"candidates": CANDIDATES, "root_tokens": ONE, "prefix_lengths": ONE, "num_draft_tokens": 3} | change
    with pytest.raises(Eagle3RefError, match=r"building the draft tree with Triton: found .*; expected .*"):
        build_tree(given.pop("candidates"), **given)


def test_targets_that_do_not_fit_are_refused():
    """Bug: targets of another tree, logits for tokens."""
    tree, _ = both(of_root([0.5, 0.4, 0.3]), 3)
    for target in (torch.zeros(1, 4, device=DEVICE).long(), torch.zeros(1, 3, device=DEVICE)):
        with pytest.raises(Eagle3RefError, match=r"verifying a draft tree with Triton: found .*; expected .*"):
            verify_greedy(tree, target)


@pytest.mark.slow
def test_compiles_for_a_gpu_without_spilled_registers():
    """Bug: what the interpreter takes and the compiler does not, and programs too wide for their registers."""
    lines = """
from eagle3ref.kernels.trees import build_tree
from eagle3ref.kernels.verification import verify_greedy
from eagle3ref.tree import Candidates
for candidates, nodes in ((3, 4), (456, 64), (710, 64), (1808, 256)):
    tokens, one = meta(2, candidates, dtype=torch.int64), meta(2, dtype=torch.int64)
    scored = Candidates(meta(2, candidates, dtype=torch.float32), tokens, tokens)
    tree = build_tree(scored, root_tokens=one, prefix_lengths=one, num_draft_tokens=nodes)
    verify_greedy(tree, tree.tokens)
"""
    usages = compiled(lines)
    assert len(usages) == 8
    assert all(usage.fits for usage in usages), usages
