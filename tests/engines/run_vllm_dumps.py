"""Lets vLLM write hidden states: ``python run_vllm_dumps.py JOB.json RESULT.json``, in vLLM's own environment.

The method ``extract_hidden_states`` with the ``ExampleHiddenStatesConnector``, as speculators runs them. The
connector copies on a stream of a GPU; on a CPU, where a copy is done when it returns, streams and events are put in
that do nothing.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_LOGGING_STREAM="ext://sys.stderr",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

import torch  # noqa: E402 - vLLM reads the environment when it is imported
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as connector  # noqa: E402
from vllm.inputs import TokensPrompt  # noqa: E402


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    connector.torch = TorchWithoutStreams()
    engine = start(job)
    prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in job["prompts"]]
    asked = {"kv_transfer_params": {"include_output_tokens": True}}
    sampling = [
        SamplingParams(temperature=0, max_tokens=limit, ignore_eos=True, detokenize=False, extra_args=asked)
        for limit in job["max_new_tokens"]
    ]
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    core = engine.llm_engine.engine_core.engine_core
    while core.scheduler.has_requests():  # the files of the requests that ended last; a server goes on by itself
        engine.llm_engine.step()
    result = [
        {"token_ids": list(output.outputs[0].token_ids), "file": output.kv_transfer_params["hidden_states_path"]}
        for output in outputs
    ]
    for entry in result:
        connector.load_hidden_states(entry["file"])  # waits until it is written
    Path(result_path).write_text(json.dumps(result))


def start(job: dict[str, Any]) -> LLM:
    return LLM(
        job["target"],
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_seqs=2,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        max_num_batched_tokens=512,
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(job["layer_ids"])}},
        },
        kv_transfer_config={
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": job["folder"]},
        },
    )


class Idle:
    """A stream or an event of a device that does everything at once."""

    def record(self, *_arguments: Any) -> None:
        """Nothing is left to wait for."""

    wait_event = synchronize = record

    def query(self) -> bool:
        return True


class TorchCuda:
    """``torch.cuda`` as the connector uses it."""

    Event = Stream = Idle

    def stream(self, _stream: Idle) -> Any:
        return nullcontext()


class TorchWithoutStreams:
    """``torch``, whose ``cuda`` does nothing and whose memory is not pinned."""

    cuda = TorchCuda()

    def empty_like(self, tensor: torch.Tensor, *, device: str, pin_memory: bool) -> torch.Tensor:
        del pin_memory
        return torch.empty_like(tensor, device=device)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


if __name__ == "__main__":  # vLLM starts processes by importing this file again
    main(*sys.argv[1:])
