"""Replay under every rule, against the process itself with all its texts, drafts and decisions enumerated."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from enumerated_server import draw_and_look, of_the_process, reject_one_by_one, target_probs, verify_as_block
from recorded_world import World, entropy_scaled_head, hashed_states, small_draft

import eagle3ref as e3
from eagle3ref.config import AcceptanceRule
from eagle3ref.draft import Eagle3Draft

VOCAB, PROMPT, NEW_TOKENS = 3, (1, 0), 5
REPEATS = 16  # of every text, each with coins of its own
LENGTH = len(PROMPT) + NEW_TOKENS
TEXTS = [(*PROMPT, *answer) for answer in itertools.product(range(VOCAB), repeat=NEW_TOKENS)]
CHAIN, TREE = e3.TreeConfig(3, 1, 4), e3.TreeConfig(3, 2, 5)
WORLD = World(entropy_scaled_head(VOCAB, 1.5), temperature=0.9)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Eagle3Draft:
    """Its vocabulary lacks token 1."""
    return small_draft(tmp_path_factory.mktemp("draft"), VOCAB, (0, 2))


def probability(world: World, text: tuple[int, ...]) -> float:
    """Of the answer in a text, drawn from the target token by token."""
    return math.prod(target_probs(world, text[:end])[text[end]] for end in range(len(PROMPT), len(text)))


@pytest.fixture(scope="module")
def every_text():
    """A trace of all the texts that there can be, and the probability of each."""
    return WORLD.trace(TEXTS, len(PROMPT), NEW_TOKENS), np.array([probability(WORLD, text) for text in TEXTS])


def in_expectation(weight: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """[REPEATS, ...]: sums by sequence, over the texts as likely as they are."""
    return np.tensordot(sums.reshape(REPEATS, len(TEXTS), *sums.shape[1:]), weight, axes=([1], [0]))


def at_least(histogram: np.ndarray) -> np.ndarray:
    """[S], rounds with c >= d."""
    return histogram[::-1].cumsum()[::-1][1:]


@pytest.mark.parametrize(("tree", "rule"), [(CHAIN, "target_only"), (TREE, "multi_round")])
def test_top_drafts_are_exact_in_expectation(draft, every_text, tree, rule):
    """A walk or an expectation that is biased: a node too many, a wrong row, children that are not there."""
    truth = of_the_process(partial(draw_and_look, draft, WORLD, tree), WORLD, PROMPT, LENGTH, tree.num_steps)
    trace, weight = every_text
    counts = e3.replay(trace, draft, tree, rule=AcceptanceRule(rule), target=WORLD.target)
    assert weight.sum() == pytest.approx(1)
    assert weight @ counts.histogram == pytest.approx(truth, rel=1e-9)
    assert weight @ counts.expected.accepted_at == pytest.approx(at_least(truth), rel=1e-9)
    assert weight @ counts.expected.rounds == pytest.approx(truth.sum(), rel=1e-9)
    assert (counts.kind, counts.rule.name) == ("unbiased", rule)


@pytest.mark.parametrize("play", [reject_one_by_one, verify_as_block])
def test_the_oracle_emits_the_targets_text(draft, play):
    """An oracle that is not lossless, hence not the published algorithm: it would prove nothing below."""
    emitted = dict.fromkeys(itertools.product(range(VOCAB), repeat=4), 0.0)
    for p, _, longer in play(draft, WORLD, CHAIN, (*PROMPT, 2)):
        for rest in itertools.product(range(VOCAB), repeat=4 - len(longer) + 3):
            tail = math.prod(target_probs(WORLD, longer + rest[:i])[token] for i, token in enumerate(rest))
            emitted[(longer + rest)[3:]] += p * tail
    for answer, found in emitted.items():
        text = (*PROMPT, 2, *answer)
        wanted = math.prod(target_probs(WORLD, text[:end])[text[end]] for end in range(3, 7))
        assert found == pytest.approx(wanted, abs=1e-12)


def test_sampled_drafts_are_unbiased(draft, every_text):
    """A token kept with a wrong probability, rejection for block verification, or a draft run on other tokens."""
    once, weight = every_text
    many = [replace(sequence, id=f"{sequence.id}-{i}") for i in range(REPEATS) for sequence in once.sequences]
    trace = replace(once, sequences=many)
    runs, truths = [], []
    for rule, play in (("rejection", reject_one_by_one), ("block", verify_as_block)):
        counts = e3.replay(trace, draft, CHAIN, rule=AcceptanceRule(rule, "sampled"), target=WORLD.target)
        histogram = in_expectation(weight, counts.histogram)
        runs.append(np.hstack([histogram, in_expectation(weight, counts.expected.accepted_at)]))
        truth = of_the_process(partial(play, draft, WORLD, CHAIN), WORLD, PROMPT, LENGTH, CHAIN.num_steps)
        truths.append(np.hstack([truth, at_least(truth)]))
    # Both toss the same coins, so their difference is seen far better than either.
    for found, truth in ((runs[0], truths[0]), (runs[1], truths[1]), (runs[1] - runs[0], truths[1] - truths[0])):
        error = found.std(axis=0, ddof=1) / math.sqrt(REPEATS)
        assert (abs(found.mean(axis=0) - truth) < 4 * error + 1e-9).all()
        assert error[-1] < 0.25 * truth[-1], "too noisy to see anything"


def draws(world: World, count: int, num_new: int, end: int | None = None) -> list[tuple[int, ...]]:
    """Texts drawn from the target token by token; each stops after its ``end`` token."""
    generator = np.random.default_rng(5)
    texts = []
    for _ in range(count):
        text: tuple[int, ...] = PROMPT
        while len(text) < len(PROMPT) + num_new and (text == PROMPT or text[-1] != end):
            text += (int(generator.choice(VOCAB, p=target_probs(world, text))),)
        texts.append(text)
    return texts


@pytest.mark.parametrize("tree", [CHAIN, TREE], ids=str)
def test_answers_that_end_by_themselves_leave_it_unbiased(draft, tree):
    """Rounds left out because the answer ended in them: a choice by their outcome, which expectations do not share."""
    end = 0
    stopped = {text[: text.index(end, 2) + 1] if end in text[2:] else text for text in TEXTS}
    texts = sorted(stopped)
    trace = WORLD.trace(texts, len(PROMPT), NEW_TOKENS)
    weight = np.array([probability(WORLD, text) for text in texts])
    assert weight.sum() == pytest.approx(1)
    counts = e3.replay(trace, draft, tree, target=WORLD.target)
    expected = counts.expected
    assert weight @ expected.accepted_at == pytest.approx(weight @ expected.observed_at, rel=1e-9)
    assert weight @ expected.rounds > 1.05 * (weight @ counts.rounds)  # or the case would not be in here at all


def test_greedy_expectation_is_the_count(draft):
    """An expectation with another temperature than the record's."""
    world = replace(WORLD, temperature=0.0)
    text = PROMPT
    while len(text) < len(PROMPT) + 38:
        text += (int((world.head @ world.states(text)[1]).argmax()),)
    counts = e3.replay(world.trace([text], len(PROMPT), 38), draft, TREE, target=world.target)
    assert counts.kind == "exact"
    assert counts.rule == AcceptanceRule("greedy")
    assert counts.expected.accepted_at.tolist() == counts.accepted_at.tolist() == counts.expected.observed_at.tolist()
    assert counts.accepted_drafts.sum() > 0


def test_truncation_is_the_records(draft):
    """Expected acceptance of the whole distribution where top-k and top-p were used."""
    world = replace(WORLD, temperature=1.3, top_k=2, top_p=0.8)
    texts = [text for text in TEXTS if probability(world, text) > 0]
    weight = np.array([probability(world, text) for text in texts])
    counts = e3.replay(world.trace(texts, 2, NEW_TOKENS), draft, TREE, target=world.target)
    assert len(texts) < len(TEXTS)
    assert weight @ counts.expected.accepted_at == pytest.approx(weight @ counts.accepted_at, rel=1e-9)


def test_surplus_tells_text_that_was_not_drawn_from_these_probabilities(tmp_path):
    """A record of another temperature than its header says, whose expected acceptance would be believed."""

    def certain(tokens: tuple[int, ...]):
        return hashed_states(tokens)[0], WORLD.head[0]  # token 0 is best, and a low temperature makes it certain

    draft = small_draft(tmp_path, VOCAB, (0,))
    world = replace(WORLD, states=certain)
    texts = draws(world, 40, 20)
    for temperature, fits in ((0.9, True), (0.3, False)):
        trace = replace(world, temperature=temperature).trace(texts, 2, 20)
        interval = e3.replay(trace, draft, CHAIN, target=world.target).expected.surplus.interval(0.999)
        assert (interval.low < 0 < interval.high) is fits


def test_coins_belong_to_the_sequence(draft):
    """Coins that change with the batch, or are the same for every sequence or seed."""
    texts = draws(WORLD, 8, 20)
    rule = AcceptanceRule("rejection", "sampled")
    walk = partial(e3.replay, WORLD.trace(texts, 2, 20), draft, CHAIN, rule=rule, target=WORLD.target)
    assert walk(batch_tokens=1).histogram.tolist() == walk().histogram.tolist()
    assert walk(seed=1).histogram.tolist() != walk().histogram.tolist()
    same = e3.replay(WORLD.trace(texts[:1] * 8, 2, 20), draft, CHAIN, rule=rule, target=WORLD.target)
    assert len({tuple(row) for row in same.histogram.tolist()}) > 1


def test_vocabulary_in_pieces_changes_nothing(draft, monkeypatch):
    """Probabilities attached to another round when they do not all fit at once."""
    trace = WORLD.trace(draws(WORLD, 8, 20), 2, 20)
    for rule in (AcceptanceRule("target_only"), AcceptanceRule("block", "sampled")):
        whole = e3.replay(trace, draft, CHAIN, rule=rule, target=WORLD.target)
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules["eagle3ref.replay.probabilities"], "_LOGITS_AT_ONCE", 2 * VOCAB)
            pieces = e3.replay(trace, draft, CHAIN, rule=rule, target=WORLD.target)
        assert pieces.histogram.tolist() == whole.histogram.tolist()
        assert pieces.expected.accepted_at == pytest.approx(whole.expected.accepted_at)
