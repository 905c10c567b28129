"""The HTTP servers: how each is started, and what is wrong with those that are wired wrongly.

Their recordings are in ``golden/engines/http``, one folder for each, under the engine's and the server's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engines.plan import OUTPUT_IDS, POINTS, Run


@dataclass(frozen=True)
class Server(Run):
    """A run that is served over HTTP.

    Args:
        algorithm: ``--speculative-algorithm`` of SGLang, ``method`` of vLLM.
        flags: further ones, as typed.
        overlap: of SGLang: with its overlap scheduler, which it leaves out on a CPU.
        passes: how often the prompts are sent; from the second time on the server has their prefixes in its cache.
        benchmark: whether the engine's own benchmarks are run against it, too.
        fault: what is wrong, by its name in ``eagle3ref.diagnose``; nothing when empty.
    """

    algorithm: str = "EAGLE3"
    flags: tuple[str, ...] = ()
    overlap: bool = False
    passes: int = 1
    benchmark: bool = False
    fault: str = ""

    def __str__(self) -> str:
        return f"http/{self.engine}/{self.name}"


def _sglang(name: str, num_steps: int, topk: int, num_draft_tokens: int, ids: tuple[int, ...], **rest: Any) -> Server:
    settings = {"num_prompts": 12, "max_new_tokens": 64} | rest
    return Server("sglang", name, num_steps, topk, num_draft_tokens, ids, **settings)


def _vllm(name: str, num_steps: int, ids: tuple[int, ...], **rest: Any) -> Server:
    settings = {"num_prompts": 12, "max_new_tokens": 64, "algorithm": "eagle3"} | rest
    return Server("vllm", name, num_steps, 1, num_steps + 1, ids, **settings)


BY_REQUEST = ("--per-request-spec-decode-metrics=detailed",)  # acceptance in each response, which vLLM leaves out

SERVERS: tuple[Server, ...] = (
    _sglang("3-1-4", 3, 1, 4, OUTPUT_IDS, passes=2, benchmark=True),
    _sglang("3-1-4-batched", 3, 1, 4, OUTPUT_IDS, concurrency=4),
    _sglang("3-1-4-overlap", 3, 1, 4, OUTPUT_IDS, overlap=True),
    _sglang(
        "3-1-4-overlap-until-stop", 3, 1, 4, OUTPUT_IDS, overlap=True, concurrency=4, stop_token=43, num_prompts=32
    ),
    _sglang("3-1-4-target-only", 3, 1, 4, OUTPUT_IDS, temperature=0.8, target_only=True),
    _sglang("5-1-6", 5, 1, 6, OUTPUT_IDS),
    _sglang("4-4-8", 4, 4, 8, OUTPUT_IDS, max_new_tokens=32),
    _sglang("3-1-4-eagle", 3, 1, 4, OUTPUT_IDS, algorithm="EAGLE", fault="eagle-flag"),
    _sglang("3-1-4-input-ids", 3, 1, 4, POINTS, fault="capture-plus-1"),
    _vllm("k3", 3, POINTS, passes=2, benchmark=True),
    _vllm("k3-per-request", 3, POINTS, flags=BY_REQUEST),
    _vllm("k3-batched", 3, POINTS, concurrency=4, flags=BY_REQUEST),
    _vllm("k5", 5, POINTS, flags=BY_REQUEST),
    _vllm("k3-output-ids", 3, OUTPUT_IDS, flags=BY_REQUEST, fault="capture-minus-1"),
)
