"""Every rule's outcome, integrated exactly over its coins: against formulas in fractions, and against the target."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import exact
import oracles
import pytest

from eagle3ref.config import AcceptanceRule

ONE = Fraction(1)
TREE_RULES = [
    AcceptanceRule("target_only"),
    AcceptanceRule("target_only", inclusive=True),
    AcceptanceRule("multi_round"),
]
CHAIN_RULES = [AcceptanceRule("rejection"), AcceptanceRule("block")]
DRAWN_RULES = [AcceptanceRule("rejection", drafts="sampled"), AcceptanceRule("block", drafts="sampled")]


def name_of(rule: AcceptanceRule) -> str:
    return f"{rule.name}-{rule.drafts}-{rule.threshold_single}-{rule.threshold_acc}-{rule.inclusive}"


def random_trees(seed: int, size: int, vocabulary: int, count: int) -> list[exact.Case]:
    """``count`` laws over every topology of ``size`` nodes; siblings are distinct, some drafts have no target mass."""
    rng, cases = random.Random(seed), []
    for parents in oracles.all_topologies(size):
        for _ in range(count):
            target = exact.random_law(rng, vocabulary, size)
            tokens = exact.distinct_siblings(rng, parents, vocabulary)
            cases.append(exact.Case(tokens, parents, target))
    return cases


@pytest.mark.parametrize("rule", TREE_RULES, ids=name_of)
@pytest.mark.parametrize(("size", "vocabulary", "count"), [(1, 2, 3), (2, 2, 5), (3, 3, 5), (4, 4, 4)])
def test_trees_give_the_targets_text(rule, size, vocabulary, count):
    """Bug: coins used twice, siblings not taken out of the remainder, a coin of the wrong node; the text is biased."""
    for case in random_trees(size, size, vocabulary, count):
        got = exact.measured(rule, case)
        assert got == exact.expected(rule, case)
        assert exact.text_law(got, case.target, size) == exact.target_law(case.target, size)


@pytest.mark.parametrize("rule", CHAIN_RULES, ids=name_of)
@pytest.mark.parametrize(("steps", "vocabulary"), [(1, 2), (2, 3), (3, 3)])
def test_chains_of_first_choices_give_the_targets_text(rule, steps, vocabulary):
    """Bug: a draft that was not drawn is divided by its probability, or left in the remainder."""
    rng = random.Random(steps)
    for _ in range(8):
        target = exact.random_law(rng, vocabulary, steps)
        case = exact.chain([rng.randrange(vocabulary) for _ in range(steps)], target)
        got = exact.measured(rule, case)
        assert got == exact.expected(rule, case)
        assert exact.text_law(got, target, steps + 1) == exact.target_law(target, steps + 1)


@pytest.mark.parametrize("rule", DRAWN_RULES, ids=name_of)
@pytest.mark.parametrize(("steps", "vocabulary", "count"), [(1, 2, 8), (1, 5, 5), (2, 3, 5), (3, 2, 5)])
def test_drawn_drafts_give_the_targets_text(rule, steps, vocabulary, count):
    """Bug: any slip in ratio, block bound or remainder; drafts without target mass and the reverse are among them."""
    rng = random.Random(steps + vocabulary)
    for _ in range(count):
        target, draft = (exact.random_law(rng, vocabulary, steps) for _ in range(2))
        got = exact.over_drafts(rule, target, draft, steps)
        assert got == exact.over_drafts(rule, target, draft, steps, exact.expected)
        assert exact.text_law(got, target, steps + 1) == exact.target_law(target, steps + 1)


@pytest.mark.parametrize("rule", DRAWN_RULES, ids=name_of)
def test_a_draft_that_could_not_have_been_drawn_is_rejected(rule):
    """Bug: division by a draft probability of 0, or its token accepted; the others are then drawn from a NaN."""
    half = [Fraction(1, 2), Fraction(1, 2), Fraction(0)]
    never = [Fraction(0), Fraction(1, 2), Fraction(1, 2)]
    case = exact.chain([0], dict.fromkeys([(), (0,)], half), {(): never})
    assert exact.measured(rule, case) == {((), 0): 1}


@pytest.mark.parametrize("single", [Fraction(1), Fraction(1, 2), Fraction(1, 4), Fraction(0)])
@pytest.mark.parametrize("acc", [Fraction(1), Fraction(1, 2), Fraction(0)])
@pytest.mark.parametrize("inclusive", [False, True])
def test_thresholds_bias_the_text_as_they_should(single, acc, inclusive):
    """Bug: thresholds swapped, applied to the wrong sum, or to a zero mass; text and acceptance are then others."""
    rule = AcceptanceRule("target_only", "top", float(single), float(acc), inclusive)
    biased = 0
    for case in random_trees(7, 4, 4, 1) + random_trees(8, 3, 3, 3):
        got = exact.measured(rule, case)
        assert got == exact.expected(rule, case)
        biased += exact.text_law(got, case.target, 4) != exact.target_law(case.target, 4)
    assert (biased == 0) == rule.lossless


def test_rules_without_draft_probabilities_are_one_and_the_same():
    """Bug: a rule that is unbiased but accepts less; it would make a replay of a sampled trajectory wrong for it."""
    for case in random_trees(3, 4, 4, 3):
        assert exact.measured(TREE_RULES[0], case) == exact.measured(AcceptanceRule("multi_round"), case)
        if list(case.parents) == [-1, 0, 1, 2]:
            for rule in CHAIN_RULES:
                assert exact.measured(rule, case) == exact.measured(TREE_RULES[0], case)


def test_acceptance_is_ordered_as_the_papers_say():
    """Bug: block verification that accepts no more than token by token, or a rule that throws drafts away."""
    rng, gains = random.Random(5), []
    for _ in range(8):
        target, draft = (exact.random_law(rng, 3, 2) for _ in range(2))
        rejection, block = (exact.mean_accepted(exact.over_drafts(rule, target, draft, 2)) for rule in DRAWN_RULES)
        from_target = sum(
            draft[()][x]
            * draft[(x,)][y]
            * exact.mean_accepted(exact.measured(TREE_RULES[0], exact.chain([x, y], target)))
            for x, y in itertools.product(range(3), repeat=2)
        )
        overlap = [min(p, q) for p, q in zip(target[()], draft[()], strict=True)]
        second = [sum(min(p, q) for p, q in zip(target[(x,)], draft[(x,)], strict=True)) for x in range(3)]
        assert rejection == sum(o * (1 + s) for o, s in zip(overlap, second, strict=True))
        assert block >= rejection >= from_target
        gains.append(block - rejection)
    assert max(gains) > 0


def test_first_choices_can_be_accepted_more_often_than_drawn_drafts():
    """Bug: a claim that rejection sampling always accepts more than target-only sampling; it depends on the pair."""
    target = {(): [Fraction(9, 10), Fraction(1, 10)], (0,): [ONE, 1 - ONE], (1,): [ONE, 1 - ONE]}
    draft = {(): [Fraction(51, 100), Fraction(49, 100)]}
    drawn = exact.mean_accepted(exact.over_drafts(DRAWN_RULES[0], target, draft, 1))
    top = exact.mean_accepted(exact.measured(TREE_RULES[0], exact.chain([0], target)))
    assert (drawn, top) == (Fraction(61, 100), Fraction(9, 10))
