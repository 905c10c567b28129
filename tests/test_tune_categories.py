"""A setting for each category: where names come from, choices that are held out, and what they gain."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from test_tune_choices import TIMES, answers, chain_surface

import eagle3ref as e3
from eagle3ref.report.tune import tune_report
from eagle3ref.statistics import RatioOfSums, paired_difference
from eagle3ref.tune import advise, by_category, categories_of, rank, read_categories
from eagle3ref.tune.held_out import chosen_elsewhere, gain


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 25), st.integers(1, 3))
def test_a_choice_never_sees_the_fold_that_it_is_judged_on(seed: int, prompts: int, num_groups: int) -> None:
    """Would catch a leak: what a prompt's own fold shows decides nothing of its choice."""
    generator = np.random.default_rng(seed)
    above, below = generator.random((prompts, 4)), generator.integers(1, 5, (prompts, 4)).astype(float)
    groups = [str(name) for name in generator.integers(0, num_groups, prompts)]
    chosen = chosen_elsewhere(above, below, groups)
    seen = dict.fromkeys(groups, 0)
    fold = []
    for group in groups:
        fold.append(seen[group] % 10)
        seen[group] += 1
    for p in range(prompts):
        others = [q for q in range(prompts) if groups[q] == groups[p] and fold[q] != fold[p]]
        others = others or [q for q in range(prompts) if q != p]
        if others:
            assert chosen[p] == (above[others].sum(0) / below[others].sum(0)).argmax()


def test_a_gain_is_the_paired_difference() -> None:
    """Would catch another variance than the one that is documented: twice the plain one and a ninth, of ten folds."""
    generator = np.random.default_rng(4)
    tokens, rounds = generator.integers(50, 90, (9, 2)), generator.integers(20, 40, (9, 2))
    found = gain((tokens[:, 0], rounds[:, 0]), (tokens[:, 1], rounds[:, 1]), 10)
    pair = [RatioOfSums("", "", "", tokens[:, k], rounds[:, k]) for k in range(2)]
    expected = paired_difference(*pair)
    assert (found.estimate, found.variance) == (
        pytest.approx(expected.estimate),
        pytest.approx(expected.variance * (2 + 1 / 9)),
    )
    assert found.degrees_of_freedom == expected.degrees_of_freedom


def test_categories_pay_where_they_differ() -> None:
    """Would catch a real gain that is missed, or categories that change places."""
    differ = chain_surface(answers(60, (0.95, 0.2)))
    found = by_category(differ, categories_of(differ.prompt_ids, "/"), TIMES)
    assert found.pays
    assert [choice.name for choice in found.choices] == ["easy", "hard"]
    easy, hard = (choice.ranking.best.num_steps for choice in found.choices)
    assert easy > hard


def test_a_category_of_one_prompt_neither_loses_nor_ends_the_run() -> None:
    """Would catch the first of all settings taken where a category has no other prompt, or work lost to a short one."""
    alone = chain_surface([*answers(20, (0.8,)), np.zeros(0, np.uint8)])
    found = by_category(alone, [*map(str, range(20)), "none"], TIMES)
    low, high = found.gain.ends(0.95)
    assert low <= 0 <= high
    assert abs(found.gain.estimate) < 0.02 * rank(alone, TIMES).comparison.values.max()
    assert [choice.ranking is None for choice in found.choices] == [False] * 20 + [True]
    shown = io.StringIO()
    advice = advise(alone, TIMES, categories=[*map(str, range(20)), "none"])
    Console(file=shown, width=100).print(tune_report(advice, ""))
    assert re.search(r"^none +1 +- +- +- +- *$", shown.getvalue(), re.MULTILINE)


def test_a_single_category_is_refused() -> None:
    """Would catch a gain of exactly 0 over itself, for a separator that no id has."""
    surface = chain_surface(answers(4, (0.5,)))
    with pytest.raises(e3.Eagle3RefError, match="one category, 'other'"):
        by_category(surface, categories_of(surface.prompt_ids, "@"), TIMES)
    with pytest.raises(e3.Eagle3RefError, match="empty separator"):
        categories_of(surface.prompt_ids, "")


@pytest.mark.slow
def test_categories_that_are_alike_do_not_pay() -> None:
    """Would catch a gain that is only the luck of choosing twice: with the plain variance 1 in 10 of these pays."""
    pays = 0
    for seed in range(1000, 1100):
        surface = chain_surface(answers(30, (0.6,), seed=seed))
        pays += by_category(surface, [str(p % 3) for p in range(30)], TIMES).pays
    assert pays <= 5  # 2.5 of 100 are claimed; of 1,500 it was 1.6 %


def test_categories_come_from_a_file_or_from_ids(tmp_path: Path) -> None:
    """Would catch MT-bench's own file refused, a number that is not the id, or a prompt that is silently left out."""
    file = tmp_path / "questions.jsonl"
    file.write_text('{"question_id": 81, "category": "writing", "turns": []}\n\n{"id": "b", "category": "math"}\n')
    assert read_categories(file, ["b", "81", "b"]) == ["math", "writing", "math"]
    assert categories_of(["math/1", "math/2/x", "81"], "/") == ["math", "math", "other"]
    with pytest.raises(e3.Eagle3RefError, match="none for 1 of 2 prompts, such as 'c'"):
        read_categories(file, ["b", "c"])
    file.write_text('{"id": 1, "category": "x"}\n{"id": "1", "category": "x"}\n{"id": "1", "category": "y"}')
    with pytest.raises(e3.Eagle3RefError, match="line 3.*'y' for '1', which is of 'x'"):
        read_categories(file, ["1"])
    for line in ("x", "[]", '{"id": "a"}', '{"id": "a", "category": 3}', '{"category": "a"}', "[" * 100_000):
        file.write_text(line)
        with pytest.raises(e3.Eagle3RefError, match="line 1"):
            read_categories(file, ["a"])
    for bad in (tmp_path, tmp_path / "gone"):
        with pytest.raises(e3.Eagle3RefError, match="reading categories"):
            read_categories(bad, ["a"])
