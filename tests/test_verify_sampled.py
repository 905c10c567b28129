"""What the sampling rules share: batches, chi-square at a real vocabulary's scale, refusals, borders of rounding."""

from __future__ import annotations

import random

import oracles
import pytest
import scipy.stats
import torch

from eagle3ref.config import AcceptanceRule
from eagle3ref.errors import Eagle3RefError
from eagle3ref.tree import DraftTree
from eagle3ref.verify import Verification, verify_greedy, verify_sampled

RULES = [
    AcceptanceRule("target_only"),
    AcceptanceRule("multi_round"),
    AcceptanceRule("rejection"),
    AcceptanceRule("block"),
    AcceptanceRule("rejection", drafts="sampled"),
    AcceptanceRule("block", drafts="sampled"),
]
VOCABULARY, ROUNDS = 1000, 6000


def name_of(rule: AcceptanceRule) -> str:
    return f"{rule.name}-{rule.drafts}"


def tree_of(tokens: torch.Tensor, parents: torch.Tensor) -> DraftTree:
    return DraftTree.from_parents(tokens, parents, torch.zeros(len(tokens), dtype=torch.int64))


def rounds_at_scale(rule: AcceptanceRule) -> tuple[Verification, torch.Tensor]:
    """Many rounds of one tree of depth 2 at V = 1000, and the law [2, V] of the first token and of the one after it.

    The second token's law does not depend on the first, so that all rounds can be counted together.
    """
    generator = torch.Generator().manual_seed(7)
    law = (1.5 * torch.randn(2, VOCABULARY, generator=generator)).softmax(-1)
    draft = (law.log() + torch.randn(2, VOCABULARY, generator=generator)).softmax(-1)
    draft_probs = None
    if rule.drafts == "sampled":
        drawn = [torch.multinomial(row, ROUNDS, replacement=True, generator=generator) for row in draft]
        draft_probs = draft.expand(ROUNDS, -1, -1)
    else:
        drawn = [row.argmax().expand(ROUNDS) for row in draft]
    tokens, parents, depths = torch.stack([torch.zeros_like(drawn[0]), *drawn], 1), [-1, 0, 1], [0, 1, 2]
    if rule.name in ("target_only", "multi_round"):  # two siblings below root and first node
        more = [row.topk(2).indices[1].expand(ROUNDS) for row in draft]
        tokens, parents, depths = torch.cat([tokens, torch.stack(more, 1)], 1), [-1, 0, 1, 0, 1], [0, 1, 2, 1, 2]
    rows = torch.cat([law, law[:1]])[depths].expand(ROUNDS, -1, -1)
    coins = torch.rand(ROUNDS, len(parents) + 1, generator=generator)
    tree = tree_of(tokens, torch.tensor(parents).expand(ROUNDS, -1))
    result = verify_sampled(tree, rows, coins[:, :-1], coins[:, -1], rule=rule, draft_probs=draft_probs)
    return result, law


def p_value(tokens: torch.Tensor, law: torch.Tensor) -> float:
    """Chi-square of tokens against their law, in 100 groups of 10 tokens that lie apart."""
    expected = len(tokens) * law.double().view(10, 100).sum(0)
    seen = torch.bincount(tokens % 100, minlength=100).double()
    return float(scipy.stats.chisquare(seen, expected * len(tokens) / expected.sum()).pvalue)


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_text_has_the_targets_law_at_scale(rule):
    """Bug: a bias that small vocabularies hide: sums in fp32, ids scattered wrongly, coins that hang together."""
    result, law = rounds_at_scale(rule)
    some = result.num_accepted > 0
    first = result.accepted_tokens[:, 0].where(some, result.bonus_token)
    second = result.accepted_tokens[:, 1].where(result.num_accepted > 1, result.bonus_token)[some]
    assert len(second) > 200
    assert p_value(first, law[0]) > 1e-3
    assert p_value(second, law[1]) > 1e-3


def test_the_chi_square_has_power():
    """Bug: a test that would pass a wrong rule: the bonus from the whole target, though a draft was rejected."""
    result, law = rounds_at_scale(RULES[4])
    wrong = torch.multinomial(law[0], ROUNDS, replacement=True, generator=torch.Generator().manual_seed(1))
    first = result.accepted_tokens[:, 0].where(result.num_accepted > 0, wrong)
    assert p_value(first, law[0]) < 1e-9


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_rows_of_a_batch_do_not_mix(rule):
    """Bug: a row's path, remainder or coin comes from its neighbour."""
    rng, size, batch = random.Random(2), 5, 40
    chains = rule.name in ("rejection", "block")
    topologies = [[-1, 0, 1, 2, 3]] if chains else list(oracles.all_topologies(size))
    parents = torch.tensor([rng.choice(topologies) for _ in range(batch)])
    tokens = torch.stack([torch.randperm(8)[:size] for _ in range(batch)])
    target, draft = torch.rand(batch, size, 8).pow(4), torch.rand(batch, size - 1, 8).pow(2)
    target, draft = (part / part.sum(-1, keepdim=True) for part in (target, draft))
    coins = torch.rand(batch, size + 1)

    def run(rows: slice) -> Verification:
        inputs = (tree_of(tokens[rows], parents[rows]), target[rows], coins[rows, :-1], coins[rows, -1])
        return verify_sampled(*inputs, rule=rule, draft_probs=draft[rows] if rule.drafts == "sampled" else None)

    together = run(slice(None))
    assert len(together.num_accepted.unique()) > 1
    for row in range(batch):
        alone = run(slice(row, row + 1))
        for field in ("num_accepted", "accepted_nodes", "accepted_tokens", "bonus_token"):
            assert torch.equal(getattr(together, field)[row : row + 1], getattr(alone, field))


@pytest.mark.parametrize("rule", RULES[:4], ids=name_of)
def test_a_one_hot_target_is_greedy(rule):
    """Bug: a greedy request in a sampled batch gives other tokens; its drafts are accepted by luck."""
    says = torch.randint(3, (40, 4))
    tree = tree_of(torch.randint(3, (40, 4)), torch.arange(-1, 3).expand(40, -1))
    probs = torch.nn.functional.one_hot(says, 3).float()
    result = verify_sampled(tree, probs, torch.rand(40, 4), torch.rand(40), rule=rule)
    greedy = verify_greedy(tree, says)
    assert torch.equal(result.accepted_tokens, greedy.accepted_tokens)
    assert torch.equal(result.bonus_token, greedy.bonus_token)


def test_no_mass_left_gives_the_last_token():
    """Bug: a division by zero or an exception where rounding rejects drafts that hold all of the mass."""
    probs = torch.tensor([0.5, 0.5 - 2**-25, 0.0, 0.0])[None].expand(3, -1)[None]
    coins = torch.full((1, 3), 1.0)
    tree = tree_of(torch.tensor([[3, 0, 1]]), torch.tensor([[-1, 0, 0]]))
    result = verify_sampled(tree, probs, coins, torch.tensor([0.5]))
    assert result.num_accepted.item() == 0
    assert result.bonus_token.item() == 3


def test_a_root_outside_the_vocabulary_is_no_draft():
    """Bug: a root token (an image placeholder, say) is looked up in the target's probabilities."""
    probs = torch.tensor([[[0.25, 0.75], [1.0, 0.0]]])
    tree = tree_of(torch.tensor([[999, 1]]), torch.tensor([[-1, 0]]))
    for rule in RULES[:4]:
        assert verify_sampled(tree, probs, torch.full((1, 2), 0.5), torch.tensor([0.5]), rule=rule).num_accepted == 1


def test_a_root_alone_gets_its_bonus():
    """Bug: an index error in the one rule that looks for a first and a last draft."""
    for rule in RULES:
        probs = torch.tensor([[[0.25, 0.75]]])
        draft_probs = torch.empty(1, 0, 2) if rule.drafts == "sampled" else None
        tree = tree_of(torch.tensor([[1]]), torch.tensor([[-1]]))
        result = verify_sampled(tree, probs, probs[..., 0], torch.tensor([0.5]), rule=rule, draft_probs=draft_probs)
        assert (result.num_accepted.tolist(), result.bonus_token.tolist()) == ([0], [1])


def call(**changes):
    inputs = {
        "tree": tree_of(torch.tensor([[0, 1, 2]]), torch.tensor([[-1, 0, 1]])),
        "target_probs": torch.full((1, 3, 4), 0.25),
        "uniforms": torch.full((1, 3), 0.5),
        "final_uniforms": torch.tensor([0.5]),
    }
    return verify_sampled(**(inputs | changes))


BRANCHES = {"tree": tree_of(torch.tensor([[0, 1, 2]]), torch.tensor([[-1, 0, 0]]))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_probs": torch.full((1, 2, 4), 0.25)}, "target_probs, uniforms and final_uniforms of shapes"),
        ({"target_probs": torch.full((3, 4), 0.25)}, "target_probs, uniforms and final_uniforms of shapes"),
        ({"uniforms": torch.full((1, 2), 0.5)}, r"\[1, 3\] and \[1\] for a tree of 3 nodes"),
        ({"final_uniforms": torch.tensor(0.5)}, r"\[1, 3\] and \[1\] for a tree of 3 nodes"),
        ({"uniforms": torch.full((1, 3), 1.5)}, "a uniform out of range"),
        ({"uniforms": torch.full((1, 3), float("nan"))}, "a uniform out of range"),
        ({"target_probs": torch.full((1, 3, 2), 0.5)}, "outside the target vocabulary; expected ids 0 to 1"),
        ({"target_probs": torch.full((1, 3, 4), -0.1)}, "a target probability that is negative or not finite"),
        ({"target_probs": torch.full((1, 3, 4), float("nan"))}, "a target probability that is negative or not finite"),
        ({"target_probs": torch.full((1, 3, 4), float("inf"))}, "a target probability that is negative or not finite"),
        ({"tree": tree_of(torch.tensor([[0, 1, 1]]), torch.tensor([[-1, 0, 0]]))}, "two siblings with one token"),
        ({"rule": AcceptanceRule()}, "the rule greedy"),
        ({"rule": RULES[2], **BRANCHES}, "a tree with branches"),
        ({"rule": RULES[3], **BRANCHES}, "a tree with branches"),
        ({"rule": RULES[4]}, "no draft_probs with sampled drafts"),
        ({"rule": RULES[2], "draft_probs": torch.full((1, 2, 4), 0.25)}, "draft_probs with top drafts"),
        ({"draft_probs": torch.full((1, 2, 4), 0.25)}, "draft_probs with top drafts"),
        ({"rule": RULES[5], "draft_probs": torch.full((1, 3, 4), 0.25)}, r"draft_probs of shape \[1, 3, 4\]"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    """Bug: a broadcast hides a wrong shape, or draft probabilities are silently not used."""
    with pytest.raises(Eagle3RefError, match=message):
        call(**changes)
