"""Times vLLM on a job of tests/engines: ``python time_vllm.py JOB.json RESULT.json TIMES.json``, in its environment.

The job's prompts come in groups of ``concurrency``, and each group is one call of ``generate``, of which the seconds
are; neither start-up nor loading is in them. tests/engines comes first in PYTHONPATH.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import run_vllm
from vllm.inputs import TokensPrompt


def main(job_path: str, result_path: str, times_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    began = time.perf_counter()
    engine = run_vllm.start(job)
    startup = time.perf_counter() - began
    taken, answers = [], []
    for start in range(0, len(job["prompts"]), job["concurrency"]):
        group = job["prompts"][start : start + job["concurrency"]]
        prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in group]
        began = time.perf_counter()
        outputs = engine.generate(prompts, run_vllm.sampling(job, 0), use_tqdm=False)
        taken.append(time.perf_counter() - began)
        answers += [list(output.outputs[0].token_ids) for output in outputs]
    Path(result_path).write_text(json.dumps({"answers": answers}))
    Path(times_path).write_text(json.dumps({"seconds": taken, "startup_s": startup}))


if __name__ == "__main__":  # vLLM starts processes by importing this file again
    main(*sys.argv[1:])
