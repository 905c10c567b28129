"""Figures of unknown requests: each in its own terms, with the error of a sample, and no verdict from nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_rounds import (
    CHAIN,
    TWO_PROMPTS,
    drafts_of,
    evidence,
    line,
    log,
    replayed,
    request,
    run,
    workload,
)

from eagle3ref.acceptance import ExpectedAcceptance
from eagle3ref.crosscheck import LengthForm, compare, length_terms, predict_requests
from eagle3ref.crosscheck.more_data import more_data
from eagle3ref.engines import engine_profile
from eagle3ref.servers import Reading, Rounded
from eagle3ref.statistics import Criterion, Difference, independent_difference, variance_of


def test_forms_of_one_replay() -> None:
    """The three lengths by hand: 23 tokens after two prefills, in 11 rounds."""
    trace, rounds, counts = replayed(*TWO_PROMPTS)
    predicted = list(predict_requests(trace, rounds, CHAIN).values())
    assert length_terms(predicted).value == counts.acceptance_length
    assert length_terms(predicted, LengthForm(cut=True)).value == (13 + 10) / 11
    assert length_terms(predicted, LengthForm("completion_per_round")).value == (14 + 11) / 11
    assert length_terms(predicted, LengthForm("completion_per_round")).per_prompt.tolist() == [14 / 5, 11 / 6]


@pytest.mark.parametrize("average", ["rounds", "requests"])
def test_each_figure_is_compared_in_its_own_terms(average: str) -> None:
    """One server, five figures of the same requests (vLLM #42508: pooled and mean of requests contradict each other).

    Catches micro held against macro, the prefill's token taken for acceptance, and a cut that is not applied.
    """
    rng = np.random.default_rng(1)
    rates = rng.beta(1, 1, 400)
    drafts = drafts_of(rng, rates, 40)
    lengths = [40] * 400  # easy prompts need 10 rounds for it, hard ones 39
    trace, rounds, counts = replayed(drafts, lengths)
    predicted = list(predict_requests(trace, rounds, CHAIN).values())
    n, completion = np.array([p.rounds for p in predicted]), 40.0
    true_figure = completion / n if average == "requests" else np.array([400 * completion / n.sum()])
    reading = run(
        f"{true_figure.mean():.2f}", average=average, length_kind="completion_per_round", completion_tokens=4_000_000
    )
    (found,) = compare(trace, rounds, counts, evidence(reading)).comparisons
    assert abs(found.difference.estimate) < 0.006  # rounding alone
    moved = {correction.name: correction.tokens for correction in found.corrections}
    assert found.reference == pytest.approx(found.plain_reference + sum(moved.values()))
    assert moved["prefill token"] == pytest.approx(400 / n.sum())
    assert moved["last round cut"] < 0
    assert ("mean over requests" in moved) == (average == "requests")
    if average == "requests":
        assert moved["mean over requests"] > 0.3  # without it this server would have been accused


def test_two_numbers_of_one_table() -> None:
    """tokenspeed PR 751 prints 2.73 tokens a verify pooled and 2.76 as the mean of requests: both are right.

    Catches a macro figure that is held against the pooled reference.
    """
    rng = np.random.default_rng(9)
    drafts = drafts_of(rng, rng.beta(20, 8, 300), 150)
    lengths = [150] * 300
    trace, rounds, counts = replayed(drafts, lengths)
    predicted = list(predict_requests(trace, rounds, CHAIN).values())
    terms = length_terms(predicted)
    micro, macro = terms.value, float(np.nanmean(terms.per_prompt))
    assert macro - micro > 0.02
    readings = [
        run(f"{value:.2f}", average=average, rounds=10**6, source=average)
        for average, value in (("rounds", micro), ("requests", macro))
    ]
    for comparison in compare(trace, rounds, counts, evidence(*readings)).comparisons:
        assert abs(comparison.difference.estimate) < 0.006


def test_old_sglang_logs_are_cut() -> None:
    """Catches one form for all eras: before 0.5.11 verification cut at the end of a text."""
    rng = np.random.default_rng(2)
    drafts = drafts_of(rng, rng.beta(4, 1, 300), 12)
    trace, rounds, counts = replayed(drafts, [12] * 300)
    old, new = (
        compare(trace, rounds, counts, log(line(2.50, rate, running=50)), profile=engine_profile(name)).best
        for name, rate in (("sglang==0.5.9", 0.62), ("sglang==0.5.23", 0.50))
    )
    assert new.reference == counts.acceptance_length
    (cut,) = [c for c in old.corrections if c.name == "last round cut"]
    assert cut.tokens == pytest.approx(old.reference - new.reference)
    assert cut.tokens < -0.1
    assert "eagle_info.py" in cut.source


def test_bonus_and_rates_by_position_give_the_length() -> None:
    """Catches a missing bonus, and evidence without a length that is thrown away."""
    trace, rounds, counts = replayed(*TWO_PROMPTS)
    bare = {"tool": "vLLM", "format": "x", "scope": "run", "rounds": None}
    readings = [
        Reading(**bare, accept_length=Rounded.printed("1.10"), length_kind="without_bonus", source="a"),
        Reading(**bare, accept_rate_at=tuple(map(Rounded.printed, ("0.60", "0.30", "0.20"))), source="b"),
        Reading(**bare, accept_rate=Rounded.printed("36.7%"), source="c"),
    ]
    found = {c.of[-1]: c for c in compare(trace, rounds, counts, evidence(*readings)).comparisons}
    assert [round(found[name].server, 3) for name in "abc"] == [2.1, 2.1, 2.101]
    assert found["b"].server_low == pytest.approx(2.085)


def test_a_figure_of_unknown_rounds_tells_nothing() -> None:
    """Catches a verdict from a number whose error nobody knows."""
    trace, rounds, counts = replayed(*TWO_PROMPTS)
    found = compare(trace, rounds, counts, evidence(run("3.90")))
    assert found.verdict == "cannot tell"
    assert found.best.more.server_rounds is None
    assert "unknown" in found.sentence
    assert (found.best.difference.below, found.best.difference.above) == (pytest.approx(0.005), pytest.approx(0.005))
    assert compare(trace, rounds, counts, evidence(run("3.90", rounds=4000))).best.server_rounds == 4000


def test_workloads_alone_err_as_seldom_as_they_say() -> None:
    """Catches a server's sampling error left out, or taken as that of independent rounds."""
    said = [compare(*workload(seed, 40)).verdict for seed in range(120)]
    assert said.count("differs") <= 0.05 * 120 + 2 * np.sqrt(120 * 0.05 * 0.95)
    assert said.count("agrees") == 0
    differs = [compare(*workload(seed, 40, shift=-0.9)).verdict for seed in range(20)]
    assert differs.count("differs") >= 19


def test_three_requests_err_no_more_and_six_tell_a_dead_draft() -> None:
    """Catches degrees of freedom counted from the server's few requests: then even 1.00 is no news."""
    rng, said = np.random.default_rng(10), []
    for _ in range(120):
        own, served = (drafts_of(rng, rng.beta(1.2, 1.2, n), 13) for n in (40, 3))
        lengths = [1 + sum(c + 1 for c in row) for row in own]
        reading = Reading(tool="vLLM", format="x", scope="run", rounds=39, accepted_drafts=sum(map(sum, served)))
        said.append(compare(*replayed(own, lengths), evidence(reading)).verdict)
    assert said.count("differs") <= 0.05 * 120 + 2 * np.sqrt(120 * 0.05 * 0.95)
    assert said.count("agrees") == 0
    dead = replace(reading, rounds=156, accepted_drafts=0)
    assert compare(*replayed(own, lengths), evidence(dead)).verdict == "differs"


def test_the_fewest_rounds_that_fit_are_used() -> None:
    """Catches an estimate of rounds that is taken at its best: one line of 40 steps may stand on half as many."""
    trace, rounds, counts, _ = workload(15, 60)
    found = compare(trace, rounds, counts, log(line(2.20, 0.40, running=8))).best
    assert found.server_rounds == 40 * 8 / 2


def test_expected_acceptance_steadies_the_reference_only() -> None:
    """Catches a server's figure that is given the small error of an expectation: it was counted, coins and all."""
    trace, rounds, counts, given_run = workload(13, 60)
    expected = ExpectedAcceptance(
        tree=CHAIN,
        prompt_ids=counts.prompt_ids,
        rounds=counts.rounds,
        reached_at=np.column_stack([counts.rounds, counts.accepted_at[:, :-1]]),
        observed_at=counts.accepted_at,
        accepted_at=np.outer(counts.rounds, [0.1, 0.02, 0.0]),  # the same of every prompt: no error at all
    )
    (reading,) = given_run.readings
    as_many = evidence(replace(reading, other={"completed": 60}))  # requests of 30 rounds, as the trace's
    counted = compare(trace, rounds, counts, as_many).best
    steadied = compare(trace, rounds, replace(counts, expected=expected), as_many).best
    assert steadied.reference == pytest.approx(1.12)
    assert steadied.difference.variance == pytest.approx(counted.difference.variance / 2, rel=0.1)


def test_lines_that_scatter_count_by_their_scatter() -> None:
    """Catches a server that is good and bad by turns, and is taken to be as steady as the trace's prompts."""
    trace, rounds, counts, _ = workload(14, 300)

    def window(accepted: int, at: int) -> Reading:
        return Reading(
            tool="vLLM", format="log", scope="window", rounds=4000, accepted_drafts=accepted, line=at, raw=str(at)
        )

    steady = compare(trace, rounds, counts, evidence(*(window(4500, i) for i in range(20)))).best
    by_turns = compare(trace, rounds, counts, evidence(*(window(9000 * (i % 2), i) for i in range(20)))).best
    assert by_turns.server == steady.server == 1 + 4500 / 4000
    own = by_turns.difference.variance - variance_of(counts.ratio("acceptance_length"))[0]
    assert own == pytest.approx(np.var([1, 1 + 9000 / 4000] * 10, ddof=1) / 20)
    assert any("scatter more" in assumption for assumption in by_turns.assumptions)


def test_more_rounds_are_as_many_as_needed() -> None:
    """Catches a promise that is not kept: with the named rounds, the same difference is told."""
    trace, rounds, counts, given_run = workload(3, 800, shift=-0.10)
    (reading,) = given_run.readings
    few = replace(reading, rounds=reading.rounds // 40, accepted_drafts=round(reading.accepted_drafts / 40))
    before = compare(trace, rounds, counts, evidence(few)).best
    assert (before.verdict, before.more.server_rounds is not None) == ("cannot tell", True)
    times = 1.1 * before.more.server_rounds / few.rounds
    enough = replace(few, rounds=round(few.rounds * times), accepted_drafts=round(few.accepted_drafts * times))
    half = replace(few, rounds=round(few.rounds * times / 2), accepted_drafts=round(few.accepted_drafts * times / 2))
    after = [compare(trace, rounds, counts, evidence(one)).verdict for one in (half, enough)]
    assert after == ["cannot tell", "differs"]


def test_a_lifetime_has_its_warm_up_in_it() -> None:
    """Catches a lifetime figure that counts as the run's own: its interval opens by what 7 rounds may have done."""
    trace, rounds, counts, given_run = workload(5, 400)
    (reading,) = given_run.readings
    alone = compare(trace, rounds, counts, given_run).best
    for total, opened in ((reading.rounds, True), (140, True)):
        life = replace(reading, scope="lifetime", rounds=total, accepted_drafts=round(total * 1.5), tool="SGLang")
        found = compare(trace, rounds, counts, evidence(life)).best
        (warm_up,) = [c for c in found.corrections if c.name == "warm-up"]
        assert warm_up.below == pytest.approx(7 / total * (4 - counts.acceptance_length))
        assert warm_up.above == pytest.approx(7 / total * (counts.acceptance_length - 1))
        assert (found.difference.above >= warm_up.above) == opened
    assert not any(correction.name == "warm-up" for correction in alone.corrections)


def test_a_log_whose_rates_are_of_another_tree_tells_nothing() -> None:
    """Catches a verdict on 3/1/4 from lines whose own accept rate says 16 draft tokens."""
    trace, rounds, counts, _ = workload(7, 400)
    lines = log(*(line(2.50, 0.16, 10 * i) for i in range(200)))
    found = compare(trace, rounds, counts, lines)
    assert found.verdict == "cannot tell"
    assert "num_draft_tokens 16" in found.best.more.sentence


def test_tree_of_a_trace_of_one_prompt_tells_nothing() -> None:
    """Catches a standard error of 0 from a single prompt."""
    trace, rounds, counts = replayed([[3, 0, 1, 2, 3, 3]], [18])
    assert compare(trace, rounds, counts, evidence(run("1.00", rounds=100_000))).verdict == "cannot tell"


def test_the_named_rounds_are_the_fewest_that_tell() -> None:
    """Catches a trace whose own error is forgotten: more rounds of the server do not lessen it."""
    server, reference, rounds = 0.0040, 0.0010, 1000

    def difference(times: float) -> Difference:
        return independent_difference(2.38, (server / times, 200), 2.50, (reference, 200))

    more = more_data(difference(1), Criterion(), rounds, (server, reference))
    times = more.server_rounds / rounds
    assert difference(times * 1.02).verdict() == "differs"
    assert difference(times * 0.95).verdict() == "cannot tell"
    small_trace = independent_difference(2.38, (server, 200), 2.50, (0.02, 200))
    assert more_data(small_trace, Criterion(), rounds, (server, 0.02)).server_rounds is None


def test_a_prompt_that_is_asked_again_is_no_further_draw() -> None:
    """Catches ten requests of each of four prompts that are taken for forty prompts, and their narrow interval."""
    rng = np.random.default_rng(8)
    drafts = drafts_of(rng, rng.beta(2, 2, 20), 30)
    lengths = [1 + sum(c + 1 for c in row) for row in drafts]
    replay = replayed(drafts[:16], lengths[:16])
    once = [request(i, drafts[i], lengths[i]) for i in range(16, 20)]
    ten_times = [replace(one, request_id=f"{one.request_id} {i}") for one in once for i in range(10)]
    few, many = (compare(*replay, evidence(*requests)).best for requests in (once, ten_times))
    assert (few.kind, many.of) == (
        "same workload only",
        "40 requests whose prompts are not in the trace, 4 different ones",
    )
    assert few.difference.ends(0.9) == pytest.approx(many.difference.ends(0.9))


def test_two_servers_in_one_log_are_told_apart() -> None:
    """Catches a log of two servers that is called one of another tree, and the tree that both lack asked for."""
    trace, rounds, counts, _ = workload(7, 40)
    one = [line(2.4 + i / 100, (1.4 + i / 100) / 3, 2 * i) for i in range(20)]
    other = [line(1.9 + i / 100, (1.9 + i / 100) / 16, 2 * i + 1) for i in range(20)]
    found = compare(trace, rounds, counts, log(*one, *other))
    assert found.verdict == "cannot tell"
    assert any("Lines of two servers" in remark for remark in found.remarks)


def test_engines_in_one_heap_are_named() -> None:
    """Catches a verdict on one server's lines that is made of another's, and lines dropped with not a word."""
    trace, rounds, counts, _ = workload(7, 40)
    mixed = [
        *(line(2.30, 0.43, 10 * i) for i in range(4)),
        "INFO 06-24 10:00:00 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.20, Accepted throughput: "
        "12.00 tokens/s, Drafted throughput: 30.00 tokens/s, Accepted: 120 tokens, Drafted: 300 tokens, "
        "Per-position acceptance rate: 0.600, 0.400, 0.200, Avg Draft acceptance rate: 40.0%",
    ]
    assert any(
        "SGLang and vLLM, several servers" in said for said in compare(trace, rounds, counts, log(*mixed)).remarks
    )
    alone = compare(trace, rounds, counts, log(*mixed[:4])).remarks
    assert not any("several servers" in said for said in alone)
