"""Acceptance rules in exact fractions: what each should do, and what the package does, integrated over all coins.

For given coins a rule's outcome is fixed, and it changes only where a coin crosses one of finitely many borders. So
the package is run once in the middle of every cell between borders, and its outcome is weighted by the cell's volume.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import oracles
import torch

from eagle3ref.config import AcceptanceRule
from eagle3ref.tree import DraftTree
from eagle3ref.verify import verify_sampled

Text = tuple[int, ...]
Law = dict[Text, list[Fraction]]
"""Text after the root -> the distribution of the next token."""
Outcomes = dict[tuple[Text, int], Fraction]  # (accepted tokens, bonus token) -> probability

ONE = Fraction(1)


def random_law(rng: random.Random, vocabulary: int, depth: int) -> Law:
    """Distributions with small denominators, zeros and ties after every text of up to ``depth`` tokens."""
    law = {}
    for length in range(depth + 1):
        for text in itertools.product(range(vocabulary), repeat=length):
            weights = [rng.choice((0, 1, 1, 2, 3, 5)) for _ in range(vocabulary)]
            weights[rng.randrange(vocabulary)] += 1
            law[text] = [Fraction(weight, sum(weights)) for weight in weights]
    return law


def distinct_siblings(rng: random.Random, parents: Sequence[int], vocabulary: int) -> list[int]:
    """A token for every node; no two children of one parent have the same."""
    tokens = [0] * len(parents)
    for parent in range(len(parents)):
        family = [node for node, other in enumerate(parents) if other == parent]
        for node, token in zip(family, rng.sample(range(vocabulary), len(family)), strict=True):
            tokens[node] = token
    return tokens


@dataclass(frozen=True)
class Case:
    """A tree over a target, and for drawn drafts the law they are drawn from."""

    tokens: Sequence[int]
    parents: Sequence[int]
    target: Law
    draft: Law | None = None

    def text(self, node: int) -> Text:
        return tuple(self.tokens[i] for i in reversed(oracles.ancestors(self.parents, node)[:-1]))

    def after(self, node: int) -> list[Fraction]:
        return self.target[self.text(node)]

    def drafted(self, node: int) -> list[Fraction]:
        """What the child of a chain's node was drawn from."""
        child = self.tokens[node + 1]
        if self.draft is None:
            return [Fraction(token == child) for token in range(len(self.after(node)))]
        return self.draft[self.text(node)]

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]


def chain(drafts: Sequence[int], target: Law, draft: Law | None = None) -> Case:
    return Case((0, *drafts), tuple(range(-1, len(drafts))), target, draft)


def expected(rule: AcceptanceRule, case: Case) -> Outcomes:
    """The law of a rule's outcome, by formula."""
    if rule.name == "block":
        return _block(case)
    outcomes: Counter[tuple[Text, int]] = Counter()

    def descend(node: int, weight: Fraction) -> None:
        shares = child_shares(rule, case, node)
        for child, share in zip(case.children(node), shares, strict=True):
            if share:
                descend(child, weight * share)
        if left := weight * (1 - sum(shares)):
            masses = leftover(rule, case, node)
            for token, mass in enumerate(masses):
                outcomes[case.text(node), token] += left * mass / sum(masses)

    descend(0, ONE)
    return _positive(outcomes)


def child_shares(rule: AcceptanceRule, case: Case, node: int) -> list[Fraction]:
    """Probability that each child is the one accepted, once the walk stands on ``node``."""
    probs, shares, tried = case.after(node), [], Fraction(0)
    for child in case.children(node):
        mass, free = probs[case.tokens[child]], 1 - sum(shares)
        tried += mass
        if rule.name == "rejection":
            drafted = case.drafted(node)[case.tokens[child]]
            shares.append(min(ONE, mass / drafted) if drafted else Fraction(0))
        elif rule.name == "multi_round":
            others = 1 - tried + mass
            shares.append(free * min(ONE, mass / others) if mass else Fraction(0))
        elif mass >= rule.threshold_single and (mass or rule.inclusive):
            shares.append(free)
        else:
            acc = Fraction(rule.threshold_acc)
            reached = min(ONE, tried / acc) if acc else Fraction(tried > 0)
            shares.append(max(Fraction(0), reached - sum(shares)) if mass else Fraction(0))
    return shares


def leftover(rule: AcceptanceRule, case: Case, node: int, scale: Fraction = ONE) -> list[Fraction]:
    """Masses that the bonus after ``node`` is drawn from, when all its children were rejected."""
    probs, children = case.after(node), case.children(node)
    if not children:
        return probs
    if rule.name in ("rejection", "block"):
        return [max(scale * p - q, Fraction(0)) for p, q in zip(probs, case.drafted(node), strict=True)]
    gone = {case.tokens[child] for child in children}
    return [Fraction(0) if token in gone else p for token, p in enumerate(probs)]


def block_terms(case: Case) -> tuple[list[Fraction], list[Fraction]]:
    """Of each prefix: the clipped joint ratio, and the probability to pass (arXiv 2403.10444, equations of §4)."""
    ratios, passes = [ONE], [ONE]
    for node in range(1, len(case.tokens)):
        token = case.tokens[node]
        drafted = case.drafted(node - 1)[token]
        ratios.append(min(ONE, ratios[-1] * case.after(node - 1)[token] / drafted) if drafted else Fraction(0))
        if case.children(node):
            rest = sum(leftover(AcceptanceRule("block"), case, node, ratios[-1]))
            passes.append(rest / (rest + 1 - ratios[-1]) if ratios[-1] < 1 else ONE)
        else:
            passes.append(ratios[-1])
    return ratios, passes


def _block(case: Case) -> Outcomes:
    ratios, passes = block_terms(case)
    outcomes: Counter[tuple[Text, int]] = Counter()
    for node, passed in enumerate(passes):
        if weight := passed * math.prod(1 - later for later in passes[node + 1 :]):
            masses = leftover(AcceptanceRule("block"), case, node, ratios[node])
            for token, mass in enumerate(masses):
                outcomes[case.text(node), token] += weight * mass / sum(masses)
    return _positive(outcomes)


def measured(rule: AcceptanceRule, case: Case) -> Outcomes:
    """The law of the package's outcome: it is run in every cell of the unit cube of coins."""
    size = len(case.tokens)
    cells = [_cells(_borders(rule, case, node)) for node in range(size)]
    finals = _cells({border for node in range(size) for border in _bonus_borders(rule, case, node)})
    grid = list(itertools.product(*cells, finals))
    coins = torch.tensor([[float(middle) for middle, _ in point] for point in grid], dtype=torch.float64)
    batch = len(grid)
    parts = ([case.tokens] * batch, [case.parents] * batch, [0] * batch)
    tree = DraftTree.from_parents(*map(torch.tensor, parts))
    target = _tensor([case.after(node) for node in range(size)]).expand(batch, -1, -1)
    draft = None
    if case.draft:
        draft = _tensor([case.drafted(node) for node in range(size - 1)]).expand(batch, -1, -1)
    result = verify_sampled(tree, target, coins[:, :-1], coins[:, -1], rule=rule, draft_probs=draft)
    outcomes: Counter[tuple[Text, int]] = Counter()
    for point, accepted, bonus in zip(grid, result.accepted_tokens.tolist(), result.bonus_token.tolist(), strict=True):
        outcomes[tuple(t for t in accepted if t >= 0), bonus] += math.prod(volume for _, volume in point)
    return _positive(outcomes)


def _tensor(rows: Sequence[Sequence[Fraction]]) -> torch.Tensor:
    return torch.tensor([[float(p) for p in row] for row in rows], dtype=torch.float64)


def _borders(rule: AcceptanceRule, case: Case, node: int) -> set[Fraction]:
    """Where the coin of a node changes anything."""
    if rule.name == "multi_round":
        if node == 0:
            return set()
        shares = child_shares(rule, case, case.parents[node])
        place = case.children(case.parents[node]).index(node)
        free = 1 - sum(shares[:place])
        return {shares[place] / free} if free else set()
    if rule.name == "block":
        return {block_terms(case)[1][node + 1]} if case.children(node) else set()
    return set(itertools.accumulate(child_shares(rule, case, node)))


def _bonus_borders(rule: AcceptanceRule, case: Case, node: int) -> set[Fraction]:
    scale = block_terms(case)[0][node] if rule.name == "block" else ONE
    masses = leftover(rule, case, node, scale)
    total = sum(masses)
    return {part / total for part in itertools.accumulate(masses)} if total else set()


def _cells(borders: set[Fraction]) -> list[tuple[Fraction, Fraction]]:
    """(middle, length) of the intervals that borders cut 0 to 1 into."""
    cuts = sorted({Fraction(0), ONE} | {border for border in borders if 0 < border < 1})
    return [((low + high) / 2, high - low) for low, high in itertools.pairwise(cuts)]


def _positive(outcomes: Counter[tuple[Text, int]]) -> Outcomes:
    return {outcome: weight for outcome, weight in outcomes.items() if weight}


def text_law(outcomes: Outcomes, target: Law, length: int) -> dict[Text, Fraction]:
    """The law of the first ``length`` tokens: what a round emitted, gone on with by the target alone."""
    texts: Counter[Text] = Counter()

    def extend(text: Text, weight: Fraction) -> None:
        if len(text) == length:
            texts[text] += weight
            return
        for token, p in enumerate(target[text]):
            if p:
                extend((*text, token), weight * p)

    for (accepted, bonus), weight in outcomes.items():
        extend((*accepted, bonus), weight)
    return dict(texts)


def target_law(target: Law, length: int) -> dict[Text, Fraction]:
    """The law of ``length`` tokens of the target alone."""
    return text_law({((), token): p for token, p in enumerate(target[()]) if p}, target, length)


def mean_accepted(outcomes: Outcomes) -> Fraction:
    return sum(len(text) * weight for (text, _), weight in outcomes.items())


def over_drafts(rule: AcceptanceRule, target: Law, draft: Law, steps: int, law=measured) -> Outcomes:
    """A rule's outcomes with drafts drawn from their law."""
    outcomes: Counter[tuple[Text, int]] = Counter()
    for drafts in itertools.product(range(len(target[()])), repeat=steps):
        if weight := math.prod(draft[drafts[:i]][token] for i, token in enumerate(drafts)):
            for outcome, share in law(rule, chain(drafts, target, draft)).items():
                outcomes[outcome] += weight * share
    return dict(outcomes)
