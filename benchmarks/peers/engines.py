"""The real SGLang and vLLM on this CPU, end to end, and live decoding here, against replays of the same answers."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import statistics
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from engines import serve
from engines.pairs import prompts_of, write_pair
from engines.plan import OUTPUT_IDS, POINTS, Run
from peers.timing import Arm, interleaved, seconds
from peers.worker import PeerError
from peers.workloads import generated_tokens

import eagle3ref as e3
from eagle3ref.positions import replay_positions

REPEATS = 2  # of the prompts, after a first time that warms the engine up
LIVE, REPLAY = "decode, live", "replay_positions, walk"

# All prompts of a pair in flight at once, as an engine likes it best.
RUNS = (
    Run("sglang", "3-1-4", 3, 1, 4, OUTPUT_IDS, num_prompts=8, max_new_tokens=24),
    Run("sglang", "5-4-16", 5, 4, 16, OUTPUT_IDS, num_prompts=8, max_new_tokens=24),
    Run("vllm", "k3", 3, 1, 4, POINTS),
    Run("vllm", "k3-kimi", 3, 1, 4, POINTS, pair="kimi", num_prompts=8),
)
NOT_RUN = {"sglang/3-1-4-kimi": "latent attention there is Triton's, interpreted on a CPU, at seconds a round"}


def compare(run: Run, python: Path | None, folder: Path, repeats: int) -> dict[str, Any]:
    """Time of the engine, of live decoding here with the same pair, and of a replay of the answers.

    Raises:
        PeerError: the engine did not serve the run.
    """
    draft, trace, live = record(run, folder)
    tree = e3.TreeConfig(run.num_steps, run.topk, run.num_draft_tokens)
    tokens = generated_tokens(trace)
    walk = functools.partial(replay_positions, trace, draft, tree, positions="walk")
    arms = [
        Arm(LIVE, tokens, functools.partial(seconds, live)),
        Arm(REPLAY, tokens, functools.partial(seconds, walk)),
    ]
    result = {"run": str(run), "tree": str(tree), "arms": interleaved(arms, repeats)}
    if python is not None:
        result |= time_engine(run, python, folder, [sequence.answer.tolist() for sequence in trace])
    return result


def record(run: Run, folder: Path) -> tuple[e3.Eagle3Draft, e3.Trace, Any]:
    """The pair's draft, a trace of greedy answers of its target here, and live decoding of the same prompts."""
    target_path, draft_path = write_pair(run, folder)
    target = e3.load_target(target_path, dtype=torch.float32)
    draft = e3.load_draft(draft_path, target=target, capture_points=POINTS, dtype=torch.float32)
    prompts = [torch.tensor(prompt) for prompt in prompts_of(run.pair)[: run.num_prompts]]
    limit = run.max_new_tokens
    trace = e3.capture(target, prompts, folder / "trace", capture_points=POINTS, max_new_tokens=limit)
    tree = e3.TreeConfig(run.num_steps, run.topk, run.num_draft_tokens)

    def live() -> None:
        for prompt in prompts:
            e3.decode(target, draft, prompt, tree, max_new_tokens=limit)

    return draft, trace, live


def time_engine(run: Run, python: Path, folder: Path, expected: list[list[int]]) -> dict[str, Any]:
    """Tokens a second of the engine, the median of ``REPEATS`` times all prompts, and its start-up apart."""
    prompts = prompts_of(run.pair)[: run.num_prompts]
    target, draft = (str(path) for path in write_pair(run, folder))
    job = {"target": target, "draft": draft, "prompts": prompts * (1 + REPEATS), "stop_token_ids": []}
    paths = [folder / name for name in ("job.json", "result.json", "times.json")]
    paths[0].write_text(json.dumps(asdict(dataclasses.replace(run, concurrency=len(prompts))) | job))
    environment = serve.environment(run, python)
    environment |= {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), str(serve.HERE))))
    script = Path(__file__).with_name(f"time_{run.engine}.py")
    log = folder / "log.txt"
    try:
        with log.open("w") as words:
            command = [python, script, *paths]
            subprocess.run(command, stdout=words, stderr=words, env=environment, timeout=serve.PATIENCE, check=True)
    except (subprocess.SubprocessError, OSError) as error:
        last = log.read_text().strip().splitlines()[-1:] if log.exists() else []
        raise PeerError(f"{error}; {' '.join(last)}") from error
    times = json.loads(paths[2].read_text())
    answers = json.loads(paths[1].read_text())["answers"][: len(prompts)]
    tokens = sum(map(len, answers))
    return {
        "engine_tokens_per_s": tokens / statistics.median(times["seconds"][1:]),
        "engine_startup_s": times["startup_s"],
        "answers": len(answers),
        "answers_equal": sum(one == other for one, other in zip(answers, expected, strict=True)),
    }
