"""The command line from outside: what it prints where, and how it ends."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from eagle3ref import Trace, nano
from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.cli import app
from eagle3ref.nano import demo as nano_demo

ROOT = Path(__file__).resolve().parent.parent
NUM_PROMPTS = 5


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


COMMAND = "from eagle3ref.cli import main; main()"


def run_process(
    *arguments: object, code: str = COMMAND, encoding: str = "utf-8", stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """A process of its own, its output piped, in which nothing was imported before."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": encoding, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, env=environment, stdout=stdout, stderr=subprocess.PIPE, encoding="utf-8", check=False
    )


def write_prompts(path: Path, count: int = NUM_PROMPTS, token: int | None = None) -> Path:
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(90, (4 + i,), generator=generator).tolist() for i in range(count)]
    if token is not None:
        prompts[-1][0] = token
    path.write_text("".join(json.dumps({"id": f"p{i}", "tokens": ids}) + "\n" for i, ids in enumerate(prompts)))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a draft without embedding, prompts, and a greedy trace of them, all random and tiny."""
    root = tmp_path_factory.mktemp("cli")
    tiny.target_folder(root / "target")
    config, tensors = tiny.draft_parts()
    del tensors["embed_tokens.weight"]
    tiny.write_draft(root / "draft", config, tensors)
    write_prompts(root / "prompts.jsonl")
    result = capture(root)
    assert result.exit_code == 0, result.stderr
    return root


def capture(root: Path, prompts: str = "prompts.jsonl", output: str = "trace", *extra: object) -> Result:
    paths = (root / "target", root / prompts, "-o", root / output, "--draft", root / "draft")
    return run("capture", *paths, "--max-new-tokens", 24, "--dtype", "float32", *extra)


def test_capture_records_and_summarizes(folder: Path, tmp_path: Path) -> None:
    """Would catch options that do not reach the capture, or a summary of something else than what is on disk."""
    options = ("--temperature", 0.8, "--seed", 3, "--batch-size", 2, "--final-hidden-state")
    result = capture(folder, "prompts.jsonl", tmp_path / "sampled", *options)
    assert result.exit_code == 0, result.stderr
    trace = Trace.open(tmp_path / "sampled")
    assert (trace.header.sampling.temperature, trace.header.sampling.seed) == (0.8, 3)
    assert trace[0].final_hidden_state is not None
    assert f"{trace.num_tokens - sum(e.prompt_length for e in trace.entries)} generated" in result.stdout
    assert "temperature 0.8" in result.stdout
    assert "off-argmax share" in result.stdout


def test_capture_resumes_and_says_so(folder: Path, tmp_path: Path) -> None:
    """Would catch a resumed capture that starts over, or one that hides how much was there."""
    write_prompts(tmp_path / "two.jsonl", count=2)
    assert capture(folder, tmp_path / "two.jsonl", tmp_path / "trace").exit_code == 0
    result = capture(folder, "prompts.jsonl", tmp_path / "trace")
    assert result.exit_code == 0
    assert f"2 of {NUM_PROMPTS} sequences are in" in " ".join(result.stderr.split())
    assert Trace.open(tmp_path / "trace").ids == Trace.open(folder / "trace").ids


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--draft", "draft"], "capture points (2, 3, 4): eagle_config"),
        (["--capture-points", "1,5"], "capture points (1, 5): given by --capture-points"),
        ([], "capture points (2, 3, 4): the default (2, n // 2, n - 3) for 7 layers"),
    ],
)
def test_capture_says_where_its_points_come_from(
    folder: Path, tmp_path: Path, options: list[str], expected: str
) -> None:
    """Would catch a capture at other layers than the message claims: the fault that cost the team a week."""
    given = [str(folder / option) if option == "draft" else option for option in options]
    arguments = ("--max-new-tokens", 2, "--dtype", "float32", *given)
    result = run("capture", folder / "target", folder / "prompts.jsonl", "-o", tmp_path / "trace", *arguments)
    assert result.exit_code == 0, result.stderr
    assert expected in " ".join(result.stderr.split())
    points = re.search(r"capture points \((.*?)\)", result.stderr)
    assert points is not None
    assert str(Trace.open(tmp_path / "trace").header.capture_points) == f"({points.group(1)})"


def test_replay_json_is_strict_and_complete(folder: Path) -> None:
    """Would catch NaN or Infinity literals, chatter on stdout, or a document without its provenance."""
    result = run("replay", folder / "trace", folder / "draft", "--json")
    assert result.exit_code == 0, result.stderr

    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} is no JSON")

    document = json.loads(result.stdout, parse_constant=refuse)
    names = ["counts", "document_version", "expected_intervals", "intervals", "provenance", "rows", "sglang_log"]
    assert sorted(document) == names
    assert document["expected_intervals"] is None  # no final hidden states were recorded
    counts = AcceptanceCounts.from_dict(document["counts"])
    assert document["intervals"][0]["estimate"] == counts.acceptance_length
    assert len(document["intervals"]) == 2 + 2 * counts.tree.num_steps
    assert [era["accept_len"] for era in document["sglang_log"]] == [counts.acceptance_length] * 3
    provenance = document["provenance"]
    assert sorted(provenance["draft"]["sha256"]) == ["config.json", "model.safetensors"]
    assert provenance["trace"]["header"]["target"]["vocab_size"] == tiny.VOCAB
    assert provenance["draft"]["dtype"] == "float32"


def test_replay_of_one_prompt_has_null_ends(folder: Path, tmp_path: Path) -> None:
    """Would catch an infinite interval end that breaks the JSON of a single prompt, or the report of it."""
    write_prompts(tmp_path / "one.jsonl", count=1)
    assert capture(folder, tmp_path / "one.jsonl", tmp_path / "trace").exit_code == 0
    arguments = ("replay", tmp_path / "trace", folder / "draft")
    document = json.loads(run(*arguments, "--json").stdout)
    assert (document["intervals"][0]["low"], document["intervals"][0]["high"]) == (None, None)
    assert "unknown, of one prompt" in run(*arguments).stdout


def test_replay_finds_the_target_of_the_trace_or_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    """Would catch a replay that ignores --target, or a draft without embedding that runs without one."""
    shutil.copytree(folder / "trace", tmp_path / "trace")
    header = json.loads((tmp_path / "trace" / "trace.json").read_text())
    header["target"]["path"] = str(tmp_path / "gone")
    (tmp_path / "trace" / "trace.json").write_text(json.dumps(header))
    alone = run("replay", tmp_path / "trace", folder / "draft")
    assert alone.exit_code == 2
    assert "embed_tokens.weight" in alone.stderr
    assert run("replay", tmp_path / "trace", folder / "draft", "--target", folder / "target").exit_code == 0


def test_piped_output_is_plain(folder: Path) -> None:
    """Would catch colour codes in a log file, and notes that land in the report."""
    arguments = (folder / "trace", folder / "draft", "--num-steps", 5, "--topk", 4, "--num-draft-tokens", 16)
    done = run_process("replay", *arguments)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) > 80  # as wide as it needs, whatever terminal there is
    assert "\x1b" not in done.stdout + done.stderr
    assert "acceptance length" in done.stdout
    assert "embedding: the target's" in done.stderr
    assert "embedding: the target's" not in done.stdout


def test_warnings_of_a_draft_are_notes_once_each(folder: Path, tmp_path: Path) -> None:
    """Would catch a silent oddity, or Python's file-and-line form of it."""
    tiny.draft_folder(tmp_path / "draft")  # with an embedding of its own
    result = run("replay", folder / "trace", tmp_path / "draft")
    assert result.exit_code == 0
    assert result.stderr.count("warning: the draft's embedding differs") == 1
    assert "DraftWarning" not in result.stderr


def test_inspect_tells_the_three_kinds_apart(folder: Path) -> None:
    """Would catch a draft taken for a target (both may be LlamaForCausalLM), or a trace for neither."""
    for name, title in (("draft", "EAGLE-3 draft"), ("target", "target"), ("trace", "trace")):
        result = run("inspect", folder / name)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith(title)


def test_inspect_of_a_draft_without_target_says_what_is_missing(folder: Path) -> None:
    """Would catch a draft that cannot be looked at without its target, or a look that claims too much."""
    alone = run("inspect", folder / "draft").stdout
    assert "not checked" in alone
    assert "the embedding: the draft brings none" in " ".join(alone.split())
    assert f"{tiny.DRAFT_VOCAB} of the target's {tiny.VOCAB} tokens (50.0 %)" in alone
    together = run("inspect", folder / "draft", "--target", folder / "target").stdout
    assert "not checked" not in together
    assert "the target's (the draft brings none)" in together


def test_inspect_shows_a_broken_draft_and_fails(tmp_path: Path) -> None:
    """Would catch a look that stops at the first fault without showing anything, or one that calls it fine."""
    config, tensors = tiny.draft_parts()
    tensors["d2t"][3] = tiny.VOCAB
    tiny.write_draft(tmp_path / "draft", config, tensors)
    result = run("inspect", tmp_path / "draft")
    assert result.exit_code == 2
    assert "fc.weight" in result.stdout
    assert "reading d2t" in result.stderr
    assert "nothing found" not in result.stdout
    assert re.search(r"^odd +.*; expected ", result.stdout, re.MULTILINE)


def test_inspect_blames_only_what_is_broken(tmp_path: Path) -> None:
    """Would catch a sound vocabulary map called unreadable because the head is missing, or NaN told as a dtype."""
    for name, broken in (("lm_head.weight", None), ("norm.weight", torch.full((tiny.WIDTH,), torch.nan))):
        config, tensors = tiny.draft_parts()
        tensors = {**tensors, name: broken}
        folder = tiny.write_draft(tmp_path / name, config, {key: t for key, t in tensors.items() if t is not None})
        result = run("inspect", folder, "--target", tiny.target_folder(tmp_path / f"target of {name}"))
        assert result.exit_code == 2
        assert f"{tiny.DRAFT_VOCAB} of the target's {tiny.VOCAB} tokens" in result.stdout
        assert re.search(rf"^odd .*{name}.*expected", result.stdout, re.MULTILINE)
        assert "dtype torch" not in result.stdout


def test_inspect_takes_the_points_that_its_message_asks_for(tmp_path: Path) -> None:
    """Would catch a message that names an argument of Python, or an option that the command does not have."""
    ids = {"eagle_aux_hidden_state_layer_ids": [3, 4, 5]}
    folder = tiny.draft_folder(tmp_path / "draft", eagle_config=ids)
    assert "--capture-points" in run("inspect", folder).stderr
    found = run("inspect", folder, "--capture-points", "3,4,5")
    assert found.exit_code == 0, found.stderr
    assert "(3, 4, 5), given by the caller" in found.stdout
    assert re.search(r"^variant +plain EAGLE-3 *$", found.stdout, re.MULTILINE)


def altered_trace(folder: Path, path: Path, value: float) -> Path:
    """A copy of the trace with another number in its states, and sizes as they were."""
    shutil.copytree(folder / "trace", path)
    file = sorted(path.glob("*.safetensors"))[0]
    tensors = load_file(file)
    tensors["aux_hidden_states.3"][2, 0] = value
    size, name = file.stat().st_size, json.loads((path / "manifest.jsonl").read_text().splitlines()[0])["id"]
    save_file(tensors, file, metadata={"id": name})
    assert file.stat().st_size == size
    return path


def test_inspect_check_reads_every_byte(folder: Path, tmp_path: Path) -> None:
    """Would catch a --check that trusts sizes: one changed number must be found, and only by --check."""
    altered = altered_trace(folder, tmp_path / "trace", 0.123)
    assert run("inspect", folder / "trace", "--check").exit_code == 0
    assert run("inspect", altered).exit_code == 0
    checked = run("inspect", altered, "--check")
    assert checked.exit_code == 2
    assert "sha256" in checked.stderr


def test_bad_input_ends_with_2_and_one_message(folder: Path, tmp_path: Path) -> None:
    """Would catch a traceback, another exit status, or a message without one of its four parts, by family."""
    target, draft, trace, prompts = (folder / name for name in ("target", "draft", "trace", "prompts.jsonl"))
    capture_to = ("-o", tmp_path / "new", "--draft", draft)
    (tmp_path / "empty.jsonl").write_text("\n")
    write_prompts(tmp_path / "outside.jsonl", token=tiny.VOCAB)
    shutil.copytree(draft, tmp_path / "truncated")
    weights = tmp_path / "truncated" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    wide = tiny.draft_folder(tmp_path / "wide", target_hidden_size=2 * tiny.WIDTH)
    with_nan, other = altered_trace(folder, tmp_path / "nan", torch.nan), tmp_path / "other"
    assert run("capture", target, prompts, "-o", other, "--capture-points", "1,2,3").exit_code == 0
    cases = {
        "missing target": (("capture", tmp_path / "gone", prompts, *capture_to), "No such file"),
        "missing folder": (("inspect", tmp_path / "gone"), "no such folder"),
        "not a trace": (("replay", draft, draft), "a folder without trace.json"),
        "wrong capture points": (("replay", other, draft), "--capture-points 1,2,3,4"),
        "a point beyond": (("capture", target, prompts, "-o", tmp_path / "new", "--capture-points", "2,99"), "99"),
        "too many nodes": (("replay", trace, draft, "--topk", 2, "--num-draft-tokens", 99), "at most 11"),
        "topk 1": (("replay", trace, draft, "--num-draft-tokens", 8), "silently run 3/1/4"),
        "NaN": (("replay", with_nan, draft), "NaN or infinity in aux_hidden_states[3]"),
        "no prompts": (("capture", target, tmp_path / "empty.jsonl", *capture_to), "no prompt"),
        "token outside": (("capture", target, tmp_path / "outside.jsonl", *capture_to), f"token id {tiny.VOCAB}"),
        "truncated": (("replay", trace, tmp_path / "truncated"), "a complete file"),
        "no device": (("replay", trace, draft, "--device", "nonsense"), "Correct --device"),
        "no values": (
            ("capture", target, prompts, *capture_to, "--device", "meta"),
            "a device that this torch can use",
        ),
        "sampling": (("capture", target, prompts, *capture_to, "--top-p", 2), "top_p 2.0"),
        "another target": (("capture", target, prompts, "-o", tmp_path / "new", "--draft", wide), "another target"),
        "under a file": (("capture", target, prompts, "-o", prompts / "new"), "Not a directory"),
        "long name": (("capture", target, prompts, "-o", tmp_path / ("x" * 300)), "File name too long"),
        "long name too": (("inspect", "x" * 300), "File name too long"),
    }
    for name, (arguments, expected) in cases.items():
        result = run(*arguments)
        message = " ".join(result.stderr.split())
        assert result.exit_code == 2, (name, result.output)
        assert expected in message, (name, message)
        assert message.count("error: ") == 1, name
        assert re.search(r"error: .+ found .+ expected .+ do .+", message), (name, message)
        assert "Traceback" not in message, name
        assert result.stdout == "", name
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("arguments", [["capture"], ["replay", "a", "b", "--topk", "x"], ["nonsense"]])
def test_usage_errors_end_with_2(arguments: list[str]) -> None:
    """Would catch a handler that turns usage errors into something else."""
    assert run(*arguments).exit_code == 2


def test_capture_points_that_are_no_numbers_are_a_usage_error(folder: Path) -> None:
    """Would catch a ValueError's traceback."""
    result = run("replay", folder / "trace", folder / "draft", "--capture-points", "2;3")
    assert result.exit_code == 2
    assert "is no list of layers" in " ".join(result.stderr.split())


def test_interrupt_ends_with_130_and_says_that_it_resumes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch Ctrl-C that ends as success, as bad input, or with a traceback."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eagle3ref.trace.capture", interrupted)
    result = capture(folder, "prompts.jsonl", "interrupted")
    assert result.exit_code == 130
    assert "interrupted." in result.stderr
    assert "goes on from there" in " ".join(result.stderr.split())


def test_names_and_encodings_that_cannot_be_printed_do_not_matter(tmp_path: Path) -> None:
    """Would catch a UnicodeEncodeError at the end of the work, on a terminal or for a file name that is no text."""
    unprintable = tmp_path / os.fsdecode(b"\xff [/red]\xe9 \xe2\x82\xac")
    done = run_process("inspect", unprintable, encoding="ascii")
    assert done.returncode == 2, done.stderr
    assert "no such folder" in done.stderr
    assert "\\udcff [/red]\\udce9 \\u20ac" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_disagreement(folder: Path) -> None:
    """Would catch `eagle3ref inspect ... | head` ending with 1, which says that something was checked and is wrong."""
    reader, writer = os.pipe()
    os.close(reader)
    done = run_process("inspect", folder / "trace", stdout=writer)
    os.close(writer)
    assert done.returncode == 141, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_report_that_cannot_be_written_ends_with_2(folder: Path) -> None:
    """Would catch success or a traceback for a report that went into a full disk."""
    with Path("/dev/full").open("w") as full:
        done = run_process("inspect", folder / "trace", stdout=full.fileno())
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_its_libraries_the_command_says_what_to_install() -> None:
    """Would catch a traceback from an installation without the `cli` extra, and a library that needs it too."""
    absent = "import sys; sys.modules['typer'] = None; import eagle3ref; "
    done = run_process(code=absent + "from eagle3ref.__main__ import main; main()")
    assert done.returncode == 2
    assert done.stderr == "error: the command line needs typer. Install it: pip install 'eagle3ref[cli]'\n"


def test_another_target_in_the_place_of_the_recorded_one_is_not_taken(folder: Path, tmp_path: Path) -> None:
    """Would catch embeddings of whatever lies at the recorded path now: a lower number, and no word about it."""
    shutil.copytree(folder / "target", tmp_path / "target")
    prompts = write_prompts(tmp_path / "prompts.jsonl", count=1)
    assert run("capture", tmp_path / "target", prompts, "-o", tmp_path / "trace").exit_code == 0
    assert run("replay", tmp_path / "trace", folder / "draft").exit_code == 0
    config = tmp_path / "target" / "config.json"
    config.write_text(config.read_text() + " ")
    result = run("replay", tmp_path / "trace", folder / "draft")
    assert result.exit_code == 2
    assert "pass the target" in " ".join(result.stderr.split())


def test_unexpected_exception_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a blanket handler that hides a bug of ours behind a friendly sentence."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(sys.modules["eagle3ref.cli.inspect"], "inspect_path", broken)
    result = run("inspect", "anything")
    assert isinstance(result.exception, ZeroDivisionError)
    assert result.exc_info is not None
    assert result.exc_info[2] is not None
    assert "error:" not in result.stderr


def test_help_lists_the_commands() -> None:
    """Would catch a command that was never registered."""
    shown = run("--help").stdout
    for command in ("capture", "replay", "decode", "explain", "inspect", "demo"):
        assert command in shown


def test_version_is_the_package_version() -> None:
    """Would catch a version that is written down twice."""
    from eagle3ref import __version__

    assert run("--version").stdout.strip() == f"eagle3ref {__version__}"


def test_demo_on_a_tiny_pair(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a demo that leaves out a setting, a draft or a trace, or that forgets --keep."""
    data = tmp_path / "data"
    shutil.copytree(folder / "target", data / "target")
    shutil.copytree(folder / "draft", data / "draft")
    shutil.copy(folder / "prompts.jsonl", data / "prompts.jsonl")
    monkeypatch.setattr(nano, "_DATA", data)
    short = {answers: (sampling, 20) for answers, (sampling, _) in nano_demo._CAPTURES.items()}
    monkeypatch.setattr(nano_demo, "_CAPTURES", short)
    result = run("demo", "--keep", tmp_path / "kept")
    assert result.exit_code == 0, result.stderr
    assert "MLA" not in result.stdout
    tiny.draft_folder(data / "draft_mla", "mla")
    result = run("demo", "--keep", tmp_path / "kept")
    rows = re.findall(r"^(greedy|T=0\.8) +(GQA|MLA) +(\S+)", result.stdout, re.MULTILINE)
    settings = [("GQA", "3/1/4"), ("GQA", "5/4/16"), ("MLA", "3/1/4")]
    assert rows == [(answers, *setting) for answers in ("greedy", "T=0.8") for setting in settings]
    assert len(Trace.open(tmp_path / "kept" / "greedy")) == NUM_PROMPTS
    assert "4-grams are distinct" in " ".join(result.stdout.split())
