"""``eagle3ref diagnose`` on the command line: statuses, reports, flags, bad input."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from blind import CHAIN, NEW_TOKENS, served
from engines.drafts import TARGET
from faulty_server import log_line
from pair_worlds import World, world
from typer.testing import CliRunner

from eagle3ref.cli import app

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")
PROMPTS = 2
LINE = (
    "Decode batch, #running-req: 1, #token: 9, token usage: 0.01, accept len: {:.2f}, accept rate: {:.2f}, "
    "cuda graph: True, gen throughput (token/s): 60.0, #queue-req: 0\n"
)


@cache
def here() -> World:
    return world("llama", PROMPTS, NEW_TOKENS)


def answers(folder: Path, *faults: str) -> Path:
    """Request fields of a server, one JSON object a line, as a client would keep them."""
    path = folder / f"{'-'.join(faults) or 'right'}.jsonl"
    rows = [
        {"id": name, "output_ids": one.tokens, "meta_info": {"id": name, **one.meta_info()}}
        for name, one in zip(here().trace.ids, served("llama", PROMPTS, CHAIN, faults), strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(*words: str | Path, status: int) -> str:
    trace, draft = here().trace.path, here().folder
    result = CliRunner().invoke(app, ["diagnose", str(trace), str(draft), *map(str, words)], env={"COLUMNS": "200"})
    assert result.exit_code == status, (result.stdout, result.stderr)
    return result.stdout


def test_statuses(tmp_path: Path) -> None:
    """Catches a fault that ends with status 0, a right server that does not, and a report without what matters."""
    settings = ("--target", TARGET, "--num-steps", "3")
    assert "as it should be" in run(answers(tmp_path), *settings, status=0)
    assert run(answers(tmp_path), "--target", TARGET, status=2) == ""  # nothing says what tree it runs
    report = run(answers(tmp_path, "capture-third-plus-1"), *settings, status=1)
    for part in ("cause named", "capture-third-plus-1", "2,4,6", "What to do", "plain replays"):
        assert part in report
    log = tmp_path / "log.txt"
    log.write_text(log_line(served("llama", PROMPTS, CHAIN, ())))
    assert "cannot tell" in run(log, *settings, status=3)


def test_json_is_complete(tmp_path: Path) -> None:
    """Catches a value that no JSON reader takes, and a report that tells more than its JSON."""
    words = (answers(tmp_path, "eagle-flag"), "--target", TARGET, "--num-steps", "3", "--json")
    document = json.loads(run(*words, status=1))
    assert document["leading"][0] == "eagle-flag"
    assert document["ranked"][0]["equal_requests"] == PROMPTS
    assert document["cost"]["replays"] <= 25
    assert {"verdict", "sentence", "next", "runtime", "left_out", "signs"} <= set(document)


def test_the_command_decides_before_any_replay(tmp_path: Path) -> None:
    """Catches server flags that are lost behind the evidence, and a replay of a dead draft although they say why."""
    log = tmp_path / "log.txt"
    log.write_text(LINE.format(1, 0))
    flags = ("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1")
    report = run(log, "--target", TARGET, "--engine", "sglang==0.5.23", *flags, status=1)
    assert "before any replay" in report
    assert "--speculative-algorithm EAGLE3" in report
    assert "plain replays" not in report


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--symptom", "gremlins"], "decays"),
        (["--num-draft-tokens", "9"], "num_draft_tokens"),
        (["--engine", "sglang==9"], "sglang"),
    ],
)
def test_bad_input(tmp_path: Path, words: list[str], text: str) -> None:
    """Catches a traceback, a status other than 2, and a message that does not say what would do."""
    result = CliRunner().invoke(
        app,
        [
            "diagnose",
            str(here().trace.path),
            str(here().folder),
            str(answers(tmp_path)),
            "--target",
            str(TARGET),
            *words,
        ],
        env={"COLUMNS": "200"},
    )
    assert result.exit_code == 2
    assert text in result.stderr + result.stdout


def test_evidence_without_figures(tmp_path: Path) -> None:
    """Catches a file that says nothing of acceptance and is diagnosed all the same, or ends in a traceback."""
    log = tmp_path / "log.txt"
    log.write_text("Prefill batch. #new-seq: 1, #new-token: 12, #cached-token: 0, #running-req: 0, #queue-req: 0\n")
    run(log, "--target", TARGET, status=2)
    run(status=2)
