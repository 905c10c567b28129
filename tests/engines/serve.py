"""Serves one run: its draft is written, the engine's script started, its result and log read."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engines.pairs import prompts_of, write_pair
from engines.plan import Engine, Run

HERE = Path(__file__).parent
PATIENCE = 1800  # seconds for one run
# The lines with acceptance figures, from where the engine's own words begin.
LOG_LINE: dict[Engine, str] = {"sglang": r"Decode batch.*accept len.*", "vllm": r"SpecDecoding metrics:.*"}


class EngineError(RuntimeError):
    """An engine did not serve a run; the text is the end of what it wrote."""


def serve(run: Run, python: Path, folder: Path) -> dict[str, Any]:
    """Serve ``run`` and return the engine's result, with the log lines added.

    Args:
        run: what to serve.
        python: of the engine's environment.
        folder: for the draft, the job, the result and the log; made when it does not exist.

    Raises:
        EngineError: no result within ``PATIENCE``.
    """
    target, draft = write_pair(run, folder)
    job = asdict(run) | {
        "target": str(target),
        "draft": str(draft),
        "prompts": prompts_of(run.pair)[: run.num_prompts],
        "stop_token_ids": [] if run.stop_token is None else [run.stop_token],
    }
    job_path, result_path, log_path = (folder / name for name in ("job.json", "result.json", "log.txt"))
    job_path.write_text(json.dumps(job))
    result_path.unlink(missing_ok=True)
    with log_path.open("w") as log:
        command = [python, HERE / f"run_{run.engine}.py", job_path, result_path]
        try:
            subprocess.run(command, stdout=log, stderr=log, env=environment(run, python), timeout=PATIENCE, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise EngineError(f"{run}: {error}\n{_last_error(log_path)}") from error
    result: dict[str, Any] = json.loads(result_path.read_text())
    result["log_lines"] = [line.strip() for line in re.findall(LOG_LINE[run.engine], log_path.read_text())]
    return result


def environment(run: Run, python: Path) -> dict[str, str]:
    """One thread; before SGLang its stand-in operators, before vLLM the OpenMP library that it was built for."""
    first = {"sglang": {"PYTHONPATH": str(HERE / "sglang_cpu")}, "vllm": {"LD_PRELOAD": _openmp(python)}}
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **first[run.engine]}


def _openmp(python: Path) -> str:
    return str(python.parent.parent / "lib" / "libiomp5.so")


def _last_error(log: Path) -> str:
    lines = [line for line in log.read_text().splitlines() if re.search(r"^[\w.: \[\]]*(Error|Exception)\b", line)]
    return "\n".join(lines[-3:])
