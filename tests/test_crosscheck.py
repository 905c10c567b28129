"""Verdicts on requests whose truth is known, and what is refused."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_rounds import (
    CHAIN,
    PROMPT_LENGTH,
    TWO_PROMPTS,
    answer_of,
    drafts_of,
    evidence,
    made_rounds,
    made_trace,
    replayed,
    request,
    run,
    untold,
    workload,
)

import eagle3ref as e3
from eagle3ref.crosscheck import compare, match_requests, predict_requests
from eagle3ref.errors import Eagle3RefError
from eagle3ref.replay import count_rounds
from eagle3ref.servers import Reading, Rounded

WIDE = 1.0  # a margin that the few rounds of TWO_PROMPTS are enough for


def test_equal_requests_agree_whatever_the_last_round_did() -> None:
    """Catches a last round that is held against what the record's end left of it."""
    trace, rounds, counts = replayed(*TWO_PROMPTS)
    first = request(0, [3, 3, 0, 2, 1], 14)
    for last in (2, 3):  # this answer's record ends two tokens behind its last root, both of them drafted
        served = evidence(first, request(1, [0, 0, 1, 0, 2, last], 11))
        found = compare(trace, rounds, counts, served, margin=WIDE)
        assert (found.verdict, found.best.kind) == ("agrees", "same requests round by round")
        assert found.best.difference.ends(0.9) == (0, 0)
    for last in (0, 1):  # it would have had to go on
        found = compare(trace, rounds, counts, evidence(first, request(1, [0, 0, 1, 0, 2, last], 11)))
        assert [unequal.sequence_id for unequal in found.best.unequal] == ["1"]


def test_an_unequal_request_leaves_its_last_round_open_on_the_right_side() -> None:
    """Catches bounds that are exchanged: the reference may have accepted more than is recorded, never less."""
    trace, rounds, counts = replayed(*TWO_PROMPTS)
    difference = compare(trace, rounds, counts, evidence(request(1, [0, 0, 1, 0, 1, 0, 0], 11))).best.difference
    assert (difference.below, difference.above) == (pytest.approx(1 / 6), 0)
    assert difference.estimate == pytest.approx(2 / 7 - 5 / 6)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=6, max_size=9), st.data())
def test_bounds_are_what_hidden_tokens_allow(accepted: list[int], data: st.DataObject) -> None:
    """An oracle that knows the whole text: cut anywhere, the server's integers are within the prediction's.

    Catches bounds that are too narrow (a server that is right would differ), and c that is known but left open.
    """
    whole = 1 + sum(c + 1 for c in accepted)
    recorded = data.draw(st.integers(2, whole))
    served = data.draw(st.integers(2, recorded))
    trace = made_trace([recorded])
    (predicted,) = predict_requests(trace, made_rounds([accepted], [recorded]), CHAIN).values()
    cut = predicted.up_to(served)
    roots = list(itertools.accumulate((c + 1 for c in accepted), initial=PROMPT_LENGTH))
    truth = [c for root, c in zip(roots, accepted, strict=False) if root < PROMPT_LENGTH + served - 1]
    assert cut.rounds == len(truth)
    assert cut.accepted_low <= sum(truth) <= cut.accepted_high
    assert cut.unequal(request(0, truth, served, accepted_by_round=tuple(truth))) == ()
    last_root = roots[len(truth) - 1]
    if last_root + truth[-1] < PROMPT_LENGTH + recorded - 1:  # the record shows the rejection
        assert cut.accepted_low == cut.accepted_high
    assert predicted.up_to(recorded + 1) is None


def test_sampled_answers_do_not_go_on_as_recorded() -> None:
    """Catches a server's last round held against draws that it never saw."""
    accepted = [3, 3, 3, 3]
    trace, rounds = made_trace([17]), made_rounds([accepted], [17])
    greedy = predict_requests(trace, rounds, CHAIN, goes_on=True)["0"].up_to(7)
    sampled = predict_requests(trace, rounds, CHAIN, goes_on=False)["0"].up_to(7)
    assert (greedy.accepted_low, greedy.accepted_high) == (6, 6)
    assert (sampled.accepted_low, sampled.accepted_high) == (5, 6)


def test_sampled_drafts_do_not_determine_rounds() -> None:
    """Catches a server that is refused because its drafts were drawn otherwise than the replay's coins fell."""
    rng = np.random.default_rng(12)
    rates = rng.beta(2, 2, 80)
    own, served = drafts_of(rng, rates, 300), drafts_of(rng, rates, 300)
    lengths = [1 + sum(c + 1 for c in row) for row in own]
    rounds = made_rounds(own, lengths)
    sampled = count_rounds(rounds, CHAIN, "unbiased", e3.AcceptanceRule("rejection", "sampled"))
    texts = [request(i, row, length) for i, (row, length) in enumerate(zip(served, lengths, strict=True))]
    found = compare(made_trace(lengths), rounds, sampled, evidence(*texts))
    assert found.matched("same answer") == 80
    assert (found.best.kind, found.best.unequal) == ("same prompts", ())
    assert found.verdict != "differs"


def test_every_field_is_held_against_the_reference() -> None:
    """Catches a field that is read and never compared."""
    trace, rounds, counts = replayed(*TWO_PROMPTS)
    right = request(0, [3, 3, 0, 2, 1], 14, accepted_by_round=(3, 3, 0, 2, 1))
    wrong = {
        "rounds": {"rounds": 6, "proposed_drafts": None},
        "accepted drafts": {"accepted_drafts": 8},
        "histogram": {"histogram": (2, 0, 1, 2)},
        "round 2": {"accepted_by_round": (3, 3, 1, 1, 1)},
    }
    for words, fields in wrong.items():
        found = compare(trace, rounds, counts, evidence(replace(right, **fields)))
        assert words in found.best.unequal[0].what[0]
    only_length = replace(right, rounds=None, accepted_drafts=None, histogram=(), proposed_drafts=None)
    only_length = replace(only_length, accepted_by_round=(), length_kind="completion_per_round")
    for told, verdict in ((5, "agrees"), (9, "differs")):
        given_length = replace(only_length, accept_length=Rounded.exactly(14 / told))
        found = compare(trace, rounds, counts, evidence(given_length), margin=WIDE)
        assert (found.verdict, found.best.server_rounds) == (verdict, told)


def test_matching_says_why_not() -> None:
    """Catches a pair made by place instead of by ids, and an answer that is taken for another."""
    trace = made_trace([14, 12])
    other = list(answer_of(0, 14).tolist())
    other[5] = 7
    requests = [
        request(1, [0], 12),
        request(0, [0], 9),
        request(0, [0], 14, output_ids=tuple(other)),
        request(0, [0], 20),
        request(1, [0], 12, output_ids=None),
        request(0, [0], 14, prompt_ids=(9, 9)),
        request(0, [0], 14, prompt_ids=None, request_id="0"),
        request(0, [0], 14, prompt_ids=None, request_id="r0"),
        request(0, [0], 14, output_ids=(*answer_of(0, 13).tolist(), 7)),
        request(0, [0], 14, output_ids=(7, 7), prompt_ids=None, request_id="0"),
        request(0, [0], 7, prompt_ids=None, request_id="r0"),
        request(0, [0], 14, output_ids=tuple(other), prompt_ids=None, request_id="r0"),
    ]
    found = match_requests(trace, requests)
    assert [match.how for match in found] == [
        *("same answer", "same answer", "same prompt", "same prompt", "same prompt", "unmatched", "same answer"),
        *("same answer", "same prompt", "unmatched", "unmatched", "unmatched"),
    ]
    assert [match.sequence_id for match in found] == ["1", "0", "0", "0", "1", None, "0", "0", "0", None, None, None]
    twin = SimpleNamespace(**vars(next(iter(trace))) | {"id": "twin"})
    assert match_requests([*trace, twin], requests[7:8])[0].how == "unmatched"  # whose of the two?
    assert "differs at token 5: 7, recorded 1005" in found[2].reason
    assert "record ends after 14 tokens" in found[3].reason
    assert all(match.reason for match in found if match.how != "same answer")


def test_other_answers_are_paired_by_prompt() -> None:
    """Catches a comparison that throws away that the prompts are the same: unpaired, these 200 tell nothing."""
    rng = np.random.default_rng(4)
    rates = rng.beta(1, 1, 200)
    own, served = drafts_of(rng, rates, 400), drafts_of(rng, rates, 400)
    lengths = [1 + sum(c + 1 for c in row) for row in own]
    trace, rounds, counts = replayed(own, lengths)
    texts = [request(i, row, 900, output_ids=(1, 2, 3)) for i, row in enumerate(served)]
    found = compare(trace, rounds, counts, evidence(*texts))
    assert (found.verdict, found.best.kind) == ("agrees", "same prompts")
    assert any("200 of 200 greedy answers part from the recorded ones" in remark for remark in found.remarks)
    strangers = [replace(text, prompt_ids=(9, i), request_id=f"x{i}") for i, text in enumerate(texts)]
    found = compare(trace, rounds, counts, evidence(*strangers))
    assert (found.verdict, found.best.kind) == ("cannot tell", "same workload only")


def test_totals_of_exactly_these_requests() -> None:
    """Catches sums that are compared with a sampling error although nothing was drawn, and totals of other traffic."""
    trace, rounds, counts = replayed(*TWO_PROMPTS)
    texts = [untold(i, length) for i, length in enumerate((14, 11))]
    totals = Reading(
        tool="vLLM", format="/metrics", scope="run", rounds=11, accepted_drafts=15, proposed_drafts=33,
        accepted_drafts_at=(7, 5, 3), completion_tokens=25,
    )  # fmt: skip
    found = compare(trace, rounds, counts, evidence(*texts, totals), margin=WIDE)
    assert (found.verdict, found.best.kind) == ("agrees", "same requests in sum")
    wrong = replace(totals, rounds=16, accepted_drafts=10, accepted_drafts_at=(6, 3, 1), proposed_drafts=48)
    assert compare(trace, rounds, counts, evidence(*texts, totals)).verdict == "cannot tell"  # 11 rounds of 60
    found = compare(trace, rounds, counts, evidence(*texts, wrong), margin=WIDE)
    assert (found.verdict, found.best.kind) == ("differs", "same requests in sum")
    more_rounds = replace(
        totals, rounds=14, proposed_drafts=42
    )  # vLLM pads prompts of one token only, and has none here
    assert compare(trace, rounds, counts, evidence(*texts, more_rounds)).verdict == "differs"
    others = compare(trace, rounds, counts, evidence(*texts, replace(wrong, completion_tokens=40)))
    assert others.best.kind == "same workload only"


@pytest.mark.parametrize(
    "reading",
    [
        run("2.50", num_steps=5),
        run("2.50", num_draft_tokens=16),
        run("4.60"),
        Reading(tool="SGLang", format="x", scope="run", rounds=10, accepted_drafts=10, proposed_drafts=50),
        request(0, [3, 3, 0, 2, 1], 14, histogram=(1, 1, 1, 1, 1)),
        Reading(tool="vLLM", format="x", scope="run", rounds=9, accepted_drafts=9, accepted_drafts_at=(4, 3, 1, 1)),
    ],
)
def test_evidence_of_another_tree_is_refused(reading: Reading) -> None:
    """Catches 5/4/16 held against 3/1/4: the lengths have nothing to do with each other."""
    trace, rounds, counts = replayed(*TWO_PROMPTS)
    with pytest.raises(Eagle3RefError, match="3/1/4"):
        compare(trace, rounds, counts, evidence(reading))


def test_nothing_to_compare_is_said() -> None:
    """Catches an empty list of comparisons that looks like agreement."""
    trace, rounds, counts = replayed(*TWO_PROMPTS)
    texts = untold(0, 14)
    with pytest.raises(Eagle3RefError, match="1 statement, and it does not give an acceptance length"):
        compare(trace, rounds, counts, evidence(texts))


def test_answers_too_short_for_a_lookahead_still_count() -> None:
    """Catches a length of 0 / 0 where every round of the matched requests runs past its record."""
    trace, rounds, counts = replayed([*TWO_PROMPTS[0], [1]], [*TWO_PROMPTS[1], 3])
    for short in (request(2, [1], 3), request(2, [1], 3, accepted_drafts=None, histogram=(), proposed_drafts=None)):
        found = compare(trace, rounds, counts, evidence(short))
        assert (found.verdict, found.best.kind) == ("cannot tell", "same requests round by round")
        assert (found.best.unequal, found.best.compared_rounds) == ((), 1)
        json.dumps(found.to_dict(), allow_nan=False)
    other = request(2, [1], 3, output_ids=(5, 6, 7), accepted_drafts=None, histogram=(), proposed_drafts=None)
    assert compare(trace, rounds, counts, evidence(other)).verdict == "cannot tell"


def test_json_holds_what_the_report_does() -> None:
    """Catches infinities that JSON does not have, and a decision that the document leaves out."""
    trace, rounds, counts, given_run = workload(8, 30)
    found = compare(trace, rounds, counts, evidence(run("2.5"), *given_run.readings))
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["verdict"] == found.verdict
    assert document["comparisons"][document["decides"]]["server"]["value"] == found.best.server


def test_greedy_rule_is_the_default_of_the_made_counts() -> None:
    """Catches a helper that makes counts of another rule, which would switch the bounds of last rounds."""
    assert replayed(*TWO_PROMPTS)[2].rule == e3.AcceptanceRule()
