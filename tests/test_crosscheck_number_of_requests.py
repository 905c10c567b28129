"""A figure of unknown requests: how many there were decides what chance does, and is said where nobody knows it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from made_rounds import drafts_of, evidence, line, log, replayed, untold, workload

from eagle3ref.crosscheck import compare
from eagle3ref.servers import Evidence, Reading, read


def test_a_verdict_says_how_long_requests_of_unknown_number_may_be() -> None:
    """Catches a server accused because its requests are longer than the trace's: 29 to 43 % of right ones were.

    The longest requests with which it still differs are named, and are the longest: told that number, it does; told
    longer ones, it cannot tell. Below twice the trace's length nothing is said, but what would be.
    """
    trace, rounds, counts, given_run = workload(3, 200, shift=-0.45)
    (reading,) = given_run.readings

    def checked(number: int | None):
        other = {} if number is None else {"completed": number}
        return compare(trace, rounds, counts, evidence(replace(reading, other=other)))

    unknown = checked(None)
    longest = unknown.best.most_rounds_a_request
    assert (unknown.verdict, 60 < longest < reading.rounds) == ("differs", True)
    said = f"differs if its requests have at most {longest:,} rounds each (how many there were is not known): -0."
    assert unknown.sentence.startswith(said)
    long, longer = checked(int(reading.rounds / longest) + 1), checked(int(reading.rounds / (1.1 * longest)))
    assert (long.verdict, long.best.most_rounds_a_request) == ("differs", None)
    assert (longer.verdict, checked(200).verdict) == ("cannot tell", "differs")
    assert "if its requests" not in long.sentence
    document = json.loads(json.dumps(unknown.to_dict(), allow_nan=False))
    assert document["comparisons"][0]["most_rounds_a_request"] == longest
    trace, rounds, counts, given_run = workload(3, 200, shift=-0.045)
    (reading,) = given_run.readings
    unknown = checked(None)
    assert (unknown.verdict, checked(200).verdict) == ("cannot tell", "differs")
    assert "It differs if its requests have 29 rounds each" in unknown.best.more.sentence


def test_right_servers_of_longer_requests_err_as_seldom_as_they_say() -> None:
    """Catches an intraclass correlation of 40 prompts that is taken as exact where requests are ten times as long.

    Known or not: a sentence is false if it accuses, and its condition is met.
    """
    rng, times, false = np.random.default_rng(4), 120, [0, 0]
    for _ in range(times):
        own, served = drafts_of(rng, rng.beta(5, 5, 40), 13), drafts_of(rng, rng.beta(5, 5, 3), 130)
        replay = replayed(own, [1 + sum(c + 1 for c in row) for row in own])
        for i, other in enumerate(({"completed": 3}, {})):
            reading = Reading(
                tool="vLLM", format="x", scope="run", rounds=390, accepted_drafts=sum(map(sum, served)), other=other
            )
            best = compare(*replay, evidence(reading)).best
            is_met = best.most_rounds_a_request is None or best.most_rounds_a_request >= 130
            false[i] += best.verdict == "differs" and is_met
    assert max(false) <= 0.05 * times + 2 * np.sqrt(times * 0.05 * 0.95)


def test_the_number_of_requests_is_taken_from_whatever_tells_it() -> None:
    """Catches a benchmark's "Successful requests" that is read and not used, and requests whose tokens add up."""
    trace, rounds, counts, _ = workload(3, 40)
    block = "\n".join(
        (
            "============ Serving Benchmark Result ============",
            "Successful requests:                     8",
            "---------------Speculative Decoding---------------",
            "Acceptance rate (%):                     50.00",
            "Acceptance length:                       2.50",
            "Drafts:                                  4000",
            "Draft tokens:                            12000",
            "Accepted tokens:                         6000",
        )
    )
    found = compare(trace, rounds, counts, Evidence.gather(read(block.splitlines()))).best
    assert any("500 rounds each, for 8 requests of the benchmark" in said for said in found.assumptions)
    run_of_these = Reading(tool="vLLM", format="x", scope="run", rounds=200, accepted_drafts=300, completion_tokens=60)
    asked = [untold(i, 30) for i in range(900, 902)]
    found = compare(trace, rounds, counts, evidence(*asked, run_of_these)).best
    assert any("100 rounds each, for 2 requests with as many tokens" in said for said in found.assumptions)


def test_a_difference_that_is_there_and_perhaps_does_not_matter_is_called_so() -> None:
    """Catches "cannot tell" that hides that something is off, and "differs" that accuses what may be 0.01."""
    trace, rounds, counts, given_run = workload(3, 2000, shift=-0.04)
    found = compare(trace, rounds, counts, given_run)
    low, high = found.best.difference.ends(0.95)
    assert low < -0.05 < high < 0
    assert found.sentence.startswith("cannot tell (lower, but perhaps by less than the margin): -0.")


def test_long_requests_count_as_few_prompts() -> None:
    """Catches 100 lines of 2 requests taken for hundreds of prompts: the prefill lines between them say how many."""
    trace, rounds, counts, _ = workload(11, 60)
    lines = [line(2.20, 0.40, 10 * i) for i in range(100)]
    prefill = "[2026-06-24 10:00:00 TP0] Prefill batch, #new-seq: 1, #new-token: 32, #cached-token: 0"
    few, unknown = (compare(trace, rounds, counts, log(*begin, *lines)).best for begin in ([prefill, prefill], []))
    assert few.difference.variance > 10 * unknown.difference.variance
    assert any("for 2 prefills in the log" in assumption for assumption in few.assumptions)
