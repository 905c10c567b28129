"""Times, rankings, adaptive steps and advice, each against a second way or by hand."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

import eagle3ref as e3
from eagle3ref.report.tune import tune_report
from eagle3ref.speedup import RoundTimes, speedup
from eagle3ref.tune import (
    AdaptiveRule,
    StepTimes,
    Surface,
    TimeTable,
    adaptive,
    advise,
    rank,
)
from eagle3ref.tune.adaptive import walk_adaptively
from eagle3ref.tune.tune import settings_within

CHAINS = tuple(settings_within(e3.TreeConfig(7, 1, 8)))
TIMES = StepTimes(10.0, TimeTable.parse("8:13.5"), TimeTable.parse("1"), overhead_ms=1.0)


def chain_surface(runs: list[NDArray[np.uint8]]) -> Surface:
    """The chains of 1 to 7 steps on answers whose right drafts in a row are these, each walked a round at a time."""
    histogram = np.zeros((7, len(runs), 8), np.int64)
    censored = np.zeros((7, len(runs)), np.int64)
    for k in range(7):
        for p, run in enumerate(runs):
            root = 0
            while root < len(run):
                kept = min(int(run[root]), k + 1)
                if root + k + 1 <= len(run):
                    histogram[k, p, kept] += 1
                else:
                    censored[k, p] += 1
                root += kept + 1
    names = tuple(f"{'easy' if run.sum() > 3 * len(run) else 'hard'}/{p}" for p, run in enumerate(runs))
    nothing, length = np.zeros(len(runs), np.int64), np.array([len(run) + 1 for run in runs])
    rule = e3.AcceptanceRule()
    return Surface(CHAINS, names, histogram, censored, nothing, length, "exact", rule, tuple(runs))


def answers(count: int, rates: tuple[float, ...], length: int = 120, seed: int = 0) -> list[NDArray[np.uint8]]:
    """Right drafts in a row from each root, when each token is foreseen with the prompt's rate."""
    generator = np.random.default_rng(seed)
    found = []
    for p in range(count):
        foreseen = generator.random(length) < rates[p % len(rates)]
        run = np.zeros(length + 1, np.uint8)
        for root in range(length - 1, -1, -1):
            run[root] = min(7, run[root + 1] + 1) if foreseen[root] else 0
        found.append(run[:length])
    return found


def test_times_are_interpolated_and_never_extrapolated() -> None:
    """Would catch a step in place of a line, a table that goes on beyond its ends, or the wrong term for a size."""
    times = StepTimes(
        10.0, TimeTable.parse("16:16,8:14"), TimeTable.parse("1:1.0,4:1.6"), TimeTable.parse("2:1,16:2.4"), 0.5, 2
    )
    tree = e3.TreeConfig(4, 2, 12)
    assert times.round_times(tree) == RoundTimes(10.0, 15.0, 1.2, 2.0, 0.5, 2)
    assert times.round_ms(tree) == pytest.approx(15 + 3 * 1.2 + 2.0 + 0.5)
    assert times.round_ms(tree) == pytest.approx(speedup(1.0, times.round_times(tree), tree).round_ms.value)
    assert times.round_times(e3.TreeConfig(1, 1, 2)).verify_step_ms == pytest.approx(10 + 4 / 7)
    assert times.baseline_tokens_per_second == 200
    for beyond in (e3.TreeConfig(4, 2, 14), e3.TreeConfig(4, 5, 12)):
        at_most = StepTimes(10.0, TimeTable.parse("13:14"), TimeTable.parse("1:1.0,4:1.6"))
        with pytest.raises(e3.Eagle3RefError, match="not extrapolated"):
            at_most.round_ms(beyond)


@pytest.mark.parametrize("text", ["", "8:", ":3", "8:12,8:13", "0:3", "-1:3", "8:x", "8:-1", "8:nan", "3,4:5", "1,2"])
def test_what_is_no_table_of_times_is_refused(text: str) -> None:
    """Would catch a traceback, or a size that is silently taken twice."""
    with pytest.raises(e3.Eagle3RefError, match="reading times"):
        TimeTable.parse(text)


def test_one_verify_time_for_all_sizes_is_refused() -> None:
    """Would catch draft tokens that cost nothing, with which the largest tree always wins."""
    with pytest.raises(e3.Eagle3RefError, match="one verify time"):
        StepTimes(10.0, TimeTable.parse("13"), TimeTable.parse("1"))


@pytest.mark.parametrize(
    ("step", "verify", "found"),
    [(10.0, "8:0", "verify_ms = 0"), (10.0, "1:0,8:9", "verify_ms = 0"), (math.nan, "8:9", "target_step_ms = nan")],
)
def test_a_time_of_nothing_is_refused_by_its_name(step: float, verify: str, found: str) -> None:
    """Would catch a verify step that takes no time at one end of the table and pulls down all that lies between."""
    with pytest.raises(e3.Eagle3RefError, match=found):
        StepTimes(step, TimeTable.parse(verify), TimeTable.parse("1"))
    with pytest.raises(e3.Eagle3RefError, match="found 8:nan,16:3; "):
        TimeTable.parse("16:3,8:nan")


def test_speed_is_what_speedup_says_and_lengths_are_those_of_the_counts() -> None:
    """Would catch another formula for tokens per second than that of ``speedup``."""
    surface = chain_surface(answers(12, (0.5, 0.8)))
    by_speed, by_length = rank(surface, TIMES), rank(surface)
    for tree in CHAINS:
        counts = surface.counts(tree)
        expected = speedup(counts, TIMES.round_times(tree)).tokens_per_second.value
        assert by_speed.value(tree) == pytest.approx(expected)
        assert by_length.value(tree) == pytest.approx(counts.acceptance_length)
    assert by_speed.best == max(CHAINS, key=by_speed.value)
    assert by_speed.behind(by_speed.best)[0] == 0


def test_the_recommendation_is_the_cheapest_of_the_set_that_is_near() -> None:
    """Would catch a recommendation that is certainly slower, or one that only a lack of prompts makes possible."""
    surface = chain_surface(answers(60, (0.6, 0.7)))
    ranking = rank(surface, TIMES)
    chosen = ranking.recommended
    near = [t for t in CHAINS if ranking.may_be_best(t) and ranking.behind(t)[0] <= 0.02 * ranking.value(ranking.best)]
    assert chosen == min(near, key=lambda tree: tree.num_draft_tokens)
    few = rank(chain_surface(answers(3, (0.9, 0.2))), TIMES)
    assert few.may_be_best(CHAINS[0])
    assert few.behind(few.recommended)[0] <= 0.02 * few.value(few.best) < few.behind(CHAINS[0])[0]


def test_refused_settings_are_not_ranked() -> None:
    """Would catch a recommendation that the server refuses at start."""
    surface = chain_surface(answers(12, (0.5, 0.8)))
    best = rank(surface).best
    ranking = rank(surface, refused={best})
    assert best not in ranking
    assert ranking.best != best
    with pytest.raises(e3.Eagle3RefError, match="7 of them with a complete round, which the engine refuses"):
        rank(surface, refused=set(CHAINS))


def test_settings_without_a_complete_round_are_left_out() -> None:
    """Would catch a 0 / 0 that is ranked: answers of 5 tokens end before the lookahead of deeper chains does."""
    surface = chain_surface(answers(6, (0.5,), length=4))
    ranking = rank(surface, TIMES)
    assert ranking.settings == CHAINS[:4]
    assert np.isnan(surface.acceptance_lengths[4:]).all()
    advice = advise(surface, TIMES)
    assert advice.mark(CHAINS[6]) == "no complete round"
    shown = io.StringIO()
    Console(file=shown, width=100).print(tune_report(advice, ""))
    assert re.search(r"^ +7 +8 +- +- *$", shown.getvalue(), re.MULTILINE)
    assert "-     no complete round" in shown.getvalue()
    assert "nan" not in shown.getvalue()
    json.dumps(surface.to_dict(), allow_nan=False)


def test_the_adaptive_rule_moves_as_sglang_does() -> None:
    """Would catch a threshold that is off by a half, hysteresis on the wrong side, or a rise in the step of a fall.

    Falls where the average is at most (the next shallower) - 0.75, rises where it is above (its own) - 0.5.
    """
    rule = AdaptiveRule()
    by_steps = {steps: at for at, steps in enumerate(rule.candidate_steps)}

    def after(steps: int, average: float) -> int:
        return rule.candidate_steps[rule.next(by_steps[steps], average)]

    assert [after(3, average) for average in (0.25, 0.2501, 2.5, 2.5001, 4.5, 4.5001)] == [1, 3, 3, 5, 5, 7]
    assert [after(7, average) for average in (4.25, 4.2501, 2.25, 2.2501, 0.25)] == [5, 7, 3, 5, 1]
    assert [after(1, average) for average in (0.0, 0.5, 0.51, 9.0)] == [1, 1, 3, 7]
    assert AdaptiveRule(candidate_steps=(1, 2, 4), start=3).first() == 1


def test_adaptive_rounds_by_hand() -> None:
    """Would catch a decision that knows its own round, a wrong warm-up or interval, or an average that starts anew."""
    always = [np.minimum(7, np.arange(160, 0, -1)).astype(np.uint8)]
    tokens, rounds = walk_adaptively(always, AdaptiveRule())
    # The average is 3 - 0.8**n in round n, and above 2.5 when first asked, after 15 rounds. With 5 steps it is 5 minus
    # 2.04 * 0.8**n: 4.33 when asked after 5 of these rounds, 4.78 after 10, and then 7 steps follow.
    assert rounds.tolist() == [[0, 15, 10, 5]]
    assert tokens.tolist() == [15 * 4 + 10 * 6 + 5 * 8]
    never = [np.zeros(40, np.uint8), np.zeros(40, np.uint8)]
    tokens, rounds = walk_adaptively(never, AdaptiveRule())
    # 2 * 0.8**n is at most 0.25 after 10 rounds, but the first decision comes after 15.
    assert rounds.tolist() == [[25, 15, 0, 0], [40, 0, 0, 0]]
    assert tokens.tolist() == [40, 40]


def test_adaptive_is_reported_against_choices_on_other_prompts() -> None:
    """Would catch an adaptive chain that is praised on prompts that are all alike, or never where they differ."""
    alike = adaptive(chain_surface(answers(40, (0.6,))), TIMES)
    assert alike is not None
    assert not alike.pays
    assert alike.over_all == alike.over_chain
    slow_pass = StepTimes(10.0, TimeTable.parse("8:20"), TimeTable.parse("4"))
    differ = adaptive(chain_surface(answers(40, (0.97,) * 20 + (0.05,) * 20, length=400)), slow_pass)
    assert differ is not None
    assert differ.pays
    assert sum(differ.shares) == pytest.approx(1)


def test_adaptive_is_left_out_where_it_cannot_be_replayed() -> None:
    """Would catch a number for batches, whose average mixes requests, or for depths that were not ranked."""
    surface = chain_surface(answers(6, (0.6,)))
    batched = StepTimes(10.0, TimeTable.parse("8:13.5"), TimeTable.parse("1"), batch_size=8)
    assert adaptive(surface, batched) is None
    assert adaptive(surface, TIMES, AdaptiveRule(candidate_steps=(3, 9))) is None
    assert adaptive(chain_surface(answers(6, (0.6,), length=2)), TIMES) is None


def test_advice_says_what_follows() -> None:
    """Would catch a verdict that is missing in words, or a recommendation of drafting where the target alone wins."""
    surface = chain_surface(answers(40, (0.6, 0.7)))
    fast = advise(surface, TIMES)
    assert fast.worth is not None
    assert fast.worth.verdict == "gains"
    assert "adaptive" not in fast.sentences[0]
    assert any(sentence.startswith("Adaptive num_steps") for sentence in fast.sentences)
    slow = advise(surface, StepTimes(10.0, TimeTable.parse("8:60"), TimeTable.parse("9")))
    assert slow.worth is not None
    assert slow.worth.verdict == "loses"
    assert "The target alone is faster: 100.0 tokens/s. Serve without a draft." in slow.sentences
    assert "overhead" in " ".join(slow.sentences)
    # The overhead that leaves the best setting just as fast as the target alone.
    free = StepTimes(10.0, TimeTable.parse("8:13.5"), TimeTable.parse("1"))
    lengths = zip(CHAINS, surface.acceptance_lengths, strict=True)
    even = replace(free, overhead_ms=max(10.0 * length - free.round_ms(tree) for tree, length in lengths))
    assert advise(surface, even).worth.verdict == "cannot tell"
    assert any("cannot be told whether the recommended" in sentence for sentence in advise(surface, even).sentences)
    without = advise(surface)
    assert without.worth is None
    assert "--verify-ms" in " ".join(without.sentences)
    one = advise(chain_surface(answers(1, (0.5,))), TIMES)
    assert "on one prompt 6 others cannot be told from it" in one.sentences[0]
    assert "inf" not in " ".join(one.sentences)
    for count, expected in ((9, "Fewer than 10 prompts are too few"), (12, "That leaves more than 5 % open")):
        few = advise(chain_surface(answers(count, (0.3, 0.9))), TIMES)
        assert [sentence.startswith(expected) for sentence in few.sentences].count(True) == 1
