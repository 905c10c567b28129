"""How the real servers count: what a log window holds, what a request's length divides, which rounds are in neither.

Every expected number is counted here from the rounds that the engine verified (SGLang, ``server.json``) or listed for
each request (vLLM, ``per_step_accepted``); nothing of the library takes part. The cross-check's forward model rests on
these facts.
"""

from __future__ import annotations

import json
import re
from itertools import chain

import pytest
from engines.http_plan import SERVERS, Server
from recorded_servers import BY_NAME, exchanges, heading, text_of

SGLANG = [server for server in SERVERS if server.engine == "sglang"]
VLLM = [server for server in SERVERS if server.engine == "vllm"]
INTERVAL = 40  # SGLang's default --decode-log-interval
LENGTH_AND_RATE = r"accept len: ([\d.]+), accept rate: ([\d.]+)"


def rounds_between(server: Server, start: int, stop: int | None = None) -> list[int]:
    """Accepted drafts of every request in these verified batches of SGLang."""
    return list(chain.from_iterable(heading(server)["verified"][start:stop]))


def windows(server: Server) -> list[tuple[float, float]]:
    """(accept len, accept rate) of each log line."""
    return [(float(a), float(b)) for a, b in re.findall(LENGTH_AND_RATE, text_of(server, "log.txt"))]


def meta(server: Server) -> list[dict[str, object]]:
    return [exchange["response"]["meta_info"] for exchange in exchanges(server)]


def gauge(server: Server, name: str, page: str = "after/metrics.txt") -> float:
    (value,) = re.findall(rf"^{re.escape(name)}{{.*}} (\S+)$", text_of(server, page), re.MULTILINE)
    return float(value)


def last_round_starts(server: Server) -> list[int]:
    """Tokens that each SGLang answer was short of its end when its last round began: what no count of it says.

    One request at a time only. The first batches are the warm-up's: 8 tokens, verified in as many rounds as that took.
    """
    verified = [accepted for (accepted,) in heading(server)["verified"]]
    position, missing = 0, []
    for length in (8, *(entry["completion_tokens"] for entry in meta(server))):
        written = 1
        while written < length:
            before, written = written, written + verified[position] + 1
            position += 1
        missing.append(length - before)
        position += server.overlap and length - before > 1
    assert position == len(verified)
    return missing


@pytest.mark.parametrize("server", SGLANG, ids=str)
def test_a_log_window_is_forty_batches_from_the_first_one_on(server: Server) -> None:
    """Catches a model that counts a window in rounds, or that leaves out the warm-up's or the overlap's."""
    found = windows(server)
    assert found
    for i, (length, rate) in enumerate(found):
        rounds = rounds_between(server, INTERVAL * i, INTERVAL * (i + 1))
        assert length == pytest.approx(1 + sum(rounds) / len(rounds), abs=0.005001)
        assert rate == pytest.approx(sum(rounds) / len(rounds) / (server.num_draft_tokens - 1), abs=0.005001)


@pytest.mark.parametrize("server", SGLANG, ids=str)
def test_lifetime_counters_move_at_log_lines_only(server: Server) -> None:
    """Catches a reading of ``avg_spec_accept_length`` as that of all requests: up to 39 batches are missing."""
    state = json.loads(text_of(server, "after/server_info.json"))["internal_states"][0]
    before = json.loads(text_of(server, "before/server_info.json"))["internal_states"][0]
    ticks = len(windows(server))
    rounds = rounds_between(server, 0, INTERVAL * ticks)
    assert state["avg_spec_accept_length"] == pytest.approx(1 + sum(rounds) / len(rounds), rel=1e-12)
    assert "avg_spec_accept_length" not in before  # not even the warm-up, which has been verified


@pytest.mark.parametrize("server", SGLANG, ids=str)
def test_loads_and_gauges_mix_lifetime_and_last_window(server: Server) -> None:
    """Catches a reader that takes the length and the rate of ``/v1/loads`` for figures of the same rounds."""
    (load,) = json.loads(text_of(server, "after/loads.json"))["loads"]
    (before,) = json.loads(text_of(server, "before/loads.json"))["loads"]
    ticks = len(windows(server))
    lifetime, last = (
        rounds_between(server, 0, INTERVAL * ticks),
        rounds_between(server, INTERVAL * (ticks - 1), INTERVAL * ticks),
    )
    length, rate = 1 + sum(last) / len(last), sum(last) / len(last) / (server.num_draft_tokens - 1)
    assert load["speculative"]["accept_length"] == pytest.approx(1 + sum(lifetime) / len(lifetime))
    assert load["speculative"]["accept_rate"] == pytest.approx(rate)
    assert gauge(server, "sglang:spec_accept_length") == pytest.approx(length)
    assert gauge(server, "sglang:spec_accept_rate") == pytest.approx(rate)
    assert "speculative" not in before


@pytest.mark.parametrize("server", SGLANG, ids=str)
def test_a_requests_length_has_the_prefills_token_and_its_counts_the_whole_last_round(server: Server) -> None:
    """Catches a length of a request read as drafts + bonus, and counts trimmed to the answer."""
    for entry in meta(server):
        histogram = entry["spec_correct_drafts_histogram"]
        accepted, rounds = entry["spec_num_correct_drafts"], entry["spec_verify_ct"]
        assert rounds == sum(histogram)
        assert accepted == sum(c * n for c, n in enumerate(histogram))
        assert entry["spec_num_proposed_drafts"] == rounds * (server.num_draft_tokens - 1)
        assert entry["spec_accept_length"] == pytest.approx(entry["completion_tokens"] / rounds)
        assert 0 <= 1 + accepted + rounds - entry["completion_tokens"] <= server.num_steps
    beyond = [1 + e["spec_num_correct_drafts"] + e["spec_verify_ct"] - e["completion_tokens"] for e in meta(server)]
    assert any(beyond)


@pytest.mark.parametrize("server", SGLANG, ids=str)
def test_the_verify_counter_has_finished_requests_and_the_warm_up(server: Server) -> None:
    """Catches a difference of two pages taken over rounds that no request counts."""
    counted = sum(entry["spec_verify_ct"] for entry in meta(server))
    name = "sglang:spec_verify_calls_total"
    assert gauge(server, name) - gauge(server, name, "before/metrics.txt") == counted
    assert gauge(server, name, "before/metrics.txt") > 0


@pytest.mark.parametrize("server", [s for s in SGLANG if s.concurrency == 1 and s.temperature == 0], ids=str)
def test_every_verified_round_is_in_a_request_but_for_what_overlap_ran_ahead(server: Server) -> None:
    """Catches a correction for overlap that adds a round to every request, or adds any without overlap.

    An answer whose last round began one token short of its end is not launched again: that any round ends it is clear.
    """
    missing = last_round_starts(server)
    ahead = sum(short > 1 for short in missing) if server.overlap else 0
    counted = gauge(server, "sglang:spec_verify_calls_total")
    assert len(rounds_between(server, 0)) == counted + ahead
    assert bool(ahead) is server.overlap


def test_overlap_runs_ahead_at_most_once_for_an_answer() -> None:
    """Catches a correction without a bound. Side by side, the batch launched next may be a prefill: then none is."""
    server = BY_NAME["http/sglang/3-1-4-overlap-until-stop"]
    ahead = len(rounds_between(server, 0)) - gauge(server, "sglang:spec_verify_calls_total")
    assert 0 < ahead <= 1 + len(meta(server))  # the warm-up's too


def test_a_cached_prefix_changes_no_round() -> None:
    """Catches a recording with a fault of the prefix cache, which would teach the wrong rounds."""
    server = BY_NAME["http/sglang/3-1-4"]
    first, again = meta(server)[: server.num_prompts], meta(server)[server.num_prompts :]
    assert sum(entry["cached_tokens"] for entry in first) == 0
    assert sum(entry["cached_tokens"] for entry in again) > 100
    name = "spec_correct_drafts_histogram"
    assert [entry[name] for entry in first] == [entry[name] for entry in again]


def by_request(server: Server) -> list[dict[str, object]]:
    """vLLM's own account of each request's rounds; empty where the server was started without it."""
    metrics = [exchange["response"]["metrics"] for exchange in exchanges(server)]
    return [entry["speculative_decoding"] for entry in metrics if entry]


def gained(server: Server, name: str) -> float:
    """What a counter of vLLM gained over the requests."""
    return gauge(server, name) - gauge(server, name, "before/metrics.txt")


@pytest.mark.parametrize("server", [s for s in VLLM if s.flags], ids=str)
def test_vllm_lists_each_requests_rounds_when_it_is_asked_to(server: Server) -> None:
    """Catches a reader that holds vLLM to have no figures of a request, or takes them for trimmed to the answer."""
    entries = by_request(server)
    assert len(entries) == len(exchanges(server))
    for entry, exchange in zip(entries, exchanges(server), strict=True):
        accepted, length = entry["per_step_accepted"], exchange["response"]["usage"]["completion_tokens"]
        assert entry["acceptance_histogram"] == [accepted.count(c) for c in range(server.num_steps + 1)]
        assert entry["num_accepted_draft_tokens"] == sum(accepted)
        assert entry["mean_acceptance_length"] == pytest.approx(1 + sum(accepted) / len(accepted))
        assert 0 <= 1 + sum(accepted) + len(accepted) - length <= server.num_steps
        assert set(entry["per_step_drafted"]) == {server.num_steps}  # past the end of the answer, too


@pytest.mark.parametrize("server", [s for s in VLLM if s.flags], ids=str)
def test_vllms_counters_are_the_sum_of_its_requests(server: Server) -> None:
    """Catches rounds of a warm-up in vLLM's counters, and rounds that are in no request."""
    entries = by_request(server)
    accepted = [c for entry in entries for c in entry["per_step_accepted"]]
    assert gained(server, "vllm:spec_decode_num_drafts_total") == len(accepted)
    assert gained(server, "vllm:spec_decode_num_accepted_tokens_total") == sum(accepted)
    assert gauge(server, "vllm:spec_decode_num_drafts_total", "before/metrics.txt") == 0


@pytest.mark.parametrize("server", VLLM, ids=str)
def test_vllms_log_lines_add_up_to_its_counters(server: Server) -> None:
    """Catches a reading of the lines as overlapping windows: each has what was counted since the line before."""
    lines = re.findall(r"Accepted: (\d+) tokens, Drafted: (\d+) tokens", text_of(server, "log.txt"))
    accepted, drafted = (sum(map(int, column)) for column in zip(*lines, strict=True))
    assert accepted == gained(server, "vllm:spec_decode_num_accepted_tokens_total")
    assert drafted == gained(server, "vllm:spec_decode_num_draft_tokens_total")
