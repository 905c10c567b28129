"""Which formula an accept rate follows: founding numbers, eras, settings, and what numbers alone cannot tell."""

from datetime import date
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ref.engines import SGLANG_LOG_ERAS
from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers import RateInference, Rounded, infer_rate, infer_rates
from eagle3ref.servers.rate.formulas import FORMULAS, OF_PROFILE, RateFormula

PER_NODE, STRICT, PER_LEVEL, STRICT_STEPS, PER_STEP = (formula.name for formula in FORMULAS)
FOUNDING = [("2.50", "0.16"), ("2.38", "0.15"), ("2.55", "0.16")]


def printed(length: str, rate: str) -> tuple[Rounded, Rounded]:
    return Rounded.printed(length), Rounded.printed(rate)


def names(inference: RateInference) -> list[str]:
    return [reading.formula.name for reading in inference.readings]


def strict_rate(inference: RateInference) -> float:
    (reading,) = inference.readings
    assert reading.strict_rate is not None
    return reading.strict_rate.value


def test_founding_numbers_are_length_over_16() -> None:
    """The line that began it all, misread: 0.16 is 2.50 / 16, and 9.4 to 10 % of the drafts were accepted."""
    inference = infer_rates([printed(*pair) for pair in FOUNDING])
    assert (inference.verdict, names(inference)) == ("one", [PER_NODE])
    assert inference.readings[0].num_draft_tokens == (16,)
    assert strict_rate(inference) == pytest.approx((2.4767 - 1) / 15, abs=1e-4)
    assert "num_draft_tokens 16" in inference.sentence
    for length, rate in FOUNDING:
        alone = infer_rate(*printed(length, rate), num_draft_tokens=16)
        assert names(alone) == [PER_NODE]
        assert strict_rate(alone) == pytest.approx((float(length) - 1) / 15)


def test_one_founding_line_is_ambiguous_and_says_so() -> None:
    """A guess in place of an answer: 2.38 beside 0.15 is 16 draft tokens, or 10 with drafts only counted."""
    inference = infer_rate(*printed("2.38", "0.15"))
    assert inference.verdict == "several"
    assert [reading.num_draft_tokens for reading in inference.readings] == [(16,), (10,)]
    assert "ambiguous" in inference.sentence
    assert infer_rate(*printed("2.50", "0.16")).verdict == "one"


def test_tc10() -> None:
    """The same deployment, upgraded, prints 0.55 for 0.66."""
    old = infer_rate(*printed("2.64", "0.66"), num_draft_tokens=4)
    assert names(old) == [PER_NODE]
    assert round(strict_rate(old), 3) == 0.547
    new = infer_rate(*printed("2.64", "0.55"), num_draft_tokens=4)
    assert names(new) == [STRICT]
    assert round(strict_rate(new), 3) == 0.547


def test_dead_draft_prints_two_rates() -> None:
    """A dead draft that seems to accept a quarter."""
    old, new = infer_rate(*printed("1.00", "0.25")), infer_rate(*printed("1.00", "0.00"))
    assert (names(old), old.readings[0].num_draft_tokens, strict_rate(old)) == ([PER_NODE], (4,), 0.0)
    assert (names(new), new.readings[0].num_draft_tokens, strict_rate(new)) == ([STRICT], (), 0.0)


def test_figures_that_fit_nothing() -> None:
    """An invented reading of 74.6 % beside 3.93 (tokenspeed #1305)."""
    inference = infer_rate(*printed("3.93", "74.6%"))
    assert (inference.verdict, inference.readings) == ("none", ())
    assert "no known formula" in inference.sentence


@pytest.mark.parametrize(
    ("when", "expected"), [("2025-10-20", [PER_LEVEL]), ("2026-01-01", [PER_LEVEL]), ("2026-06-01", [PER_LEVEL])]
)
def test_a_tree_tells_levels_from_nodes(when: str, expected: list[str]) -> None:
    """A formula by level taken for one by node: with 3 steps and 16 nodes they are far apart."""
    inference = infer_rate(*printed("2.50", "0.62"), num_draft_tokens=16, num_steps=3, when=date.fromisoformat(when))
    assert names(inference) == expected


def test_a_formula_is_not_meant_before_it_was_written() -> None:
    """A line of 2025-10-20 read with the formula of November."""
    ambiguous = infer_rate(*printed("2.00", "0.12"), num_draft_tokens=16, num_steps=16, when=date(2025, 10, 20))
    assert names(ambiguous) == [PER_LEVEL]
    early = infer_rate(*printed("2.00", "0.50"), num_draft_tokens=4, when=date(2025, 10, 20))
    assert names(early) == [PER_NODE]
    assert any("contradicts the date" in remark for remark in early.remarks)
    assert not early.readings[0].possible_then


@pytest.mark.parametrize(
    ("profile", "expected"), list(zip(SGLANG_LOG_ERAS, (PER_LEVEL, PER_NODE, STRICT), strict=True))
)
def test_the_version_decides(profile, expected: str) -> None:
    """An inference that contradicts the engine's own profile."""
    figures = {PER_LEVEL: "0.50", PER_NODE: "0.50", STRICT: "0.33"}
    inference = infer_rate(*printed("2.00", figures[expected]), num_draft_tokens=4, num_steps=3, engine=profile.name)
    assert names(inference) == [expected]
    others = infer_rate(*printed("2.00", "0.40"), num_draft_tokens=4, num_steps=3, engine=profile.name)
    assert others.verdict == "none"


def test_dates_and_formulas_are_those_of_the_profiles() -> None:
    """Two tables of one history that drift apart."""
    by_name = {formula.name: formula for formula in FORMULAS}
    for profile in SGLANG_LOG_ERAS:
        assert profile.accept_rate is not None
        assert by_name[OF_PROFILE[profile.accept_rate]].since == profile.sources["accept_rate"].date


@pytest.mark.parametrize("settings", [{}, {"num_draft_tokens": 4}, {"num_steps": 3}, {"num_steps": 3, "topk": 1}])
def test_a_strict_rate_is_of_no_sglang_line_before_may_2026(settings: dict[str, int]) -> None:
    """A wrong clock, or a nightly build that is passed for its release, with not a word said."""
    dated = infer_rate(*printed("2.14", "0.38"), when=date(2026, 3, 12), **settings)
    assert STRICT in names(dated) or STRICT_STEPS in names(dated)
    assert not any(reading.possible_then for reading in dated.readings)
    (remark,) = dated.remarks
    assert all(words in remark for words in ("2026-04-23", "2026-03-12", "clock"))
    for fine in (
        infer_rate(*printed("2.14", "0.38"), when=date(2026, 5, 12), **settings),
        infer_rate(*printed("2.14", "0.38"), when=date(2026, 3, 12), strict=True, **settings),
    ):
        assert fine.remarks == ()


def test_the_date_decides_an_ambiguity_and_says_so() -> None:
    """Two readings listed where only one had been written, or one dropped in silence."""
    dated = infer_rate(*printed("2.38", "0.15"), when=date(2026, 3, 12))
    assert (dated.verdict, names(dated)) == ("one", [PER_NODE])
    assert dated.remarks == (f"Excluded by the date 2026-03-12: {STRICT}, in SGLang since 2026-04-23.",)
    assert infer_rate(*printed("2.38", "0.15"), when=date(2026, 6, 12)).verdict == "several"


def test_a_rate_above_1_is_of_the_formula_that_was_in_no_release() -> None:
    """A rate above 1 that nothing explains."""
    assert names(infer_rate(*printed("3.50", "1.17"), num_draft_tokens=4, num_steps=3)) == [PER_STEP]


def test_unknown_engine_is_refused() -> None:
    """A typing error that is passed over."""
    with pytest.raises(Eagle3RefError, match="sglan"):
        infer_rate(*printed("2.00", "0.50"), engine="sglan==0.5.9")


def test_many_lines_outvote_a_few_odd_ones() -> None:
    """One window at a change of settings that makes a week of log unreadable."""
    pairs = [printed(f"{1 + 0.03 * i:.2f}", f"{0.01 * i:.2f}") for i in range(10, 90)] * 2
    inference = infer_rates([*pairs, printed("3.93", "0.12")])
    assert (names(inference), inference.misfits) == ([STRICT], 1)
    assert inference.readings[0].num_draft_tokens == (4,)
    assert infer_rates([*pairs[:5], printed("3.93", "0.12")]).verdict == "none"


@pytest.mark.parametrize("formula", FORMULAS[:4], ids=lambda formula: formula.name)
@given(num_steps=st.integers(1, 8), extra=st.integers(0, 24), rounds=st.integers(20, 4000), share=st.fractions(0, 1))
def test_the_true_formula_is_always_among_those_found(
    formula: RateFormula, num_steps: int, extra: int, rounds: int, share: Fraction
) -> None:
    """A rounding that excludes the truth, for any integers that a server may have counted."""
    accepted = int(rounds * num_steps * share)
    nodes = num_steps + 1 + extra
    length = Fraction(accepted + rounds, rounds)
    divisor = formula.divisor(nodes, num_steps)
    assert divisor is not None
    rate = (length - (0 if formula.counts_bonus else 1)) / divisor
    pair = printed(f"{float(length):.2f}", f"{float(rate):.2f}")
    family = {True: (PER_NODE, PER_LEVEL), False: (STRICT, STRICT_STEPS)}[formula.counts_bonus]
    told = infer_rate(*pair, num_draft_tokens=nodes, num_steps=num_steps)
    assert formula.name in names(told) or divisor in {d for one in told.readings for d in one.divisors}
    for reading in told.readings:
        if reading.formula.name == formula.name and reading.strict_rate is not None:
            assert reading.strict_rate.holds(accepted / (rounds * (nodes - 1)))
    assert set(names(infer_rate(*pair))) & set(family) or (told.readings and divisor > 128)


def test_two_servers_in_one_log_are_told_apart() -> None:
    """Lines of which each has its formula, and all together none, called an unknown formula."""
    one = [printed(f"{2.4 + i / 100:.2f}", f"{(1.4 + i / 100) / 3:.2f}") for i in range(20)]
    other = [printed(f"{1.9 + i / 100:.2f}", f"{(1.9 + i / 100) / 16:.2f}") for i in range(20)]
    both = infer_rates([*one, *other])
    assert both.verdict == "none"
    (remark,) = both.remarks
    assert f"20 are {STRICT} with 3 below the line" in remark
    assert f"{PER_NODE} with 16 below the line" in remark
    assert infer_rates([*one, *(printed("3.90", "0.05") for _ in range(3))]).remarks == ()


def test_a_formula_that_all_lines_fit_beats_one_that_nearly_all_do() -> None:
    """An ambiguity that the one line too many has already decided."""
    pairs = [printed("2.38", "0.15")] * 9
    assert infer_rates(pairs).verdict == "several"
    inference = infer_rates([*pairs, printed("2.50", "0.16")])
    assert (inference.verdict, names(inference), inference.misfits) == ("one", [PER_NODE], 0)
