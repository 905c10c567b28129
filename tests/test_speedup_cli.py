"""``eagle3ref speedup`` from outside."""

import json
from pathlib import Path

import pytest
from test_speedup import COUNTS
from typer.testing import CliRunner, Result

from eagle3ref.cli import app

FOUNDING = ("--acceptance-length", "2.38", "--baseline-tps", "90", "--measured-tps", "61.26", "--no-cuda-graph")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["speedup", *map(str, arguments)], env={"COLUMNS": "160"})


def test_verdict_comes_first_and_is_the_exit_status() -> None:
    """Would catch a loss that a script takes for success, or a verdict that has to be looked for."""
    lost = run(*FOUNDING)
    assert lost.exit_code == 1
    assert lost.stdout.splitlines()[0] == "speculation is slower: 0.68 times the target alone, measured"
    assert "38.9 ms, as long as 3.50 target steps" in lost.stdout
    assert "CUDA graphs are off" in lost.stdout
    assert "not accounted for" in lost.stdout
    won = run("--acceptance-length", "2.50", "--target-step-ms", "11.1", "--overhead-ms", "1", "--cuda-graph")
    assert won.exit_code == 0
    assert won.stdout.startswith("speculation is faster")


def test_json_says_what_the_report_says(tmp_path: Path) -> None:
    """Would catch figures of the report that no program can have."""
    document = json.loads(run(*FOUNDING, "--json").stdout)
    assert document["verdict"] == "loses"
    assert document["break_even"]["value"] == pytest.approx(2.38 * 90 / 61.26)
    assert document["depths"] == []
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"counts": COUNTS.to_dict()}))
    times = ("--target-step-ms", 10, "--verify-step-ms", 16, "--draft-pass-ms", 1, "--overhead-ms", 2)
    document = json.loads(run("--counts", path, *times, "--json").stdout)
    assert [depth["num_steps"] for depth in document["depths"]] == [1, 2, 3]
    assert document["tree"] == "3/1/4"
    report = run("--counts", path, *times).stdout
    assert "fastest" in report
    assert "draft passes" in report


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((), "neither"),
        (("--acceptance-length", "2.5"), "neither"),
        (("--acceptance-length", "2.5", "--target-step-ms", "11", "--baseline-tps", "90"), "both"),
        (("--acceptance-length", "many", "--target-step-ms", "11"), "'many'"),
        (("--acceptance-length", "1/0", "--target-step-ms", "11"), "'1/0'"),
        (("--acceptance-length", "2", "--baseline-tps", "1e400"), "'1e400'"),
        (("--acceptance-length", "2.5", "--target-step-ms", "-1"), "target_step_ms = -1"),
        (("--acceptance-length", "4.5", "--target-step-ms", "11", "--num-steps", "3"), "length of 4.5"),
        (("--acceptance-length", "2.5", "--target-step-ms", "11", "--draft-pass-ms", "1"), "no tree"),
        (("--counts", "gone.json", "--target-step-ms", "11"), "No such file"),
    ],
)
def test_bad_input_ends_with_2_and_a_message(arguments: tuple[str, ...], found: str) -> None:
    """Would catch a traceback, or two options of which one is ignored."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert found in result.stderr
    assert "Traceback" not in result.stderr


def test_counts_have_their_tree_and_their_length(tmp_path: Path) -> None:
    """Would catch a tree or a length beside counts, which would be ignored or contradict them."""
    path = tmp_path / "counts.json"
    path.write_text(json.dumps(COUNTS.to_dict()))
    for extra in (("--num-steps", "3"), ("--acceptance-length", "2.5")):
        result = run("--counts", path, "--target-step-ms", "11", *extra)
        assert result.exit_code == 2
        assert "--counts" in result.stderr
