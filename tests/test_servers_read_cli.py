"""`eagle3ref read`: what it says of the founding log, of each kind of statement, and of what it does not know."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from eagle3ref.cli import app
from eagle3ref.servers import Evidence

GOLDEN = Path(__file__).parent / "golden"
DOCS = Path(__file__).parents[1] / "docs" / "reading.md"
FOUNDING = "".join(
    f"[2026-02-01 10:00:0{i} TP0] Decode batch, #running-req: 1, #token: 512, token usage: 0.00, accept len: {length}, "
    f"accept rate: {rate}, cuda graph: False, gen throughput (token/s): {speed}, #queue-req: 0, \n"
    for i, (length, rate, speed) in enumerate(
        (("2.50", "0.16", "61.26"), ("2.38", "0.15", "59.69"), ("2.55", "0.16", "61.00"))
    )
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["read", *map(str, arguments)], env={"COLUMNS": "160"})


@pytest.fixture
def founding(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_text(FOUNDING, encoding="utf-8")
    return path


def test_founding_log(founding: Path) -> None:
    """The week that began it: 0.16 is no acceptance rate, and the graphs are off."""
    result = run(founding)
    assert result.exit_code == 0
    said = " ".join(result.output.split())
    assert "2.477 [2.472, 2.482] tokens a round" in said
    assert (
        "length / num_draft_tokens with num_draft_tokens 16; accepted / verified drafts is 0.098 [0.098, 0.099]" in said
    )
    assert "CUDA graphs off in all of the lines" in said
    assert "rounds ~120 [60, 240]: 40 decode steps" in said


def test_settings_and_version_are_used(founding: Path) -> None:
    """Options that are taken and change nothing."""
    as_json = [json.loads(run(founding, "--json", *words).output) for words in ([], ["--num-draft-tokens", "10"])]
    assert [answer["rate"]["verdict"] for answer in as_json] == ["one", "none"]
    assert json.loads(run(founding, "--json", "--engine", "sglang==0.5.23").output)["rate"]["verdict"] == "none"
    assert run(founding, "--engine", "sglang==0.0.1").exit_code == 2
    assert run(founding, "--num-steps", "0").exit_code == 2
    impossible = run(founding, "--num-steps", "5", "--num-draft-tokens", "3")
    assert impossible.exit_code == 2
    assert "a root and at least one draft for each step" in impossible.output
    for wrong in (("--num-draft-tokens", "10"), ("--engine", "sglang==0.5.23")):
        said = " ".join(run(founding, *wrong).output.split())
        assert "Without the settings that were given: The rate is length / num_draft_tokens with" in said


def test_json_holds_what_the_report_says(founding: Path) -> None:
    """A figure that only people can read."""
    answer = json.loads(run(founding, "--json").output)
    assert answer["best"]["length"] == {
        "value": pytest.approx(2.4767, abs=1e-4),
        "low": pytest.approx(2.4717, abs=1e-4),
    } | {"high": pytest.approx(2.4817, abs=1e-4)}
    assert (answer["best"]["rounds"]["value"], answer["best"]["rounds"]["is_counted"]) == (120, False)
    assert answer["rate"]["readings"][0]["num_draft_tokens"] == [16]
    assert answer["no_graph_share"] == 1
    assert [group["count"] for group in answer["groups"]] == [3]


def test_real_engines() -> None:
    """A whole folder of recordings in one table."""
    result = run(GOLDEN / "engines" / "sglang" / "4-4-8.json", GOLDEN / "engines" / "vllm" / "k3.json")
    assert result.exit_code == 0
    for words in ("SGLang meta_info", "SGLang decode log", "vLLM SpecDecoding log", "vLLM counters", "joint rates"):
        assert words in result.output
    assert "2.723" in result.output


def test_every_sample_at_once(tmp_path: Path) -> None:
    """A format that the report cannot print."""
    samples = [json.loads(line) for line in (GOLDEN / "log_samples.jsonl").read_text(encoding="utf-8").splitlines()]
    for sample in samples:
        (tmp_path / f"{sample['id']}.txt").write_text(sample["raw"], encoding="utf-8")
    result = run(tmp_path)
    assert result.exit_code == 0
    known = ("llama.cpp slot log", "trtllm-bench", "dead draft", "invalid tree warning", "model card", "No one formula")
    for words in known:
        assert words in result.output, words
    assert json.loads(run(tmp_path, "--json").output)["not_acceptance"]["SGLang: prefill log"] == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('vllm:spec_decode_num_drafts_total{engine="0"} -5\n', "only 1 vLLM: metrics that could not be read"),
        ('vllm:spec_decode_num_drafts_total{engine="0"} NaN\n', "only 1 vLLM: metrics that could not be read"),
        ('vllm:spec_decode_num_drafts_total{engine="0"} 1.5\n', "only 1 vLLM: metrics that could not be read"),
        ("nothing here\n", "no line of a known format"),
        ("", "an empty file"),
        ('{"id": "p0", "response": {"output_ids": [1, 2', "only 1 JSON: value that is cut off"),
        (
            "[2026-01-01 10:00:00] Prefill batch, #new-seq: 1, #new-token: 4, #cached-token: 0\n",
            "only 1 SGLang: prefill",
        ),
    ],
)
def test_nothing_to_read_is_bad_input(tmp_path: Path, text: str, found: str) -> None:
    """An empty table and status 0 for a log without speculation."""
    path = tmp_path / "server.log"
    path.write_text(text, encoding="utf-8")
    result = run(path)
    assert result.exit_code == 2
    assert found in result.output
    assert run(tmp_path / "none").exit_code == 2
    assert run(path, path, "--follow").exit_code == 2


@pytest.mark.parametrize(
    "text",
    [
        "Decode batch, #running-req: 1, accept len: -1.00, accept rate: -0.10, cuda graph: False\n",
        'vllm:spec_decode_num_drafts_total{engine="0"} 0\nvllm:spec_decode_num_accepted_tokens_total{engine="0"} 0\n',
        'sglang:spec_accept_length{model_name="m"} -1\n',
        '{"meta_info": {"id": "a", "spec_verify_ct": 0, "spec_accept_length": 0, "completion_tokens": 1}}\n',
    ],
)
def test_no_round_gives_no_length(tmp_path: Path, text: str) -> None:
    """A length of -1, or of no round at all, that is pooled like any other."""
    path = tmp_path / "said.txt"
    path.write_text(text, encoding="utf-8")
    result = run(path)
    assert result.exit_code == 0
    assert "length none: what was read does not determine one" in " ".join(result.output.split())
    assert json.loads(run(path, "--json").output)["best"] is None


def test_a_narrow_terminal_has_room_for_the_figures(founding: Path) -> None:
    """A column of meanings that is 12 characters wide and 8 lines high."""
    narrow = CliRunner().invoke(app, ["read", str(founding)], env={"COLUMNS": "80"}).output.splitlines()
    assert next(i for i, line in enumerate(narrow) if not line.strip()) <= 4
    assert "~120 [60, 240]" in narrow[1]
    assert max(map(len, narrow)) <= 80


def test_docs_show_what_is_printed(founding: Path) -> None:
    """Output in the documentation that no command prints any more."""
    shown = DOCS.read_text(encoding="utf-8").split("```console\n$ eagle3ref read server.log\n")[1].split("```")[0]
    printed = run(founding).output
    squeezed = [" ".join(line.split()) for line in printed.splitlines()]
    for line in filter(None, (" ".join(line.split()) for line in shown.splitlines())):
        assert line in squeezed


def test_what_is_given_and_contradicts_is_named(founding: Path) -> None:
    """A line that fits nothing, and nobody says that it is the version or the setting that was given."""
    said = " ".join(run(founding, "--engine", "sglang==0.5.23").output.split())
    assert "printed by SGLang 0.5.5.post3 to 0.5.10 (PR #13212); --engine says sglang==0.5.23" in said
    said = " ".join(run(founding, "--num-draft-tokens", "10").output.split())
    assert "they are of 16; --num-draft-tokens says 10" in said
    said = " ".join(run(founding, "--engine", "sglang==0.5.8", "--num-draft-tokens", "8").output.split())
    assert "--num-draft-tokens says 8" in said
    assert "--engine says" not in said  # it is right


@pytest.mark.parametrize("each", [2, 6])
def test_lines_of_two_settings_are_no_unknown_formula(tmp_path: Path, each: int) -> None:
    """A mixed log called unknown, when each line is well known."""
    path = tmp_path / "server.log"
    pairs = [(length, n) for i in range(each) for length, n in ((2.5 + i * 0.05, 16), (2.1 + i * 0.07, 4))]
    line = "Decode batch, #running-req: 1, accept len: {:.2f}, accept rate: {:.2f}, cuda graph: True\n"
    path.write_text("".join(line.format(length, length / n) for length, n in pairs), encoding="utf-8")
    said = " ".join(run(path).output.split())
    assert f"No one formula and setting fits the {2 * each} lines." in said
    assert "Read them apart" in said


def made_folder(folder: Path, **files: bytes) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder


def test_what_is_no_evidence_is_named(tmp_path: Path) -> None:
    """A checkpoint, an empty folder and a binary file all told to switch speculation on."""
    sent = b'{"event": "sent", "id": "p0", "prompt_ids": [1]}\n'
    cases = {
        "a folder without files": made_folder(tmp_path / "empty"),
        "a checkpoint, not evidence": made_folder(tmp_path / "draft", config_json=b"{}", model_safetensors=b""),
        "a trace, not evidence": made_folder(tmp_path / "trace", trace_json=b"{}", manifest_jsonl=b""),
        "a journal without its server.json": made_folder(tmp_path / "journal", requests_jsonl=sent),
        "answers without figures of acceptance": GOLDEN / "engines/http/vllm/k3/requests.jsonl",
        "a binary file": made_folder(tmp_path / "data", weights_bin=b"\x01\x00\x02\x00" * 99) / "weights.bin",
    }
    for found, path in cases.items():
        result = run(path)
        assert (result.exit_code, "its figures are logged" in result.output) == (2, False), found
        assert found in result.output


def test_a_file_that_ends_too_early_gives_what_is_whole(tmp_path: Path) -> None:
    """A download that broke off: all of it refused, or its last answer dropped without a word."""
    recorded = (GOLDEN / "engines/http/sglang/3-1-4-overlap/requests.jsonl").read_bytes().splitlines(keepends=True)[:3]
    whole = b"".join(recorded[:2])
    as_list = b"[" + b",".join(line.strip() for line in recorded) + b"]"
    for name, data in {
        "in the prompt": whole + recorded[2][:40],
        "in the answer": whole + recorded[2][:600],
        "of a list": as_list[: len(whole) + 300],
    }.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(data)
        result = run(path)
        assert result.exit_code == 0, result.output
        assert "Cut off, and read as far as" in result.output, name
        requests = [r for r in Evidence.read(path).requests if r.format == "meta_info"]
        assert len(requests) == 2, name
        assert all(r.prompt_ids and r.output_ids for r in requests), name
