"""What the real servers of ``golden/engines/http`` said, and traces of the same target to hold it against."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from engines import comparison
from engines.http_plan import SERVERS, Server
from engines.http_recording import path_of
from engines.pairs import prompts_of

import eagle3ref as e3
from eagle3ref.servers import Reading, read_object
from eagle3ref.target.generate import generate

BY_NAME = {str(server): server for server in SERVERS}
CAPTURED = (0, 1, 2, 3, 4, 5, 6, 7, 8)  # every stream: a mis-wiring may have used any


@cache
def heading(server: Server) -> dict[str, Any]:
    return json.loads(text_of(server, "server.json"))


@cache
def exchanges(server: Server, name: str = "requests.jsonl") -> list[dict[str, Any]]:
    """Requests with their responses, in the order sent."""
    return [json.loads(line) for line in text_of(server, name).splitlines()]


def text_of(server: Server, name: str) -> str:
    return (path_of(server) / name).read_text()


@cache
def request_readings(server: Server) -> tuple[Reading, ...]:
    """One for each request, with the prompt that was sent."""
    return tuple(_reading(n, exchange) for n, exchange in enumerate(exchanges(server)))


def _reading(n: int, exchange: dict[str, Any]) -> Reading:
    (reading,) = (r for r in read_object(exchange["response"]) if isinstance(r, Reading))
    prompt = exchange["body"].get("input_ids") or exchange["body"]["prompt"]
    return replace(reading, request_id=f"request {n}", prompt_ids=tuple(prompt))


def vllm_answers(server: Server) -> tuple[Reading, ...]:
    """vLLM's answers as they are by default: ids, and no figures of acceptance."""
    return tuple(
        Reading(
            tool="vLLM",
            format="answer",
            scope="request",
            request_id=f"request {n}",
            prompt_ids=tuple(exchange["body"]["prompt"]),
            output_ids=tuple(exchange["response"]["choices"][0]["token_ids"]),
            completion_tokens=exchange["response"]["usage"]["completion_tokens"],
        )
        for n, exchange in enumerate(exchanges(server))
    )


@cache
def trace_of(server: Server) -> e3.Trace:
    """Greedy: the target's own text, as long as the longest answer. Sampled: the server's own answers."""
    if server.temperature == 0:
        return greedy_trace(server.num_prompts)
    return capture([exchange["response"]["output_ids"] for exchange in exchanges(server)])


@cache
def greedy_trace(num_prompts: int) -> e3.Trace:
    prompts = [torch.tensor(prompt) for prompt in prompts_of("llama")[:num_prompts]]
    answers = generate(comparison.target(), prompts, max_new_tokens=max(server.max_new_tokens for server in SERVERS))
    return capture([answer.tolist() for answer in answers])


def capture(answers: list[list[int]]) -> e3.Trace:
    prompts = [torch.tensor(prompt) for prompt in prompts_of("llama")]
    recorded = [e3.Prompt(str(i), prompts[i], torch.tensor(answer)) for i, answer in enumerate(answers)]
    folder = Path(tempfile.mkdtemp(prefix="eagle3ref-servers-")) / "trace"
    return e3.capture(comparison.target(), recorded, folder, capture_points=CAPTURED, final_hidden_state=True)
