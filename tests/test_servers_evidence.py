"""What is gathered: each statement once, in time order, pooled as it says, with a trend where there is one."""

import json
import weakref
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from eagle3ref.cli.evidence import gather
from eagle3ref.servers import Evidence, NotAcceptance, Reading, Rounded, all_rounds, between, read, read_metrics
from eagle3ref.servers import window_rounds as rounds_of
from eagle3ref.servers.evidence.gathering import Gathering
from eagle3ref.servers.evidence.trend import trend

GOLDEN = Path(__file__).parent / "golden" / "engines"
START = datetime(2026, 6, 1, 12)


def decode_line(
    seconds: float, length: float, rate: float = 0.5, *, source: str = "TP0", running: int = 1, tps: float = 60.0
) -> str:
    time = START + timedelta(seconds=seconds)
    return (
        f"[{time:%Y-%m-%d %H:%M:%S} {source}] Decode batch, #running-req: {running}, #token: {100 * length:.0f}, "
        f"token usage: 0.00, accept len: {length:.2f}, accept rate: {rate:.2f}, cuda graph: True, "
        f"gen throughput (token/s): {tps:.2f}, #queue-req: 0"
    )


def window(seconds: float, length: float, **changes: Any) -> Reading:
    reading = Reading(
        tool="SGLang",
        format="decode log",
        scope="window",
        time=START + timedelta(seconds=seconds),
        accept_length=Rounded.printed(f"{length:.2f}"),
    )
    return replace(reading, **changes)


def recorded(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


LOGGED = [path for path in sorted((GOLDEN / "sglang").glob("*.json")) if recorded(f"sglang/{path.name}")["log_lines"]]


@pytest.mark.parametrize("path", sorted((GOLDEN / "sglang").glob("*.json")), ids=lambda path: path.stem)
def test_recorded_sglang_requests(path: Path) -> None:
    """Columns mixed up between requests: sums, histograms and ids are those of the engine's recording."""
    run, evidence = recorded(f"sglang/{path.name}"), Evidence.read(path)
    meta = run["meta_info"]
    pooled = evidence.pooled("request")
    assert pooled is not None
    assert pooled.rounds is not None
    assert pooled.rounds.is_counted
    drafts, verified = sum(meta["spec_num_correct_drafts"]), sum(meta["spec_verify_ct"])
    assert (pooled.accepted_drafts, pooled.rounds.value) == (drafts, verified)
    assert pooled.length == Rounded.exactly(1 + drafts / verified)
    assert sum(pooled.histogram) == verified
    assert sum(c * number for c, number in enumerate(pooled.histogram)) == drafts
    assert [list(request.output_ids or ()) for request in evidence.requests] == run["answers"]
    assert not any(request.remarks for request in evidence.requests)
    assert {request.num_draft_tokens for request in evidence.requests} == {run["run"]["num_draft_tokens"]}


@pytest.mark.parametrize("path", LOGGED, ids=lambda path: path.stem)
def test_recorded_sglang_log(path: Path) -> None:
    """The newest engine's own lines: every one is read, and the rate is the strict one with the true setting."""
    run, evidence = recorded(f"sglang/{path.name}"), Evidence.read(path)
    assert len(evidence.windows) == len(run["log_lines"])
    inference = evidence.rate()
    assert inference is not None
    fitting = [one for one in inference.readings if not one.formula.counts_bonus]
    assert [run["run"]["num_draft_tokens"] in one.num_draft_tokens for one in fitting] == [True]
    told = evidence.rate(num_draft_tokens=run["run"]["num_draft_tokens"], num_steps=run["run"]["num_steps"])
    assert told is not None
    assert (told.verdict, told.readings[0].formula.counts_bonus) == ("one", False)
    windows, requests = evidence.pooled("window"), evidence.pooled("request")
    assert windows is not None
    assert requests is not None
    assert windows.rounds is not None
    assert not windows.rounds.is_counted
    assert evidence.best == requests


@pytest.mark.parametrize("path", sorted((GOLDEN / "vllm").glob("*.json")), ids=lambda path: path.stem)
def test_recorded_vllm_counts(path: Path) -> None:
    """Log windows whose recovered counts do not add up to what the counters gained."""
    run, evidence = recorded(f"vllm/{path.name}"), Evidence.read(path)
    gained = run["metrics"]
    run_pooled, log_pooled = evidence.pooled("run"), evidence.pooled("window")
    assert run_pooled is not None
    assert log_pooled is not None
    assert run_pooled.rounds is not None
    assert (run_pooled.rounds.value, run_pooled.accepted_drafts) == (
        gained["num_drafts"],
        gained["num_accepted_tokens"],
    )
    assert [rate.value for rate in run_pooled.accept_rate_at] == [
        number / gained["num_drafts"] for number in gained["num_accepted_tokens_per_pos"]
    ]
    assert log_pooled.rounds is not None
    assert log_pooled.rounds.is_counted
    assert (log_pooled.rounds.value, log_pooled.accepted_drafts) == (
        gained["num_drafts"],
        gained["num_accepted_tokens"],
    )
    by_depth = np.array([reading.accepted_drafts_at for reading in evidence.windows])
    assert by_depth.sum(axis=0).tolist() == gained["num_accepted_tokens_per_pos"]
    assert log_pooled.histogram == run_pooled.histogram
    assert not any(reading.remarks for reading in evidence.readings)


def test_ranks_of_one_group_count_once_and_dp_ranks_each() -> None:
    """Eight copies of one figure that look like eight times the rounds."""
    lines = []
    for i in range(10):
        for dp in range(2):
            for tp in range(4):
                length = 2 + 0.1 * dp + 0.01 * i
                lines.append(decode_line(10 * i + tp // 2, length, source=f"DP{dp} TP{tp}", tps=60 + tp))
    evidence = Evidence.gather(read(lines))
    assert len(evidence.windows) == 20
    assert {reading.source for reading in evidence.windows} == {"DP0 TP0", "DP1 TP0"}
    assert any("further tensor-parallel ranks" in remark and remark.endswith(": 60.") for remark in evidence.remarks)


def test_ranks_that_differ_are_kept() -> None:
    """Two different statements taken for copies because their ranks are of one group."""
    lines = [decode_line(i, 2 + 0.01 * i + 0.3 * tp, source=f"TP{tp}") for i in range(5) for tp in range(2)]
    assert len(Evidence.gather(read(lines)).windows) == 10


def test_a_line_of_two_files_counts_once(tmp_path: Path) -> None:
    """A rotated log that overlaps the one before it."""
    lines = [decode_line(i, 2 + 0.01 * i) for i in range(20)]
    (tmp_path / "server.log").write_text("\n".join(lines[8:]), encoding="utf-8")
    (tmp_path / "server.log.1").write_text("\n".join(lines[:12]), encoding="utf-8")
    evidence = Evidence.read(tmp_path)
    assert [reading.accept_length for reading in evidence.windows] == [
        Rounded.printed(f"{2 + 0.01 * i:.2f}") for i in range(20)
    ]
    assert any("in two of the files" in remark and remark.endswith(": 4.") for remark in evidence.remarks)


def test_chunks_of_a_streamed_answer_are_one_request() -> None:
    """A streamed answer that counts once for each chunk."""
    chunks = [
        "data: "
        + json.dumps({"meta_info": {"id": "a", "prompt_tokens": 5, "completion_tokens": 3 * n, "spec_verify_ct": n}})
        for n in range(1, 5)
    ]
    evidence = Evidence.gather(read([*chunks, "data: [DONE]"]))
    assert [(request.completion_tokens, request.rounds) for request in evidence.requests] == [(12, 4)]


def test_two_answers_under_one_id_are_two_requests() -> None:
    """Two runs of one prompt that are taken for one."""
    answers = [
        {"meta_info": {"id": "a", "completion_tokens": 9, "spec_verify_ct": 3}, "output_ids": ids}
        for ids in ([1, 2], [1, 3])
    ]
    assert len(Evidence.gather(read(map(json.dumps, answers))).requests) == 2


def page(rounds: int, accepted: int, engine: int = 0) -> str:
    labels = f'{{engine="{engine}",model_name="m"}}'
    by_depth = "".join(
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{engine}",model_name="m",position="{d}"}} {n}\n'
        for d, n in enumerate((accepted // 2, accepted - accepted // 2))
    )
    return (
        "# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.\n"
        "# TYPE vllm:spec_decode_num_drafts_total counter\n"
        f"vllm:spec_decode_num_drafts_total{labels} {rounds}.0\n"
        f"vllm:spec_decode_num_drafts_created{labels} 1.7725e+09\n"
        f"vllm:spec_decode_num_draft_tokens_total{labels} {2 * rounds}.0\n"
        f"vllm:spec_decode_num_accepted_tokens_total{labels} {accepted}.0\n" + by_depth
    )


def test_engines_of_one_page_add_up() -> None:
    """A data-parallel engine that is left out, or a creation time that counts as tokens."""
    (reading,) = read_metrics(page(100, 120) + page(50, 20, engine=1))
    assert isinstance(reading, Reading)
    assert (reading.rounds, reading.accepted_drafts, reading.proposed_drafts) == (150, 140, 300)
    assert (reading.accepted_drafts_at, reading.num_steps) == ((70, 70), 2)
    assert reading.source == "2 engines"


def test_two_scrapes_give_their_difference_and_a_reset_is_seen() -> None:
    """Warm-up that stays in the figures, and a restarted server with a negative count."""
    evidence = Evidence.gather(read((page(100, 120) + page(180, 250) + page(40, 30)).splitlines()))
    assert [(run.rounds, run.accepted_drafts, run.accepted_drafts_at) for run in evidence.runs] == [
        (80, 130, (65, 65)),
        (40, 30, (15, 15)),
    ]
    assert [bool(run.remarks) for run in evidence.runs] == [False, True]
    assert len(evidence.lifetimes) == 3


def test_difference_of_sglang_counters() -> None:
    """A length of a difference that is still the lifetime's."""
    pages = [
        f'sglang:spec_verify_calls_total{{a="b"}} {r}\nsglang:generation_tokens_total{{a="b"}} {t}\n'
        for r, t in ((10, 30), (30, 70))
    ]
    before, after = (one for text in pages for one in read_metrics(text) if isinstance(one, Reading))
    gained = between(before, after)
    assert (gained.rounds, gained.completion_tokens, gained.accept_length) == (20, 40, Rounded.exactly(2.0))
    assert gained.length_with_bonus is None


def test_log_windows_are_weighted_by_their_batch() -> None:
    """A mean over lines where a line of batch 30 holds thirty times the rounds of one of batch 1."""
    evidence = Evidence.gather([window(0, 2.0, running_requests=30), window(9, 3.0, running_requests=10)])
    pooled = evidence.pooled("window")
    assert pooled is not None
    assert pooled.length is not None
    assert pooled.length.value == pytest.approx(2.25)
    assert pooled.length.high - pooled.length.low == pytest.approx(0.01)
    assert pooled.rounds is not None
    assert (pooled.rounds.value, pooled.rounds.is_counted) == (1600, False)
    assert "weighted" in pooled.length_how
    unknown = Evidence.gather([window(0, 2.0), window(9, 3.0)]).pooled("window")
    assert unknown is not None
    assert unknown.length is not None
    assert unknown.length.value == 2.5
    assert "each counting as much" in unknown.length_how
    assert unknown.rounds is None


@pytest.mark.parametrize("interval", [40, 10])
def test_rounds_of_a_log_are_estimated_within_their_bounds(interval: int) -> None:
    """An estimate that only holds for the default --decode-log-interval, against rounds that were really run."""
    generator = np.random.default_rng(0)
    time, true_rounds, lines = 0.0, 0, []
    for _ in range(400):
        running = int(generator.integers(1, 9))
        rounds = interval * running
        tokens = rounds + int(generator.binomial(3 * rounds, 0.5))
        seconds = interval * 0.03
        time += seconds
        stamp = START + timedelta(seconds=int(time))
        true_rounds += rounds
        lines.append(
            window(
                0,
                tokens / rounds,
                time=stamp,
                running_requests=running,
                gen_throughput=Rounded.printed(f"{tokens / seconds:.2f}"),
            )
        )
    estimate = all_rounds(lines)
    assert estimate is not None
    assert estimate.low <= true_rounds <= estimate.high
    assert estimate.value == pytest.approx(true_rounds, rel=0.15)
    assert ("--decode-log-interval" in estimate.how) == (interval != 40)


def test_rounds_of_one_line() -> None:
    """Integers that are there and not used, or invented where nothing tells."""
    counted = rounds_of(window(0, 2.5, rounds=7))
    assert counted is not None
    assert (counted.value, counted.is_counted) == (7, True)
    bounded = rounds_of(window(0, 2.5, accepted_drafts=1500))
    assert bounded is not None
    assert (bounded.low, bounded.high) == (997, 1003)
    assert rounds_of(window(0, 2.5)) is None


def test_requests_without_counts_bound_the_length() -> None:
    """The prefill's token taken for a round's, or a cut last round forgotten."""
    answers = [{"meta_info": {"id": str(i), "completion_tokens": 33, "spec_verify_ct": 16}} for i in range(10)]
    pooled = Evidence.gather(read(map(json.dumps, answers))).pooled("request")
    assert pooled is not None
    assert pooled.length is not None
    assert (pooled.length.value, pooled.length.low) == (2.0, 2.0)
    assert 2.0 < pooled.length.high < 2.4


def test_macro_means_stay_apart() -> None:
    """A mean over requests and one over rounds thrown together."""
    table = [
        "| Global weighted accept length | 2.73 tokens/verify |",
        "| Per-request mean accept length | 2.76 tokens/verify |",
    ]
    evidence = Evidence.gather(read(table))
    assert sorted(reading.average for reading in evidence.runs) == ["requests", "rounds"]


@pytest.mark.parametrize(("slope", "direction"), [(-0.1, "falls"), (0.1, "rises"), (0.0, "none shown")])
def test_trend_over_time_against_scipy(slope: float, direction: str) -> None:
    """A decay over hours that is not seen, one seen in noise, or another slope than Theil and Sen's."""
    generator = np.random.default_rng(3)
    hours = np.arange(200) / 20
    lengths = np.round(3 + slope * hours + generator.normal(0, 0.15, 200), 2)
    readings = [window(3600 * float(h), float(y)) for h, y in zip(hours, lengths, strict=True)]
    found = Evidence.gather(readings).trend()
    assert found is not None
    assert found.direction == direction
    expected = stats.theilslopes(lengths, hours)
    assert (found.slope, found.low, found.high) == pytest.approx(
        (expected.slope, expected.low_slope, expected.high_slope), abs=2e-3
    )
    assert (found.unit, found.points, found.span) == ("hour", 200, pytest.approx(9.95))


def test_trend_of_many_readings_is_that_of_their_groups() -> None:
    """Memory that grows with the square of a long log."""
    generator = np.random.default_rng(4)
    readings = [window(60 * i, 3 - 1e-4 * i + float(generator.normal(0, 0.2))) for i in range(5000)]
    found = trend(readings, "time")
    assert found is not None
    assert found.points == 5000
    assert found.low < -0.006 < found.high < 0


def test_trend_with_the_cache() -> None:
    """A loss with prefix hits that nobody would see over time."""
    lines = []
    for i in range(40):
        hit = i % 2
        lines.append(
            f"[2026-06-01 12:{i:02}:00 TP0] Prefill batch, #new-seq: 1, #new-token: {100 - 90 * hit}, "
            f"#cached-token: {90 * hit}, token usage: 0.01, #running-req: 1, #queue-req: 0"
        )
        lines.append(decode_line(60 * i + 30, 3 - 0.5 * hit + 0.01 * (i % 5)))
    found = Evidence.gather(read(lines)).trend("cached_tokens")
    assert found is not None
    assert found.direction == "falls"
    assert found.change == pytest.approx(-0.5, abs=0.05)
    assert Evidence.gather(read(lines)).not_acceptance == {"SGLang: prefill log": 40}


def test_lines_without_a_year_go_on_into_january() -> None:
    """A night over New Year that runs a year backwards."""
    lines = [
        f"INFO {day} 10:00:00 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.00, "
        "Accepted throughput: 1.00 tokens/s, Drafted throughput: 2.00 tokens/s, Accepted: 10 tokens, "
        "Drafted: 20 tokens, Per-position acceptance rate: 0.600, 0.400, Avg Draft acceptance rate: 50.0%"
        for day in ("12-31", "01-01")
    ]
    first, second = Evidence.gather(read(lines)).windows
    assert first.time is not None
    assert second.time is not None
    assert second.time - first.time == timedelta(days=1)


def test_warnings_are_kept() -> None:
    """A server's own warning about its trees that is counted and forgotten."""
    evidence = Evidence.gather(read(["WARNING: invalid eagle tree!!! Detected a token with no parent token selected."]))
    assert [warning.what for warning in evidence.warnings] == ["invalid tree warning"]
    assert evidence.best is None


def test_very_long_logs_are_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of years that fills the memory, or of which only the beginning counts."""
    monkeypatch.setattr("eagle3ref.servers.evidence.gathering._MOST_WINDOWS", 100)
    gathering = Gathering()
    for i in range(1000):
        gathering.add(window(i, 2 + i / 1000))
    kept = gathering.in_order()
    assert 50 <= len(kept) <= 101
    lengths = np.array([reading.accept_length.value for reading in kept if reading.accept_length is not None])
    assert lengths.mean() == pytest.approx(2.5, abs=0.02)
    assert any("every 16th" in remark for remark in gathering.remarks())


def test_other_lines_do_not_count() -> None:
    """A kind of line that is dropped without a count."""
    other = NotAcceptance("SGLang", "request timing")
    assert Evidence.gather([other, other]).not_acceptance == {"SGLang: request timing": 2}


HTTP = GOLDEN / "http"


@pytest.mark.parametrize("path", sorted((HTTP / "sglang").iterdir()), ids=lambda path: path.name)
def test_everything_that_a_real_sglang_server_said(path: Path) -> None:
    """A folder of one server's answers, log and endpoints in which a figure contradicts another."""
    evidence = Evidence.read(path)
    info = json.loads((path / "after" / "server_info.json").read_text(encoding="utf-8"))
    inference = evidence.rate()
    assert inference is not None
    assert inference.verdict == "one"
    assert inference.readings[0].formula.name == "(length - 1) / (num_draft_tokens - 1)"
    assert inference.readings[0].num_draft_tokens == (info["speculative_num_draft_tokens"],)
    contradictions = [remark for one in evidence.requests for remark in one.remarks]
    assert contradictions == []
    (gained,) = [run for run in evidence.runs if run.format == "/metrics counters, difference"]
    answered = [json.loads(line) for line in (path / "requests.jsonl").read_text(encoding="utf-8").splitlines()]
    assert gained.rounds == sum(line["response"]["meta_info"]["spec_verify_ct"] for line in answered)


@pytest.mark.parametrize("path", sorted((HTTP / "vllm").iterdir()), ids=lambda path: path.name)
def test_everything_that_a_real_vllm_server_said(path: Path) -> None:
    """Two scrapes of the counters that gained something else than the lines of the log between them."""
    evidence = Evidence.read(path)
    (gained,) = [run for run in evidence.runs if run.format == "/metrics, difference"]
    logged = evidence.pooled("window")
    assert logged is not None
    assert logged.rounds is not None
    assert (logged.rounds.value, logged.accepted_drafts) == (gained.rounds, gained.accepted_drafts)
    assert not any(reading.remarks for reading in evidence.readings)


def test_evidence_of_the_command_line_is_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a list of every line of a log of gigabytes, made before the first is thinned out."""
    made: list[weakref.ref[Reading]] = []

    def lines(_: object) -> Iterator[Reading]:
        for second in range(3000):
            made.append(weakref.ref(reading := window(second, 2.0)))
            yield reading
        assert sum(one() is not None for one in made) < 200

    monkeypatch.setattr("eagle3ref.servers.evidence.gathering._MOST_WINDOWS", 100)
    monkeypatch.setattr("eagle3ref.cli.evidence.read_file", lines)
    evidence, _ = gather(["server.log"])
    assert len(evidence.windows) <= 101
