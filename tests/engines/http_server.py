"""Starts an engine's own HTTP server on this CPU, waits until it answers, and ends it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from engines.drafts import TARGET, write_draft
from engines.http_plan import Server
from engines.serve import HERE, EngineError, environment
from engines.sglang_cpu import gpu_branches

PATIENCE = 600  # seconds until it answers
MODEL = "pair"  # the name it is served under
LOG_INTERVAL = 2  # seconds between two of vLLM's lines
SGLANG_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
    "TRITON_INTERPRET": "1",
}
VLLM_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOG_STATS_INTERVAL": str(LOG_INTERVAL),
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Serving:
    """A server that answers.

    Args:
        url: without a path.
        log: file of what it prints, errors too; it grows.
        rounds: of SGLang: file with every batch of rounds that was verified (``sgl_kernel/rounds.py``).
        target: folder of the target that it serves, with a tokenizer.
    """

    url: str
    log: Path
    rounds: Path
    target: Path


@contextmanager
def serving(server: Server, python: Path, folder: Path) -> Iterator[Serving]:
    """The server, for the length of a ``with`` block.

    Args:
        server: what to start.
        python: of the engine's environment.
        folder: for target, draft and log; made when it does not exist.

    Raises:
        EngineError: it ended, or did not answer within ``PATIENCE``; with the end of what it printed.
    """
    target = write_target(folder / "target")
    draft = write_draft(server.ids, server.variant, folder / "draft")
    port = free_port()
    made = Serving(f"http://127.0.0.1:{port}", folder / "log.txt", folder / "rounds.jsonl", target)
    made.rounds.touch()
    arguments = {"sglang": _sglang_arguments, "vllm": _vllm_arguments}[server.engine](server, target, draft, port)
    with started([python, *arguments, *server.flags], made, environment(server, python) | variables(server, made)):
        yield made


@contextmanager
def started(command: Sequence[str | Path], made: Serving, surroundings: dict[str, str]) -> Iterator[None]:
    """Run the command of a server until the ``with`` block ends; it has answered when the block begins."""
    with made.log.open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=made.log.parent,
            env=surroundings,
            start_new_session=True,  # so that its workers end with it
        )
    try:
        _wait(process, made)
        yield
    finally:
        _end(process)


def write_target(folder: Path) -> Path:
    """The committed target with a tokenizer, without which some endpoints do not work: token i is the word ``ti``."""
    shutil.copytree(TARGET, folder)
    size = json.loads((TARGET / "config.json").read_text())["vocab_size"]
    tokenizer = Tokenizer(WordLevel({f"t{i}": i for i in range(size)}, unk_token="t0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "t1", "model_max_length": 512}
    settings["chat_template"] = "{% for message in messages %}{{ message.content }} {% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def variables(server: Server, made: Serving) -> dict[str, str]:
    """The environment variables of the server's processes, and of the engine's other programs."""
    if server.engine == "vllm":
        return VLLM_VARIABLES
    asked = {gpu_branches.TARGET_ONLY: server.target_only, gpu_branches.OVERLAP: server.overlap}
    taken = {name: "1" for name, wanted in asked.items() if wanted}
    return SGLANG_VARIABLES | {"EAGLE3REF_ROUNDS": str(made.rounds)} | taken


def _sglang_arguments(server: Server, target: Path, draft: Path, port: int) -> list[str]:
    given = {
        "model-path": target,
        "served-model-name": MODEL,
        "port": port,
        "device": "cpu",
        "dtype": "float32",
        "max-total-tokens": 8192,
        "max-running-requests": max(server.concurrency, 2),
        "mem-fraction-static": 0.3,
        "random-seed": 0,
        "prefill-attention-backend": server.attention,
        "decode-attention-backend": server.attention,
        "speculative-algorithm": server.algorithm,
        "speculative-draft-model-path": draft,
        "speculative-num-steps": server.num_steps,
        "speculative-eagle-topk": server.topk,
        "speculative-num-draft-tokens": server.num_draft_tokens,
    }
    options = [f"--{name}={value}" for name, value in given.items()]
    return [str(HERE / "serve_sglang.py"), *options, "--disable-cuda-graph", "--enable-metrics"]


def _vllm_arguments(server: Server, target: Path, draft: Path, port: int) -> list[str]:
    speculative = {"method": server.algorithm, "model": str(draft), "num_speculative_tokens": server.num_steps}
    given = {
        "model": target,
        "served-model-name": MODEL,
        "host": "127.0.0.1",
        "port": port,
        "dtype": "float32",
        "max-model-len": 512,
        "max-num-seqs": max(server.concurrency, 2),
        "speculative-config": json.dumps(speculative),
    }
    options = [f"--{name}={value}" for name, value in given.items()]
    return ["-m", "vllm.entrypoints.openai.api_server", *options, "--enforce-eager"]


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait(process: subprocess.Popen[bytes], made: Serving) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{made.url}/health", timeout=30).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    raise EngineError("the server did not answer:\n" + "\n".join(made.log.read_text().splitlines()[-30:]))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the server's own process group to end, and after a while make it."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
            process.wait(timeout=20)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
