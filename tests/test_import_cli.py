"""``eagle3ref import`` from outside: what it says where, how it ends, what it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from dump_layouts import modelopt_vllm, specforge, speculators
from tiny import VOCAB, target_folder
from typer.testing import CliRunner, Result

import eagle3ref as e3
from eagle3ref.cli import app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, three dumps of one run of it, and the prompts of that run."""
    root = tmp_path_factory.mktemp("import")
    target = e3.load_target(target_folder(root / "target"), dtype=torch.float32)
    generator = torch.Generator().manual_seed(7)
    prompts = [e3.Prompt(f"p{i}", torch.randint(VOCAB - 3, (5,), generator=generator)) for i in range(3)]
    points = range(8)
    trace = e3.capture(
        target, prompts, root / "recorded", capture_points=points, max_new_tokens=12, final_hidden_state=True
    )
    specforge(root / "specforge", trace)
    speculators(root / "speculators", trace)
    modelopt_vllm(root / "modelopt", trace)
    lines = [json.dumps({"id": prompt.id, "tokens": prompt.tokens.tolist()}) + "\n" for prompt in prompts]
    (root / "prompts.jsonl").write_text("".join(lines))
    return root


def test_says_what_it_believes_then_shows_the_trace(root, tmp_path):
    """Catches beliefs on stdout, where the report belongs, and a report of something else than the trace."""
    result = run("import", root / "specforge", "-o", tmp_path / "t", "--target", root / "target")
    assert result.exit_code == 0, result.stderr
    for told in (
        "format specforge: 3 sequences.",
        "capture points (2, 3, 4): SpecForge takes the outputs of layers 1, n // 2 - 1 and n - 4",
        "in that order, is not checked; eagle3ref align proves it.",
        "final state: behind the final norm",
        "sampling: taken as greedy; no dump says.",
    ):
        assert told in result.stderr
        assert told not in result.stdout
    assert "sglang under specforge, imported by eagle3ref" in result.stdout
    assert "(2, 3, 4), in float32" in result.stdout
    assert e3.Trace.open(tmp_path / "t").ids == tuple(f"rows_0-2000/data_{i}" for i in range(3))


def test_prompts_file_tells_where_answers_begin(root, tmp_path):
    """Catches --prompts read and not used, and an exit status of 0 without them."""
    arguments = ("import", root / "speculators", "-o", tmp_path / "t", "--target", root / "target")
    result = run(*arguments)
    assert result.exit_code == 2
    assert "where the prompt ends" in result.stderr
    assert "--prompts" in result.stderr
    assert not (tmp_path / "t").exists()
    result = run(*arguments, "--prompts", root / "prompts.jsonl", "--temperature", 0.6, "--top-p", 0.95)
    assert result.exit_code == 0, result.stderr
    trace = e3.Trace.open(tmp_path / "t")
    assert [sequence.prompt_length for sequence in trace] == [5, 5, 5]
    assert (trace.header.sampling.temperature, trace.header.sampling.top_p) == (0.6, 0.95)
    assert "taken as greedy" not in result.stderr


def test_options_reach_the_import(root, tmp_path):
    """Catches an option that is parsed and dropped."""
    arguments = ("import", root / "modelopt", "--target", root / "target", "-o")
    result = run(*arguments, tmp_path / "a", "--capture-points", "6,5,3", "--final-state", "drop")
    assert result.exit_code == 0, result.stderr
    trace = e3.Trace.open(tmp_path / "a")
    assert trace.header.capture_points == (3, 5, 6)
    assert trace[0].final_hidden_state is None
    assert "capture points (6, 5, 3): given." in result.stderr
    result = run(*arguments, tmp_path / "b", "--format", "specforge")
    assert result.exit_code == 2
    assert "*.ckpt" in result.stderr
    result = run(*arguments, tmp_path / "b", "--capture-points", "2,x")
    assert result.exit_code == 2


def test_damage_is_refused_then_left_out(root, tmp_path):
    """Catches a traceback, an exit status of 0, and --skip-damaged that skips everything."""
    dump = tmp_path / "dump"
    specforge(dump, e3.Trace.open(root / "recorded"))
    bad = dump / "rows_0-2000" / "data_1.ckpt"
    bad.write_bytes(bad.read_bytes()[:100])
    arguments = ("import", dump, "-o", tmp_path / "t", "--target", root / "target")
    result = run(*arguments)
    assert result.exit_code == 2
    assert "1 of 3 sequences that cannot be used: 'rows_0-2000/data_1'" in result.stderr
    assert not (tmp_path / "t").exists()
    result = run(*arguments, "--skip-damaged")
    assert result.exit_code == 0, result.stderr
    assert "1 of 3 sequences is left out" in result.stderr
    assert len(e3.Trace.open(tmp_path / "t")) == 2


def test_half_an_import_does_not_pass_for_a_whole_one(root, tmp_path):
    """Catches a killed import whose trace is sound, and looks like all of the dump."""

    def killed(_: e3.RecordedSequence) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        e3.import_dump(root / "specforge", tmp_path / "t", target=root / "target", on_sequence=killed)
    assert "1 of 3 that were to be imported" in run("inspect", tmp_path / "t").stdout
    e3.import_dump(root / "specforge", tmp_path / "t", target=root / "target")
    assert "were to be imported" not in run("inspect", tmp_path / "t").stdout


@pytest.mark.parametrize("name", ["config.json", "nowhere"])
def test_paths_that_are_no_dump_or_no_target_end_with_2(name, root, tmp_path):
    """Catches a traceback for a path that was mistyped."""
    result = run("import", root / "target" / name, "-o", tmp_path / "t", "--target", root / "target")
    assert result.exit_code == 2
    result = run("import", root / "specforge", "-o", tmp_path / "t", "--target", tmp_path)
    assert result.exit_code == 2
    assert "config.json" in result.stderr
    result = run("import", root / "specforge", "-o", root / "target", "--target", root / "target")
    assert result.exit_code == 2
    assert "not a trace" in result.stderr
