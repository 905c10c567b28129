"""Serves one run with vLLM: ``python run_vllm.py JOB.json RESULT.json``, in vLLM's own environment.

The job is made by ``__main__.py``; the result has the answers, what the Prometheus counters gained, and every round as
``[accepted drafts, draft tokens]``, by request in the order of the prompts. The engine runs in this process, since its
scheduler is watched and, above temperature 0, one of its functions is replaced.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_LOG_STATS_INTERVAL="1",
    VLLM_LOGGING_STREAM="ext://sys.stderr",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

import torch  # noqa: E402 - vLLM reads the environment when it is imported
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.inputs import TokensPrompt  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.sample import rejection_sampler  # noqa: E402

COUNTERS = "vllm:spec_decode_"
LOG_PAUSE = 1.1  # seconds; a line of figures is due once a second


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    rounds = watch_rounds()
    if job["temperature"] > 0:
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    engine = start(job)
    prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in job["prompts"]]
    outputs = engine.generate(prompts, [sampling(job, i) for i in range(len(prompts))], use_tqdm=False)
    time.sleep(LOG_PAUSE)
    engine.llm_engine.do_log_stats()
    result = {
        "answers": [list(output.outputs[0].token_ids) for output in outputs],
        "metrics": counters(engine),
        "rounds": [rounds.get(output.request_id, []) for output in outputs],
    }
    Path(result_path).write_text(json.dumps(result))


def start(job: dict[str, Any]) -> LLM:
    return LLM(
        job["target"],
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_seqs=job["concurrency"],
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config={
            "method": "eagle3",
            "model": job["draft"],
            "num_speculative_tokens": job["num_steps"],
        },
    )


def sampling(job: dict[str, Any], i: int) -> SamplingParams:
    """Of request i, which is also its seed."""
    return SamplingParams(
        temperature=job["temperature"],
        top_p=job["top_p"],
        top_k=job["top_k"],
        seed=i if job["temperature"] > 0 else None,
        max_tokens=job["max_new_tokens"],
        ignore_eos=True,
        stop_token_ids=job["stop_token_ids"],
        detokenize=False,
    )


def watch_rounds() -> dict[str, list[Any]]:
    """Fills, as vLLM runs, what its scheduler drafted and accepted, by request."""
    rounds: dict[str, list[Any]] = {}
    scheduled: dict[str, list[int]] = {}
    update, count = Scheduler.update_from_output, Scheduler.make_spec_decoding_stats

    def watched_update(self: Scheduler, scheduler_output: Any, model_runner_output: Any) -> Any:
        scheduled.clear()
        scheduled.update(scheduler_output.scheduled_spec_decode_tokens)
        return update(self, scheduler_output, model_runner_output)

    def watched_count(self: Scheduler, stats: Any, *, request_id: str, **counts: Any) -> Any:
        if counts["num_draft_tokens"]:
            name = request_id.rpartition("-")[0]  # vLLM adds a random ending inside the engine
            rounds.setdefault(name, []).append([counts["num_accepted_tokens"], list(scheduled[request_id])])
        return count(self, stats, request_id=request_id, **counts)

    Scheduler.update_from_output, Scheduler.make_spec_decoding_stats = watched_update, watched_count
    return rounds


def expand_batch_to_tokens(
    values: torch.Tensor, ends: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """One value for each token of each request, ``replace_from`` made ``replace_to``.

    vllm-cpu 0.32.0 writes the copies into a tensor that it then drops, and so divides the logits of every round above
    temperature 0 by uninitialised memory. Its server has that fault still.
    """
    lengths = ends.diff(prepend=ends.new_zeros(1))
    expanded = values.repeat_interleave(lengths)
    if len(expanded) != num_tokens:
        raise RuntimeError(f"{len(expanded)} values for {num_tokens} tokens")
    return torch.where(expanded == replace_from, replace_to, expanded)


def counters(engine: LLM) -> dict[str, Any]:
    """The counters of speculative decoding; the one by position is a list."""
    found = [metric for metric in engine.get_metrics() if metric.name.startswith(COUNTERS)]
    return {metric.name.removeprefix(COUNTERS): getattr(metric, "value", None) or metric.values for metric in found}


if __name__ == "__main__":  # vLLM starts processes by importing this file again
    main(*sys.argv[1:])
