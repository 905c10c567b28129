"""The compiled twins against the reference: the same integers, the same bits, the same refusals."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_parts import assert_same, built, drafted, random_tree, refusal
from torch import Tensor

from eagle3ref import tree as reference_tree
from eagle3ref import verify as reference_verify
from eagle3ref.config import AcceptanceRule
from eagle3ref.kernels import native
from eagle3ref.kernels.native_library import why_not
from eagle3ref.tree import Candidates, DraftTree

pytestmark = [built, pytest.mark.usefixtures("simd")]

MANY = settings(max_examples=60, deadline=None)


@MANY
@given(
    st.integers(0, 2**20), st.integers(1, 6), st.integers(1, 4), st.sampled_from([1, 2, 5, 2**20]), st.data(),
    st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_the_tree_is_the_references(seed, topk, steps, levels, data, dtype):
    """Bug: another order among equals, a tie kept too many, a mask or depth of another node's ancestors."""
    candidates = drafted(seed, 3, topk, steps, levels, dtype)
    size = data.draw(st.integers(2, candidates.scores.shape[1] + 1))
    roots, lengths = torch.tensor([5, 0, 7]), torch.tensor([0, 99, 2**40])
    given_to_both = {"root_tokens": roots, "prefix_lengths": lengths, "num_draft_tokens": size}
    assert_same(native.build_tree(candidates, **given_to_both), reference_tree.build_tree(candidates, **given_to_both))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_finite_score_has_its_place(dtype):
    """Bug: an order by bits that fails below zero, at -0, for subnormals or for infinities."""
    scores = [-0.0, 0.0, 1e-45, -1e-45, -1.0, 2.0, float("inf"), -float("inf"), torch.finfo(dtype).max, -3.5, 2.0, 0.0]
    random = torch.Generator().manual_seed(1)
    order = torch.stack([torch.randperm(len(scores), generator=random) for _ in range(20)])
    candidates = Candidates(torch.tensor(scores, dtype=dtype)[order], order.clone(), torch.full_like(order, -1))
    for size in range(2, len(scores) + 2):
        chosen = reference_tree.select_candidates(candidates, size)
        mine = native.build_tree(candidates, root_tokens=order[:, 0], prefix_lengths=order[:, 0], num_draft_tokens=size)
        assert torch.equal(mine.tokens[:, 1:], order.gather(1, chosen))


def test_many_sequences_in_threads():
    """Bug: threads that share scratch memory, or split the batch wrongly."""
    candidates = drafted(3, 200, 4, 3, 4, torch.float32)
    numbers = torch.arange(200)
    given_to_both = {"root_tokens": numbers, "prefix_lengths": numbers, "num_draft_tokens": 17}
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        mine = native.build_tree(candidates, **given_to_both)
    finally:
        torch.set_num_threads(threads)
    assert_same(mine, reference_tree.build_tree(candidates, **given_to_both))


def test_rows_need_not_be_contiguous():
    """Bug: strides that are not looked at."""
    candidates = drafted(4, 4, 3, 2, 3, torch.float32)
    turned = Candidates(*(part.T.contiguous().T for part in (candidates.scores, candidates.tokens, candidates.parents)))
    numbers = torch.arange(8)[::2]
    given_to_both = {"root_tokens": numbers, "prefix_lengths": numbers, "num_draft_tokens": 6}
    assert_same(native.build_tree(turned, **given_to_both), reference_tree.build_tree(candidates, **given_to_both))


@pytest.mark.parametrize(
    ("scores", "parents", "size"),
    [
        ([0.5, float("nan"), 0.1], [-1, -1, 0], 2),
        ([0.5, -float("nan"), 0.1], [-1, -1, 0], 4),
        ([0.1, 0.4, 0.5], [-1, -1, 0], 3),  # the parent of the best is not among the best
        ([0.5, 0.4, 0.3], [-1, 2, -1], 4),
        ([0.5, 0.4, 0.3], [-1, 1, -1], 4),
        ([0.5, 0.4, 0.3], [-1, -2, -1], 4),
        ([0.5, 0.4, 0.3], [-1, 2**40, -1], 4),
        ([0.5, 0.4, 0.3], [-1, -1, -1], 1),
        ([0.5, 0.4, 0.3], [-1, -1, -1], 5),
    ],
)
def test_what_makes_no_tree_is_refused_in_the_references_words(scores, parents, size):
    """Bug: memory read at a parent that is no candidate; a NaN that is ranked; a refusal that says something else."""
    candidates = Candidates(torch.tensor([scores]), torch.tensor([[1, 2, 3]]), torch.tensor([parents]))
    one = torch.tensor([1])
    given_to_both = {"root_tokens": one, "prefix_lengths": one, "num_draft_tokens": size}
    mine = refusal(lambda: native.build_tree(candidates, **given_to_both))
    assert mine == refusal(lambda: reference_tree.build_tree(candidates, **given_to_both))


@MANY
@given(st.integers(0, 2**20), st.integers(1, 12), st.integers(2, 5))
def test_the_greedy_path_is_the_references(seed, size, vocab_size):
    """Bug: another child where two hold the token, a path that ends early, padding or bonus of another node."""
    random = torch.Generator().manual_seed(seed)
    tree = random_tree(4, size, 99, seed)
    tree = dataclasses.replace(tree, tokens=torch.randint(0, vocab_size, (4, size), generator=random))
    target = torch.randint(0, vocab_size, (4, size), generator=random)
    assert_same(native.verify_greedy(tree, target), reference_verify.verify_greedy(tree, target))


RULES = [
    AcceptanceRule("target_only"),
    AcceptanceRule("target_only", inclusive=True),
    AcceptanceRule("target_only", threshold_single=0.25, threshold_acc=0.7),
    AcceptanceRule("target_only", threshold_acc=0.5),
    AcceptanceRule("target_only", threshold_acc=0.0, inclusive=True),
]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**20), st.integers(1, 9), st.integers(9, 16), st.integers(1, 12), st.sampled_from(RULES),
    st.sampled_from([torch.float32, torch.float64]), st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_the_sampled_path_and_bonus_are_the_references(seed, size, vocab_size, levels, rule, dtype, coins):
    """Bug: sums in another order or precision, a coin that meets its bound exactly, siblings left in the bonus."""
    random = torch.Generator().manual_seed(seed)
    tree = random_tree(40, size, vocab_size, seed)
    # In sixteenths, as the coins are, so that they meet; a row may be without mass.
    balls = torch.randint(0, min(vocab_size, levels), (40, size, 16), generator=random)
    there = torch.rand(40, size, 1, generator=random) < 0.9
    probs = (torch.nn.functional.one_hot(balls, vocab_size).sum(2) * there / 16).to(dtype)
    uniforms = (torch.randint(0, 9, (40, size), generator=random) / 16).to(coins)
    final = (torch.randint(0, 17, (40,), generator=random) / 16).to(coins)
    mine = native.verify_target_only(tree, probs, uniforms, final, rule=rule)
    assert_same(mine, reference_verify.verify_target_only(tree, probs, uniforms, final, rule=rule))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_coin_on_the_bound_is_decided_as_by_the_reference(dtype):
    """Bug: a quotient that is a product with the reciprocal, or in double precision: it is rounded otherwise."""
    mass, rule = torch.arange(1, 500, dtype=dtype) / 1000, AcceptanceRule("target_only", threshold_acc=0.7)
    chain = DraftTree.from_parents(torch.zeros(499, 2).long(), torch.tensor([[-1, 0]] * 499), torch.zeros(499).long())
    probs = torch.stack([mass, 1 - mass], 1)[:, None].expand(-1, 2, -1)
    bound = (mass / mass.new_tensor(0.7)).double()
    for coin, accepted in ((bound, 0), (bound.nextafter(bound.new_tensor(0)), 1)):
        coins = coin[:, None].expand(-1, 2)
        mine = native.verify_target_only(chain, probs, coins, coin.clamp(max=0.5), rule=rule)
        assert_same(mine, reference_verify.verify_target_only(chain, probs, coins, coin.clamp(max=0.5), rule=rule))
        assert (mine.num_accepted == accepted).all()


def test_the_bonus_of_a_large_vocabulary_is_the_references():
    """Bug: fp64 sums in an order of their own, which move a bonus now and then."""
    tree = random_tree(8, 5, 30000, 0)
    probs = (torch.randn(8, 5, 30000) * 3).softmax(-1)
    for _ in range(10):
        coins = torch.rand(8, 5), torch.rand(8)
        assert_same(
            native.verify_target_only(tree, probs, *coins), reference_verify.verify_target_only(tree, probs, *coins)
        )


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("probs", -0.1), ("probs", float("nan")), ("probs", float("inf")), ("uniforms", 1.5), ("uniforms", -0.5),
        ("uniforms", float("nan")), ("final", 2.0), ("final", float("nan")), ("tokens", 9),
        ("tokens", -1), ("tokens", 5),
    ],
)  # fmt: skip
def test_a_round_that_cannot_be_is_refused_in_the_references_words(place, value):
    """Bug: a check of the reference that the twin leaves out, wherever in the input the bad number is."""
    tree = DraftTree.from_parents(torch.tensor([[1, 5, 6, 7]]), torch.tensor([[-1, 0, 0, 1]]), torch.tensor([0]))
    parts = {"probs": torch.full((1, 4, 9), 1 / 9), "uniforms": torch.rand(1, 4), "final": torch.rand(1)}
    parts["tokens"] = tree.tokens  # 5 a second time is its own sibling
    parts[place].flatten()[{"probs": -1, "uniforms": 0, "final": 0, "tokens": 2}[place]] = value
    numbers = parts["probs"], parts["uniforms"], parts["final"]
    mine = refusal(lambda: native.verify_target_only(tree, *numbers))
    assert mine == refusal(lambda: reference_verify.verify_target_only(tree, *numbers))


def test_a_parent_behind_its_child_is_refused():
    """Bug: one pass over the nodes that silently walks another tree than the reference."""
    tree = random_tree(1, 3, 9, 0)
    turned = dataclasses.replace(tree, parents=torch.tensor([[-1, 2, 0]]))
    assert "parent that does not precede" in refusal(lambda: native.verify_greedy(turned, tree.tokens))
    probs, coins = torch.full((1, 3, 9), 1 / 9), torch.rand(1, 3)
    distinct = dataclasses.replace(turned, tokens=torch.tensor([[1, 2, 3]]))
    assert "parent that does not" in refusal(lambda: native.verify_target_only(distinct, probs, coins, coins[:, 0]))


@pytest.mark.gpu
@pytest.mark.skipif(why_not("cuda") is not None, reason=f"run make native EXT=cuda: {why_not('cuda')}")
def test_the_gpu_gives_what_the_cpu_gives():
    """Bug: lanes of a warp that disagree, or a launch that leaves sequences out."""
    candidates, tree = drafted(5, 300, 8, 5, 7, torch.float32), random_tree(300, 16, 500, 5)
    numbers, probs = torch.arange(300), (torch.randn(300, 16, 500) * 3).softmax(-1)
    coins, packed = (torch.rand(300, 16), torch.rand(300)), torch.randint(-(2**31), 2**31, (300, 64)).to(torch.int32)
    accepted = torch.randint(0, 5, (300, 77))

    def everything(device: str) -> list[Tensor]:
        here = Candidates(*(part.to(device) for part in vars(candidates).values()))
        drafts = DraftTree(*(part.to(device) for part in vars(tree).values()))
        at = numbers.to(device)
        built = native.build_tree(here, root_tokens=at, prefix_lengths=at, num_draft_tokens=64)
        greedy = native.verify_greedy(drafts, drafts.tokens.roll(-1, 1))
        sampled = native.verify_target_only(drafts, probs.to(device), *(coin.to(device) for coin in coins))
        tally = native.tally_settings(
            accepted.to(device, torch.int16).reshape(-1, 1, 1),
            torch.tensor([0, 9, 300 * 77]),
            numbers[1:2],
            numbers[3:4],
        )
        int4s = native.unpack_int4(packed.to(device)), *(
            native.dequantize_int4(packed.to(device), probs[:, 0, :16].to(device, dtype), torch.tensor([300, 512]), "w")
            for dtype in (torch.bfloat16, torch.float16, torch.float32)
        )  # fmt: skip
        trees = [part for found in (built, greedy, sampled) for part in vars(found).values()]
        return [part.cpu() for part in (*trees, *tally, *int4s, native.visited_positions(accepted.to(device)))]

    assert all(map(torch.equal, everything("cuda"), everything("cpu")))
