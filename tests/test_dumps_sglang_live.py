"""The real SGLang and vLLM, started here to hand over hidden states: as they were recorded."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from engines.dump_plan import DUMPS, DumpRun
from engines.dump_recording import path_of, record_dump
from engines.environment import python_of
from recorded_dumps import CONFIG
from safetensors.torch import load_file

from eagle3ref.dumps import read_dump
from eagle3ref.dumps.sglang import read_sglang_folder
from eagle3ref.trace import Prompt

pytestmark = pytest.mark.engine


def lines(folder: Path) -> list[dict[str, Any]]:
    text = gzip.decompress((folder / "responses.jsonl.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def recorded(run: DumpRun, tmp_path: Path) -> Path:
    python = python_of(run.engine, Path(os.environ["EAGLE3REF_TEST_ENGINES"]).resolve())
    record_dump(run, python, tmp_path / "dump")
    return tmp_path / "dump"


@pytest.mark.parametrize("run", [run for run in DUMPS if run.engine == "sglang" and run.name != "error"], ids=str)
def test_sglang_hands_over_what_was_recorded(run: DumpRun, tmp_path: Path) -> None:
    """Catches golden files that no engine wrote, and a release under the same number that dumps other rows."""
    made, golden = recorded(run, tmp_path), path_of(run)
    prompts = None
    if run.hook:
        asked = [(line["request"]["input_ids"], line["response"]["output_ids"]) for line in lines(made)]
        prompts = {f"request_{i}": Prompt("", *map(torch.tensor, both)) for i, both in enumerate(asked)}
    reader = read_sglang_folder if run.hook else lambda path, target, _: read_dump(path, target=target)
    for ours, theirs in zip(reader(made, CONFIG, prompts), reader(golden, CONFIG, prompts), strict=True):
        assert ours.tokens is not None
        assert theirs.tokens is not None
        assert torch.equal(ours.tokens, theirs.tokens)
        assert (ours.first_row, ours.prompt_length) == (theirs.first_row, theirs.prompt_length)
        for label, states in theirs.states.items():
            assert torch.equal(ours.states[label], states)


@pytest.mark.parametrize("run", [run for run in DUMPS if run.engine == "vllm"], ids=str)
def test_vllm_writes_what_was_recorded(run: DumpRun, tmp_path: Path) -> None:
    """The same for the files of vLLM's connector."""
    made, golden = recorded(run, tmp_path), path_of(run)
    files = sorted(golden.glob("hs_*.safetensors"))
    assert [file.name for file in sorted(made.glob("hs_*"))] == [file.name for file in files]
    for file in files:
        ours, theirs = load_file(made / file.name), load_file(file)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
