"""Serves one run with SGLang: ``python run_sglang.py JOB.json RESULT.json``, in SGLang's own environment.

The job is made by ``__main__.py``; the result has the answers, ``meta_info`` cut to its counts, and every round as
``[accepted drafts, tokens, next_token, next_sibling]`` (in order; None when requests ran side by side).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import gpu_branches  # of sglang_cpu, which comes first in PYTHONPATH

COUNTS = ("prompt_tokens", "completion_tokens")
SETTINGS = {
    "device": "cpu",
    "dtype": "float32",
    "random_seed": 0,
    "max_total_tokens": 8192,
    "mem_fraction_static": 0.3,
    "skip_tokenizer_init": True,
    "skip_server_warmup": True,
    "disable_radix_cache": True,
    "disable_cuda_graph": True,
    "log_level": "info",
    "decode_log_interval": 10,
}


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    os.environ.update(
        SGLANG_USE_CPU_ENGINE="1", TRITON_INTERPRET="1", HF_HUB_OFFLINE="1", SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK="1"
    )
    with tempfile.TemporaryDirectory() as folder:
        rounds = Path(folder) / "rounds.jsonl"
        rounds.touch()
        os.environ["EAGLE3REF_ROUNDS"] = str(rounds)
        if job["target_only"]:
            os.environ[gpu_branches.TARGET_ONLY] = "1"
        if job["attention"] == "triton":
            os.environ[gpu_branches.FULL_MASK] = "1"
        outputs = serve(job)
        made = [row for line in rounds.read_text().splitlines() for row in json.loads(line)]
    meta = [
        {name: value for name, value in output["meta_info"].items() if name.startswith("spec_") or name in COUNTS}
        for output in outputs
    ]
    result = {
        "answers": [output["output_ids"] for output in outputs],
        "meta_info": {name: [entry.get(name) for entry in meta] for name in meta[0]},
        "rounds": by_request(made, meta) if job["concurrency"] == 1 else None,
    }
    Path(result_path).write_text(json.dumps(result))


def serve(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs, in the order of the prompts; ``concurrency`` of them are in flight at a time."""
    import sglang

    engine = sglang.Engine(
        **SETTINGS,
        model_path=job["target"],
        max_running_requests=job["concurrency"],
        # The one option for both is overridden on a CPU; these two are not.
        prefill_attention_backend=job["attention"],
        decode_attention_backend=job["attention"],
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path=job["draft"],
        speculative_num_steps=job["num_steps"],
        speculative_eagle_topk=job["topk"],
        speculative_num_draft_tokens=job["num_draft_tokens"],
    )
    sampling = {name: job[name] for name in ("temperature", "max_new_tokens", "stop_token_ids")}
    sampling["ignore_eos"] = not job["stop_token_ids"]  # which it would ignore as well
    prompts, width = job["prompts"], job["concurrency"]
    try:
        groups = [prompts[start : start + width] for start in range(0, len(prompts), width)]
        return [output for group in groups for output in engine.generate(input_ids=group, sampling_params=sampling)]
    finally:
        engine.shutdown()


def by_request(rounds: list[Any], meta: list[dict[str, Any]]) -> list[list[Any]]:
    """Cut by the number of verifications that SGLang counted for each request; none may be left over."""
    cut: list[list[Any]] = []
    for entry in meta:
        count = entry.get("spec_verify_ct", 0)
        cut.append(rounds[:count])
        rounds = rounds[count:]
    if rounds:
        raise RuntimeError(f"{len(rounds)} rounds more than spec_verify_ct counts")
    return cut


if __name__ == "__main__":
    main(*sys.argv[1:])
else:  # SGLang starts its processes by importing this file again
    gpu_branches.take()
