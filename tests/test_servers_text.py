"""Lines as they lie around: wrapped, coloured, cut, reordered, glued together, between lines of other programs."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from eagle3ref.servers import NotAcceptance, Reading, Rounded, TextReader, read, read_object

SAMPLES = [
    json.loads(line)
    for line in (Path(__file__).parent / "golden" / "log_samples.jsonl").read_text(encoding="utf-8").splitlines()
]
RAW = {sample["id"]: sample["raw"] for sample in SAMPLES}
ONE_LINE = [sample["id"] for sample in SAMPLES if "\n" not in sample["raw"]]
NOISE = [
    'INFO:     10.0.0.7:48230 - "POST /generate HTTP/1.1" 200 OK',
    "[2026-06-01 12:00:00 TP0] max_total_num_tokens=831872, chunked_prefill_size=8192, context_len=262144",
    "(EngineCore_DP0 pid=41) INFO 06-01 12:00:01 [core.py:77] Initializing a V1 LLM engine with config: model='m'",
    "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:07<00:07,  7.44s/it]",
    "",
    "Traceback (most recent call last):",
]
Wrapper = Callable[[str], str]
WRAPPERS: dict[str, Wrapper] = {
    "docker": lambda line: json.dumps(
        {"log": line + "\n", "stream": "stderr", "time": "2026-06-01T12:00:00.123456789Z"}
    ),
    "kubernetes": lambda line: f"2026-06-01T12:00:00.123456789Z stderr F {line}",
    "structured": lambda line: json.dumps({"level": "INFO", "message": line, "timestamp": "2026-06-01 12:00:00"}),
    "journald": lambda line: f"Jun 01 12:00:00 gpu-7 sglang[4121]: {line}",
    "compose": lambda line: f"sglang-1  | {line}",
    "colours": lambda line: f"\x1b[32m{line[:12]}\x1b[0m{line[12:]}\x1b[0m",
    "carriage return": lambda line: f"{line}\r",
    "progress bar": lambda line: f"Capturing batches:  50%|#####     | 3/6\r{line}",
    "EngineCore": lambda line: f"(EngineCore_DP3 pid=99) {line}",
    "indented": lambda line: f"    {line}",
}


def figures(statement: Reading | NotAcceptance) -> Any:
    """All that a wrapper may not change: everything but where and when."""
    if isinstance(statement, NotAcceptance):
        return replace(statement, line=0, raw="")
    return replace(statement, line=0, raw="", time=None, source="")


def statements(text: str) -> list[Any]:
    return [figures(one) for one in read(text.split("\n"))]


def only(text: str) -> Reading:
    (reading,) = read(text.split("\n"))
    assert isinstance(reading, Reading)
    return reading


@pytest.mark.parametrize(
    ("name", "wrapper"),
    # A prefix makes something else of a table or a page of metrics, which begin their lines.
    [(name, wrapper) for name in ONE_LINE for wrapper in WRAPPERS if not RAW[name].startswith(("vllm:", "|"))],
)
def test_a_wrapper_changes_nothing(name: str, wrapper: str) -> None:
    """A line that is read bare and lost in a container's, a journal's or a terminal's clothes."""
    raw = RAW[name]
    assert statements(WRAPPERS[wrapper](raw)) == statements(raw)


@pytest.mark.parametrize("name", RAW)
def test_other_lines_around_change_nothing(name: str) -> None:
    """A block that needs its file for itself."""
    surrounded = "\n".join([*NOISE, RAW[name], *NOISE])
    assert statements(surrounded) == statements(RAW[name])


BLOCKS = [
    "vl-off-09",
    "vl-off-11",
    "vl-off-14",
    "sf-01",
    "sgl-bserv-01",
    "trt-01",
    "ea-01",
    "vl-prom-01",
    "sgl-prom-01",
]


@pytest.mark.parametrize("name", BLOCKS)
def test_other_lines_within_a_block_change_nothing(name: str) -> None:
    """A block of many lines that another process writes into."""
    lines = RAW[name].split("\n")
    mixed = [line for pair in zip(lines, NOISE * 4, strict=False) for line in pair]
    assert statements("\n".join(mixed)) == statements(RAW[name])


def test_all_samples_in_one_file() -> None:
    """A format that swallows the lines of another."""
    apart = [one for sample in SAMPLES for one in statements(sample["raw"])]
    together = statements("\n".join(line for sample in SAMPLES for line in (*sample["raw"].split("\n"), *[""] * 70)))
    assert len(together) == len(apart)
    remaining = list(apart)
    for one in together:
        assert one in remaining, one
        remaining.remove(one)


TAIL = "accept len: 2.50, accept rate: 0.16, cuda graph: False, gen throughput (token/s): 61.26, #queue-req: 0"
DECODE = f"[2026-02-01 10:00:00 TP0] Decode batch, #running-req: 1, #token: 12, token usage: 0.00, {TAIL}"


@pytest.mark.parametrize("end", range(len("[2026-02-01 10:00:00 TP0] Decode batch"), len(DECODE) + 1))
def test_a_line_cut_anywhere_never_gives_a_wrong_figure(end: int) -> None:
    """2.5 or 2 read from "2.50" that was cut: a cut line gives the true figures, or says that it gives none."""
    for one in read([DECODE[:end]]):
        if isinstance(one, Reading):
            assert one.accept_length == Rounded.printed("2.50")
            assert one.accept_rate in (None, Rounded.printed("0.16"))
            assert one.gen_throughput in (None, *(Rounded.printed("61.26"[:n]) for n in (1, 2, 4, 5)))
        else:
            assert "cut" in one.what


@pytest.mark.parametrize("start", range(0, DECODE.index("accept len"), 7))
def test_a_line_without_its_beginning_is_read(start: int) -> None:
    """The first line of a log that was cut from the front."""
    reading = only(DECODE[start:])
    assert (reading.accept_length, reading.accept_rate) == (Rounded.printed("2.50"), Rounded.printed("0.16"))
    assert reading.cuda_graph is False


@pytest.mark.parametrize(
    "text",
    [
        "accept len 2.50, accept rate 0.16",
        "we see accept len: 2.50 / accept rate: 0.16 with 16 draft tokens",
        "accept_len=2.50 accept_rate=0.16",
        "Accept length: 2.50, accept rate: 16%",
        "accept len: 2,50, accept rate: 0,16",
    ],
)
def test_figures_as_people_quote_them(text: str) -> None:
    """The founding numbers as they stood in a chat."""
    reading = only(text)
    assert (reading.accept_length, reading.accept_rate) in (
        (Rounded.printed("2.50"), Rounded.printed("0.16")),
        (Rounded.printed("2.50"), Rounded.printed("16%")),
    )


FIELDS = ["#running-req: 3", "#token: 1,234", "token usage: 0.10", "accept rate: 0.50", "cuda graph: True"]
UNKNOWN = st.sampled_from(
    ["#new-field: 7", "cap len: 2.10", "block accept len: 0.50", "fwd occupancy: 97.31%", "mamba num: 2"]
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    order=st.permutations(FIELDS),
    unknown=st.lists(st.tuples(UNKNOWN, st.integers(0, 6)), max_size=3, unique_by=lambda pair: pair[0]),
    iteration=st.sampled_from(["", " [1234]"]),
    mark=st.sampled_from([".", ","]),
    prefix=st.sampled_from(["[2026-06-01 12:00:00 DP1 TP0] ", "2026-06-01 12:00:00,123 INFO [scheduler.py:1] ", ""]),
    end=st.sampled_from(["", ", ", ","]),
)
def test_decode_line_is_read_by_field(
    order: list[str], unknown: list[tuple[str, int]], iteration: str, mark: str, prefix: str, end: str
) -> None:
    """A pattern of the whole line: the next release adds a field, or moves one."""
    parts = ["accept len: 2.50", *order, "gen throughput (token/s): 900.12"]
    for field, place in unknown:
        parts.insert(place, field)
    reading = only(f"{prefix}Decode batch{iteration}{mark} {', '.join(parts)}{end}")
    assert (reading.accept_length, reading.accept_rate) == (Rounded.printed("2.50"), Rounded.printed("0.50"))
    assert (reading.running_requests, reading.cuda_graph) == (3, True)
    assert reading.gen_throughput == Rounded.printed("900.12")
    assert reading.other["token"] == 1234
    assert ("iteration" in reading.other) == bool(iteration)
    assert all(re.sub(r"[#:].*", "", field.lstrip("#")).replace("-", " ") in reading.other for field, _ in unknown)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=80), max_size=12))
@example(["{" * 5000])
@example(['{"a": ' * 2000 + "accept"])
@example(["Decode batch" + ": 1, a" * 5000])
@example(
    ["[AL] AVERAGE: 1e999999999", "accept len: 1e-999999999", "Decode batch, accept len: nan, gen throughput: inf"]
)
@example(['{"meta_info": {"spec_verify_ct": -3, "completion_tokens": 1e400, "spec_accept_rate": "x"}}'])
@example(['{"internal_states": [null, 3, {"avg_spec_accept_length": null}]}', '{"loads": [{"speculative": []}]}'])
@example(["vllm:spec_decode_num_drafts_total{", 'vllm:spec_decode_num_drafts_total{engine="0"} NaN'])
@example(["| accept_len |", "|---|", "| |", "| nan |", "|||||"])
def test_no_text_breaks_the_reader(lines: list[str]) -> None:
    """A traceback for whatever a log may hold."""
    for one in read(lines):
        assert isinstance(one, Reading | NotAcceptance)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_damage_to_a_sample_breaks_the_reader(data: st.DataObject) -> None:
    """A traceback for a known format with a hole in it."""
    raw = RAW[data.draw(st.sampled_from(sorted(RAW)))]
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    list(read((raw[:start] + data.draw(st.text(max_size=5)) + raw[end:]).split("\n")))


def test_time_and_rank_of_a_line() -> None:
    """A rank or time of the message taken for the line's."""
    lines = {
        "[2026-02-01 10:00:00 DP1 TP3 EP3 PP0] " + DECODE[26:]: (datetime(2026, 2, 1, 10), "DP1 PP0 TP3"),
        "2026-03-18 10:00:00.250 INFO 1 [ TP0 scheduler_metrics_mixin.py:415] " + DECODE[26:]: (
            datetime(2026, 3, 18, 10, 0, 0, 250000),
            "TP0",
        ),
        "(EngineCore_DP2 pid=9) INFO 02-29 10:00:00 [m.py:1] SpecDecoding metrics: Draft acceptance rate: 50.0%, "
        "Accepted: 1 tokens, Drafted: 2 tokens": (datetime(1904, 2, 29, 10), "engine 2"),
        DECODE[26:] + " at 2026-13-45 99:00:00": (None, ""),
    }
    assert {text: (only(text).time, only(text).source) for text in lines} == lines


def test_vllm_line_in_pieces_and_beside_its_throughput() -> None:
    """A paste over three lines, and the batch size of the line above."""
    above = (
        "(APIServer pid=1) INFO 06-01 22:00:52 [loggers.py:310] Engine 001: Avg prompt throughput: 908.0 tokens/s, "
        "Avg generation throughput: 26.9 tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.4%, "
        "Prefix cache hit rate: 31.9%\n"
    )
    text = """(APIServer pid=1) INFO 06-01 22:00:52 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.71,
Accepted: 169 tokens, Drafted: 198 tokens,
Per-position acceptance rate: [0.919, 0.788],
Avg Draft acceptance rate: 85.4%
"""
    throughput, reading = read((above + text).splitlines())
    assert isinstance(throughput, NotAcceptance)
    assert throughput.fields["prefix cache hit rate"] == pytest.approx(0.319)
    assert isinstance(reading, Reading)
    assert (reading.rounds, reading.accepted_drafts_at, reading.num_steps) == (99, (91, 78), 2)
    assert (reading.running_requests, reading.gen_throughput, reading.source) == (
        4,
        Rounded.printed("26.9"),
        "engine 1",
    )


def test_vllm_before_0_9_left_the_bonus_token_out() -> None:
    """0.8.5's 1.46 taken for a length with the bonus token, 1.00 too low."""
    line = (
        "INFO 05-08 10:00:00 [metrics.py:86] SpecDecoding metrics: Draft acceptance rate: 48.7%, "
        "Mean acceptance length: 1.46, Accepted: 725 tokens, Drafted: 1488 tokens, "
        "Per-position acceptance rate: 0.615, 0.464, 0.383"
    )
    reading = only(line)
    assert reading.length_kind == "without_bonus"
    assert (reading.rounds, reading.accepted_drafts) == (496, 725)
    assert reading.length_with_bonus == Rounded.exactly(1 + 725 / 496)


def test_vllm_example_with_a_rate_for_the_target_itself() -> None:
    """k + 1 rates, the first always 1.00: the length would be one too high."""
    text = "num_drafts: 100\nnum_accepted_tokens: 120\nmean acceptance length: 2.20\nacceptance at token 0: 1.00\n"
    reading = only(text + "acceptance at token 1: 0.70\nacceptance at token 2: 0.50")
    assert [rate.value for rate in reading.accept_rate_at] == [0.7, 0.5]
    assert any("left out" in remark for remark in reading.remarks)


def test_vllm_request_metrics() -> None:
    """vLLM 0.32's answers with --per-request-spec-decode-metrics detailed: every round is there."""
    figures_of = {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 0.5,
        "acceptance_histogram": [1, 2, 1],
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 4,
        "num_draft_tokens": 8,
        "num_spec_tokens": 2,
        "per_step_accepted": [1, 0, 2, 1],
        "per_step_drafted": [2, 2, 2, 2],
    }
    answer = {
        "id": "cmpl-1",
        "choices": [{"token_ids": [4, 5, 6], "finish_reason": "length", "text": "accept len: 9.99"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 9},
        "metrics": {"speculative_decoding": figures_of, "tokens_per_second": 3.0},
    }
    (reading,) = read_object(answer)
    assert isinstance(reading, Reading)
    assert (reading.rounds, reading.accepted_drafts, reading.proposed_drafts, reading.num_steps) == (4, 4, 8, 2)
    assert (reading.histogram, reading.accepted_by_round) == ((1, 2, 1), (1, 0, 2, 1))
    assert (reading.output_ids, reading.completion_tokens, reading.finish_reason) == ((4, 5, 6), 9, "length")
    assert reading.remarks == ()


def test_sglang_openai_answer() -> None:
    """SGLang's sglext, which stands beside the choices."""
    details = {
        "spec_verify_ct": 4,
        "spec_num_correct_drafts": 6,
        "spec_num_proposed_drafts": 12,
        "spec_accept_rate": 0.5,
    }
    answer = {
        "id": "chat-1",
        "choices": [{"message": {"content": "…"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 11, "prompt_tokens_details": None},
        "sglext": {"spec_tokens_details": {**details, "spec_correct_drafts_histogram": [1, 1, 1, 1]}},
    }
    (reading,) = read_object(answer)
    assert isinstance(reading, Reading)
    assert (reading.rounds, reading.accepted_drafts, reading.histogram) == (4, 6, (1, 1, 1, 1))
    assert (reading.request_id, reading.num_draft_tokens, reading.finish_reason) == ("chat-1", 4, "stop")


@pytest.mark.parametrize(
    ("verify", "accepted", "proposed", "histogram"),
    [
        ("spec_verify_ct", "spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
        ("spec_verify_ct", "spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
        ("spec_verify_ct", "spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
    ],
)
def test_request_fields_of_every_era(verify: str, accepted: str, proposed: str, histogram: str) -> None:
    """A field that was renamed and is lost; a pretty-printed answer over many lines is read alike."""
    fields = {verify: 5, accepted: 7, proposed: 15, histogram: [1, 2, 1, 1], "completion_tokens": 13, "id": "x"}
    answer = {"text": 'he said: "}{"', "meta_info": fields, "output_ids": list(range(13))}
    for text in (json.dumps(answer), json.dumps(answer, indent=2), json.dumps([answer], indent=1), repr(answer)):
        reading = only(text)
        assert (reading.rounds, reading.accepted_drafts, reading.proposed_drafts) == (5, 7, 15)
        assert (reading.histogram, reading.output_ids) == ((1, 2, 1, 1), tuple(range(13)))
        assert reading.remarks == ()


def test_an_answer_cut_in_the_middle_gives_its_whole_fields() -> None:
    """An answer of a full disk, and a number that lost its last digits."""
    whole = json.dumps(
        {"meta_info": {"id": "x", "completion_tokens": 13, "spec_verify_ct": 5, "spec_num_correct_drafts": 71}}
    )
    reading = only(whole[: whole.index("71") + 1])
    assert (reading.rounds, reading.completion_tokens, reading.accepted_drafts) == (5, 13, None)
    assert "cut" in reading.format


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"spec_correct_drafts_histogram": [1, 2, 1]}, "The histogram holds 4 rounds and there were 5."),
        ({"spec_correct_drafts_histogram": [2, 1, 1, 1]}, "The histogram holds 6 accepted drafts and there were 7."),
        ({"spec_accept_rate": 0.9}, "The printed rate is 0.9 and accepted / proposed is 0.4667."),
        ({"completion_tokens": 20}, "20 tokens came out, and prefill and rounds give at most 13: some came otherwise."),
        ({"spec_num_correct_drafts": 16, "spec_correct_drafts_histogram": []}, "16 accepted drafts of 15 proposed."),
    ],
)
def test_contradictions_are_remarked(change: dict[str, Any], remark: str) -> None:
    """Figures that cannot all be true and are passed on in silence."""
    fields = {
        "spec_verify_ct": 5,
        "spec_num_correct_drafts": 7,
        "spec_num_proposed_drafts": 15,
        "completion_tokens": 13,
    }
    clean = only(json.dumps({"meta_info": {**fields, "spec_correct_drafts_histogram": [1, 2, 1, 1]}}))
    assert clean.remarks == ()
    assert (
        remark
        in only(json.dumps({"meta_info": {**fields, "spec_correct_drafts_histogram": [1, 2, 1, 1], **change}})).remarks
    )


def test_a_table_that_fits_no_formula_says_so() -> None:
    """tokenspeed #1305: 74.6 % beside 3.93."""
    reading = only("| model | accept len | accept rate |\n|---|---|---|\n| **K3** | **3.93** | **74.6%** |")
    assert (reading.accept_length, reading.accept_rate) == (Rounded.printed("3.93"), Rounded.printed("74.6%"))
    assert any("fits no known formula" in remark for remark in reading.remarks)


def test_joint_and_conditional_rates_of_a_card_are_told_apart() -> None:
    """Conditional rates summed as if they were joint, or the other way."""
    header = "| Model | accept_len | pos-0 | pos-1 | pos-2 |\n|---|---|---|---|---|\n"
    joint, conditional = (
        only(header + "| a | 2.30 | 0.633 | 0.404 | 0.264 |"),
        only(header + "| a | 2.30 | 0.633 | 0.638 | 0.653 |"),
    )
    assert len(joint.accept_rate_at) == 3
    assert (len(conditional.conditional_accept_rate_at), conditional.accept_rate_at) == (3, ())
    neither = only(header + "| a | 3.30 | 0.633 | 0.404 | 0.264 |")
    assert any(remark.startswith("1 + the joint rates") for remark in neither.remarks)


def test_impossible_figures_are_remarked() -> None:
    """A length below 1, and one that the tree cannot give."""
    assert any("below 1" in remark for remark in only("accept len: 0.80").remarks)
    deep = only('{"steps": 3, "topk": 1, "num_draft_tokens": 4, "acc_length": 4.6}')
    assert any("more than 3 drafts" in remark for remark in deep.remarks)


def test_sglang_server_info_of_dp_ranks() -> None:
    """Eight ranks of which the first counts."""
    info = {
        "internal_states": [{"avg_spec_accept_length": 2.5}, {"avg_spec_accept_length": 2.7}],
        "speculative_num_steps": 3,
    }
    readings = [one for one in read_object(info) if isinstance(one, Reading)]
    assert [(reading.source, reading.num_steps) for reading in readings] == [("DP0", 3), ("DP1", 3)]


def test_lines_are_read_as_they_come() -> None:
    """A reader that waits for the end of a log that has none."""
    reader = TextReader()
    assert len(reader.feed(DECODE)) == 1
    assert reader.feed("nothing of note") == []
    assert reader.feed("num_drafts: 10") == []
    assert reader.feed("num_accepted_tokens: 12") == []
    (ended,) = reader.finish()
    assert isinstance(ended, Reading)
    assert ended.rounds == 10


def test_what_users_write_is_no_evidence() -> None:
    """A prompt or an answer that speaks of accept lengths, logged with its request."""
    spoken = "we saw accept len: 3.50, accept rate: 0.90"
    receive = f"[2026-06-01 12:00:00] Receive: obj=GenerateReqInput(rid='a', text='{spoken}', stream=False)"
    answer = {"text": spoken, "meta_info": {"id": "a", "completion_tokens": 13, "spec_verify_ct": 5}}
    assert list(read([receive])) == []
    reading = only(json.dumps(answer))
    assert (reading.rounds, reading.scope) == (5, "request")
    assert only(json.dumps({**answer, "text": f"{DECODE}"})).rounds == 5


def test_log_lines_within_a_json_value_are_read_and_do_not_break_it() -> None:
    """A value that is written while the server logs, or one that never ends and swallows the log behind it."""
    answer = json.dumps({"meta_info": {"id": "a", "completion_tokens": 13, "spec_verify_ct": 5}}, indent=2).split("\n")
    mixed = [line for part in answer for line in (part, DECODE)]
    assert sorted(one.scope for one in read(mixed) if isinstance(one, Reading)) == [
        "request",
        *["window"] * len(answer),
    ]
    unfinished = ['{"meta_info": {', *[DECODE] * 3000]
    assert sum(isinstance(one, Reading) for one in read(unfinished)) == 3000


def test_a_window_without_rounds_has_no_length() -> None:
    """0.00 of an idle interval averaged in."""
    (line,) = read([DECODE.replace("2.50", "0.00").replace("0.16", "0.00")])
    assert isinstance(line, NotAcceptance)


@pytest.mark.parametrize(
    "begins", ["Decode batch. accept len: 2.50, ", "Per-position acceptance rate: ", "acc rate/pos = ("]
)
@pytest.mark.parametrize("goes_on", ["1", "1,", "1.", "a", "a ", "1e1", "a=1 ", "(", "1e1,"])
def test_no_line_takes_minutes(begins: str, goes_on: str) -> None:
    """Catches a pattern that tries every way to part a long row: 30 digits took minutes, 20,000 letters seconds."""
    for length in (40, 20_000):
        line = (
            "SpecDecoding metrics: Mean acceptance length: 2.50, statistics eagle3: " + begins + goes_on * length + "x"
        )
        begun = time.process_time()
        list(read([line]))
        assert time.process_time() - begun < 1.5
