"""Speed-up: the formula against its source, the inverse against the forward way, and which term is to blame."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ref import AcceptanceCounts, Eagle3RefError, TreeConfig
from eagle3ref.servers import Rounded
from eagle3ref.speedup import (
    RoundTimes,
    Span,
    chain_depths,
    measured_round,
    rate_for_length,
    read_counts,
    speedup,
    target_step_from,
)
from eagle3ref.speedup.rate import expected_length

CHAIN = TreeConfig(3, 1, 4)
positive_ms = st.floats(0.01, 100)


def printed(text: str) -> Rounded:
    return Rounded.printed(text)


def chain_counts(histogram: list[list[int]]) -> AcceptanceCounts:
    """Counts of a chain, one row of rounds by accepted drafts for each prompt."""
    rounds = np.array(histogram)
    steps, prompts = rounds.shape[1] - 1, len(rounds)
    zeros = np.zeros(prompts, np.int64)
    return AcceptanceCounts(
        tree=TreeConfig(steps, 1, steps + 1),
        prompt_ids=tuple(f"p{i}" for i in range(prompts)),
        histogram=rounds,
        proposed_at=np.repeat(rounds.sum(axis=1, keepdims=True), steps, axis=1),
        censored_rounds=zeros,
        off_argmax_tokens=zeros,
        recorded_tokens=zeros,
        kind="exact",
    )


COUNTS = chain_counts([[1, 2, 3, 4], [5, 3, 1, 1], [12, 11, 5, 2]])


@given(rate=st.floats(0.01, 0.99), steps=st.integers(1, 8), cost=st.floats(0.001, 1))
def test_theorem_3_8_of_leviathan(rate: float, steps: int, cost: float) -> None:
    """Would catch a pass too many or an extend that is forgotten: the published closed form is the oracle."""
    improvement = (1 - rate ** (steps + 1)) / ((1 - rate) * (steps * cost + 1))
    found = speedup(
        expected_length(rate, steps), RoundTimes(7.0, draft_pass_ms=7.0 * cost), TreeConfig(steps, 1, steps + 1)
    )
    assert found.speedup.value == pytest.approx(improvement, rel=1e-9)


def test_tokens_by_the_clock() -> None:
    """Would catch a throughput that is no throughput: rounds are played one by one, for three requests, on a clock."""
    times = RoundTimes(10.0, 12.0, 1.5, 0.7, 2.0, batch_size=3)
    found = speedup(COUNTS, times)
    clock = tokens = 0.0
    for kept, rounds in enumerate(COUNTS.histogram.sum(axis=0)):
        for _ in range(rounds):
            clock += 1.5 + 1.5  # two passes after the candidates of depth 1
            clock += 12.0 + 0.7 + 2.0
            tokens += 3 * (kept + 1)
    assert found.tokens_per_second.value == pytest.approx(1000 * tokens / clock)
    assert found.baseline_tokens_per_second.value == pytest.approx(300)
    assert found.speedup.value == pytest.approx(1000 * tokens / clock / 300)


@pytest.mark.parametrize(
    ("length", "measured", "round_ms", "steps", "speed"),
    [
        ("2.38", "61.26", 38.851, 3.4966, 0.6807),
        ("2.50", "59.69", 41.883, 3.7695, 0.6632),
        ("2.55", "59.69", 42.721, 3.8449, 0.6632),
    ],
)
def test_the_founding_numbers(length: str, measured: str, round_ms: float, steps: float, speed: float) -> None:
    """Would catch an inverse that does not explain 61.26 tok/s at length 2.38 against 90 without, graphs off."""
    found = measured_round(
        printed(length), printed(measured), baseline_tokens_per_second=printed("90"), cuda_graph=False
    )
    assert found.break_even is not None
    assert found.speedup is not None
    assert found.round_ms.value == pytest.approx(round_ms, abs=1e-3)
    assert found.break_even.value == pytest.approx(steps, abs=1e-4)
    assert found.speedup.value == pytest.approx(speed, abs=1e-4)
    assert found.verdict == "loses"
    assert f"as long as {steps:.2f} target steps" in found.sentences[0]
    assert "CUDA graphs are off" in found.sentences[1]


def test_graphs_are_not_suspected_where_they_ran() -> None:
    """Would catch a standing accusation: graphs on, unknown, or off while speculation pays."""
    for graph in (True, None):
        found = measured_round(2.38, 61.26, baseline_tokens_per_second=90, cuda_graph=graph)
        assert not any("graph" in sentence for sentence in found.sentences)
    assert len(measured_round(2.38, 130, baseline_tokens_per_second=90, cuda_graph=False).sentences) == 1


@given(
    length=st.floats(1, 4), step=positive_ms, verify=positive_ms, passes=positive_ms, overhead=positive_ms,
    batch=st.integers(1, 64),
)  # fmt: skip
def test_inverse_undoes_forward(
    length: float, step: float, verify: float, passes: float, overhead: float, batch: int
) -> None:
    """Would catch a batch size or a factor of 1000 that is in one direction only."""
    found = speedup(length, RoundTimes(step, verify, passes, None, overhead, batch), CHAIN)
    back = measured_round(
        length,
        found.tokens_per_second,
        baseline_tokens_per_second=found.baseline_tokens_per_second,
        batch_size=batch,
        num_steps=3,
    )
    assert back.break_even is not None
    assert back.round_ms.value == pytest.approx(found.round_ms.value)
    assert back.break_even.value == pytest.approx(found.break_even.value)
    assert back.verdict in (found.verdict, "cannot tell")


def test_bounds_are_reached_by_what_the_printed_numbers_may_have_been() -> None:
    """Would catch bounds too narrow or too wide; a step that is in the round and under it must not count twice."""
    length, baseline = Span(2.5, 2.4, 2.6), Span(90, 85, 95)
    found = speedup(length, RoundTimes(target_step_from(baseline), draft_pass_ms=2.0), CHAIN)
    tried = [
        speedup(exact, RoundTimes(1000 / rate, draft_pass_ms=2.0), CHAIN)
        for exact, rate in itertools.product(np.linspace(2.4, 2.6, 5), np.linspace(85, 95, 5))
    ]
    for name in ("tokens_per_second", "break_even", "round_ms"):
        values = [getattr(one, name).value for one in tried]
        span = getattr(found, name)
        assert (span.low, span.high) == pytest.approx((min(values), max(values))), name
    measured = measured_round(length, Span(60, 59, 61), baseline_tokens_per_second=baseline)
    assert measured.break_even == Span(2.5 * 90 / 60, pytest.approx(2.4 * 85 / 61), pytest.approx(2.6 * 95 / 59))
    assert measured.speedup == Span(pytest.approx(60 / 90), pytest.approx(59 / 95), pytest.approx(61 / 85))


def test_interval_of_the_length_goes_through_to_the_verdict() -> None:
    """Would catch a verdict from a point estimate: 2.10 +- 1.18 of three prompts cannot tell at a break-even of 1.7."""
    interval = COUNTS.interval("acceptance_length")
    found = speedup(COUNTS, RoundTimes(10.0, overhead_ms=7.0))
    assert found.verdict == "cannot tell"
    assert found.tokens_per_second.high == pytest.approx(1000 * interval.high / 17.0)
    assert found.tokens_per_second.low == pytest.approx(1000 / 17.0)  # no length is below 1
    many = chain_counts(COUNTS.histogram.tolist() * 40)
    assert speedup(many, RoundTimes(10.0, overhead_ms=7.0)).verdict == "gains"
    assert speedup(many, RoundTimes(10.0, overhead_ms=14.0)).verdict == "loses"
    single = speedup(chain_counts([[1, 2, 3, 4]]), RoundTimes(10.0, overhead_ms=7.0))
    assert (single.acceptance_length.low, single.acceptance_length.high) == (1.0, 4.0)


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        (RoundTimes(10.0, 30.0, 1.0, 1.0, 1.0), "verify"),
        (RoundTimes(10.0, 11.0, 3.0, 1.0, 1.0), "draft passes"),
        (RoundTimes(10.0, 11.0, 1.0, 4.0, 1.0), "draft extend"),
        (RoundTimes(10.0, 11.0, 1.0, 1.0, 9.0), "overhead"),
        (RoundTimes(10.0, 10.0, 0.0, 0.0, 0.0), None),
    ],
)
def test_the_problem_is_what_speculation_adds(times: RoundTimes, problem: str | None) -> None:
    """Would catch the verify step blamed for the target step in it, which the baseline pays too."""
    found = speedup(2.5, times, CHAIN)
    assert (None if found.problem is None else found.problem.name) == problem
    assert sum(term.ms for term in found.terms) == pytest.approx(found.round_ms.value)
    for term in found.terms:
        shorter = {
            "verify": replace(times, verify_step_ms=10.0),
            "draft passes": replace(times, draft_pass_ms=0.0),
            "draft extend": replace(times, draft_extend_ms=0.0),
            "overhead": replace(times, overhead_ms=0.0),
        }[term.name]
        assert found.without(term) == pytest.approx(speedup(2.5, shorter, CHAIN).speedup.value)


def test_what_the_times_do_not_explain_is_a_term() -> None:
    """Would catch a measured round whose unexplained part is lost, or a speed-up that ignores the clock."""
    times = RoundTimes(target_step_from(90), 12.0, 1.0, cuda_graph=False)
    found = speedup(2.38, times, CHAIN, tokens_per_second=61.26)
    assert found.problem is not None
    assert found.problem.name == "not accounted for"
    assert found.problem.ms == pytest.approx(2380 / 61.26 - 12.0 - 2.0 - 1.0)
    assert found.speedup.value == pytest.approx(61.26 / 90)
    assert "CUDA graphs are off" in found.sentences[1]


def test_times_that_cannot_be_of_the_round_are_told() -> None:
    """Would catch a negative remainder, or a speed-up above the acceptance length taken at face value."""
    found = speedup(2.38, RoundTimes(10.0, 30.0, 5.0), CHAIN, tokens_per_second=200)
    assert found.parts_exceed_round
    assert all(term.source != "what remains" and found.without(term) is None for term in found.terms)
    assert any("more than the measured round" in sentence for sentence in found.sentences)
    (sentence,) = measured_round(2.0, 300, baseline_tokens_per_second=90).sentences
    assert "none is shorter than one" in sentence


def test_what_was_not_given_is_said() -> None:
    """Would catch a best case that looks like a forecast."""
    (hope, verify) = speedup(2.5, RoundTimes(10.0)).sentences[-2:]
    assert "draft passes, draft extend, overhead" in hope
    assert "the most to hope for" in hope
    assert "verify step" in verify
    assert len(speedup(2.5, RoundTimes(10.0, 11.0, 1.0, 1.0, 0.5), CHAIN).sentences) == 2


@given(rate=st.floats(0, 1), steps=st.integers(1, 10))
def test_needed_rate_inverts_the_length(rate: float, steps: int) -> None:
    """Would catch a needed rate that does not give the needed length."""
    found = rate_for_length(expected_length(rate, steps), steps)
    assert found is not None
    assert expected_length(found, steps) == pytest.approx(expected_length(rate, steps), abs=1e-9)


def test_no_acceptance_pays_for_a_round_longer_than_its_tokens() -> None:
    """Would catch advice to train a better draft where even a perfect one loses."""
    found = speedup(3.9, RoundTimes(10.0, 30.0, 5.0), CHAIN)
    assert found.needed_rate is None
    assert any("No acceptance pays" in sentence for sentence in found.sentences)
    assert rate_for_length(0.5, 3) is None


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda: speedup(0.9, RoundTimes(10.0)), "length of 0.9"),
        (lambda: speedup(4.2, RoundTimes(10.0), CHAIN), "length of 4.2"),
        (lambda: speedup(math.nan, RoundTimes(10.0)), "length of nan"),
        (lambda: speedup(2.0, RoundTimes(0.0)), "target_step_ms = 0"),
        (lambda: speedup(2.0, RoundTimes(math.inf)), "target_step_ms = inf"),
        (lambda: RoundTimes(1.0, overhead_ms=-1.0), "overhead_ms = -1"),
        (lambda: RoundTimes(1.0, batch_size=0), "batch_size 0"),
        (lambda: speedup(2.0, RoundTimes(1.0, draft_pass_ms=1.0)), "no tree"),
        (lambda: speedup(COUNTS, RoundTimes(1.0), TreeConfig(2, 1, 3)), "counts of 3/1/4 and tree 2/1/3"),
        (lambda: speedup(2.0, RoundTimes(1.0), tokens_per_second=0), "throughput in tokens/s = 0"),
        (lambda: measured_round(2.0, 50, baseline_tokens_per_second=-1), "baseline in tokens/s = -1"),
        (lambda: measured_round(2.0, 50, batch_size=0), "batch_size 0"),
        (lambda: measured_round(5.0, 50, num_steps=3), "length of 5"),
        (lambda: target_step_from(0), "baseline in tokens/s = 0"),
        (lambda: chain_depths(COUNTS, RoundTimes(1.0)), "no time for a draft pass"),
    ],
)
def test_what_cannot_be_is_refused(call, found: str) -> None:
    """Would catch a length without its bonus token, a division by zero, or passes that nobody counted."""
    with pytest.raises(Eagle3RefError) as caught:
        call()
    assert found in caught.value.found


def test_a_printed_length_of_one_may_be_one() -> None:
    """Would catch a dead draft, printed as 1.00, refused because 0.995 is below 1."""
    found = measured_round(printed("1.00"), printed("30.0"), num_steps=3)
    assert (found.acceptance_length.low, found.acceptance_length.value) == (1.0, 1.0)
    assert found.verdict is None
    assert found.sentences == ("One round takes 33.3 ms.",)


def test_depths_by_hand() -> None:
    """Would catch levels dropped the wrong way; the counts are those of docs/acceptance.md."""
    found = chain_depths(COUNTS, RoundTimes(10.0, 16.0, 1.0, overhead_ms=2.0))
    assert [depth.expected.acceptance_length.value for depth in found] == pytest.approx([1.64, 1.96, 2.10])
    # verify 12, 14, 16; extend 1; overhead 2; 0, 1, 2 passes
    assert [depth.expected.round_ms.value for depth in found] == pytest.approx([15, 18, 21])
    speeds = [1640 / 15, 1960 / 18, 2100 / 21]
    assert [depth.expected.tokens_per_second.value for depth in found] == pytest.approx(speeds)
    assert [depth.behind.estimate for depth in found] == pytest.approx([speeds[0] - speed for speed in speeds])


def test_depths_are_compared_on_the_same_prompts() -> None:
    """Would catch depths told apart by intervals that overlap because prompts differ: every prompt says the same."""
    alike = chain_counts([[2, 2, 2, 2 + extra] for extra in range(12)])
    first, *_, last = chain_depths(alike, RoundTimes(10.0, None, 0.1))
    assert last.may_be_fastest
    assert first.behind.low > 0
    assert not first.may_be_fastest
    tie = chain_depths(chain_counts([[5, 0], [0, 5]]), RoundTimes(10.0, None, 0.1))
    assert tie[0].may_be_fastest


def test_depths_of_a_tree_are_refused() -> None:
    """Would catch a tree cut like a chain: with less depth its nodes would have been others."""
    counts = replace(COUNTS, tree=TreeConfig(3, 2, 4))
    with pytest.raises(Eagle3RefError, match="another tree"):
        chain_depths(counts, RoundTimes(10.0, None, 1.0))


def test_counts_are_read_from_what_replay_printed(tmp_path: Path) -> None:
    """Would catch a document that its own tool cannot read back, and bad files that end in a traceback."""
    path = tmp_path / "counts.json"
    for document in ({"document_version": 1, "counts": COUNTS.to_dict()}, COUNTS.to_dict()):
        path.write_text(json.dumps(document))
        assert read_counts(path) == COUNTS
    for text in ("{", "[]", "{}", '{"counts": 3}', '{"counts": {"tree": 1}}', "\x00", '{"histogram": 1}'):
        path.write_text(text)
        with pytest.raises(Eagle3RefError):
            read_counts(path)
    with pytest.raises(Eagle3RefError, match="No such file"):
        read_counts(tmp_path / "gone.json")


def test_documents_are_json() -> None:
    """Would catch an infinite bound, which JSON does not have."""
    unknown = chain_counts([[1, 2, 3, 4]])
    documents = [
        speedup(unknown, RoundTimes(10.0, 12.0, 1.0)).to_dict(),
        measured_round(unknown.interval("acceptance_length"), 60.0).to_dict(),
        *(depth.to_dict() for depth in chain_depths(unknown, RoundTimes(10.0, 12.0, 1.0))),
    ]
    for document in documents:
        json.dumps(document, allow_nan=False)
    assert documents[1]["break_even"] is None
