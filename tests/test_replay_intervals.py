"""Intervals of counted and of expected acceptance on many small runs, against the mean over all of them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from recorded_world import World, entropy_scaled_head, hashed_states, small_draft

import eagle3ref as e3
from eagle3ref.config import AcceptanceRule
from eagle3ref.statistics import ratio_interval

VOCAB, RUNS, PROMPTS, NEW_TOKENS = 6, 80, 10, 32
CHAIN, TREE = e3.TreeConfig(3, 1, 4), e3.TreeConfig(3, 2, 6)


@cache
def of_topic(topic: int, last: tuple[int, ...]):
    aux, final = hashed_states((topic, *last))
    return aux, final * (0.3 + 0.5 * topic)  # some topics are easier to predict than others


def topical(tokens: tuple[int, ...]):
    """States that know the first token, which is the topic, and the last two."""
    return of_topic(tokens[0], tokens[-2:])


WORLD = World(entropy_scaled_head(VOCAB, 1.5), temperature=0.8, states=topical)


def draws(count: int) -> list[tuple[int, ...]]:
    """Answers to two-token prompts, drawn from the target; all side by side."""
    generator = np.random.default_rng(11)
    text = generator.integers(VOCAB, size=(count, 2))
    logits = np.array(
        [
            [[(WORLD.head @ of_topic(t, (a, b))[1]).numpy() for b in range(VOCAB)] for a in range(VOCAB)]
            for t in range(VOCAB)
        ]
    )
    probs = np.exp(logits / WORLD.temperature)
    limits = probs.cumsum(-1) / probs.sum(-1, keepdims=True)
    for _ in range(NEW_TOKENS):
        limit = limits[text[:, 0], text[:, -2], text[:, -1]]
        drawn = (generator.random((count, 1)) >= limit).sum(1, keepdims=True)
        text = np.hstack([text, drawn])
    return [tuple(row) for row in text.tolist()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory):
    """A draft whose first choice is often the target's, and RUNS * PROMPTS recorded answers."""
    draft = small_draft(tmp_path_factory.mktemp("draft"), VOCAB, range(VOCAB))
    return draft, WORLD.trace(draws(RUNS * PROMPTS), 2, NEW_TOKENS)


@pytest.mark.parametrize(
    ("tree", "rule"),
    [(CHAIN, AcceptanceRule("target_only")), (TREE, AcceptanceRule("target_only")),
     (CHAIN, AcceptanceRule("rejection", "sampled")), (CHAIN, AcceptanceRule("block", "sampled"))],
    ids=["chain", "tree", "rejection", "block"],
)  # fmt: skip
def test_both_intervals_cover_and_the_expected_one_is_smaller(runs, tree, rule):
    """An interval around another mean than the one of the process, or one that is narrow because it is wrong."""
    draft, trace = runs
    counts = e3.replay(trace, draft, tree, rule=rule, target=WORLD.target)
    estimates = [counts.ratio("acceptance_length"), counts.expected.ratio("acceptance_length")]
    truth = np.mean([estimate.value for estimate in estimates])
    assert estimates[0].value == pytest.approx(estimates[1].value, abs=0.02)
    widths, covered = [], []
    for estimate in estimates:
        terms = zip(estimate.numerators.reshape(RUNS, -1), estimate.denominators.reshape(RUNS, -1), strict=True)
        intervals = [ratio_interval(above, below) for above, below in terms]
        widths.append(np.mean([interval.high - interval.low for interval in intervals]))
        covered.append(np.mean([interval.low < truth < interval.high for interval in intervals]))

    assert all(0.89 < share < 0.99 for share in covered)
    assert widths[1] < 0.9 * widths[0]
