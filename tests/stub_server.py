"""A local server that answers as SGLang and vLLM did when they were recorded, and fails when it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from stub_faults import Fault, handler_of

from eagle3ref.trace.prompts import Prompt

GOLDEN = Path(__file__).parent / "golden" / "engines"
MODEL = "/models/target"


def recorded(engine: str, name: str) -> dict[str, Any]:
    """One run of a real engine."""
    run: dict[str, Any] = json.loads((GOLDEN / engine / f"{name}.json").read_text())
    return run


def recorded_prompts(number: int) -> list[Prompt]:
    """The first prompts that the real engines were given."""
    ids = json.loads((GOLDEN / "prompts.json").read_text())[:number]
    return [Prompt(f"p{index}", torch.tensor(tokens)) for index, tokens in enumerate(ids)]


class StubServer:
    """Serves one recorded run; a context.

    Args:
        engine: whose endpoints it has; "openai" gives text and no ids.
        faults: what goes wrong with the n-th generation request, counted from 0; "" is nothing.
        delay: seconds before an answer.
        prefix: path in front of every endpoint.
        gateway: nothing but OpenAI's endpoints is let through.
        key: that every request must bring.
        info: changes to what the server says of itself.

    Attributes:
        received: bodies of all generation requests, in order.
        most_at_once: the most that were being answered at one time.
    """

    def __init__(
        self,
        engine: Literal["sglang", "vllm", "openai"] = "sglang",
        *,
        faults: Callable[[int], Fault] = lambda _: "",
        delay: float = 0.0,
        prefix: str = "",
        gateway: bool = False,
        key: str | None = None,
        info: dict[str, Any] | None = None,
    ) -> None:
        self.engine, self.faults, self.delay, self.prefix, self.key = engine, faults, delay, prefix, key
        self.info = info or {}
        self.endpoint = "/generate" if engine == "sglang" and not gateway else "/v1/completions"
        self.received: list[dict[str, Any]] = []
        self.most_at_once = self._at_once = 0
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.run = recorded("sglang", "3-1-4") if engine == "sglang" else recorded("vllm", "k3")
        prompts = json.loads((GOLDEN / "prompts.json").read_text())
        self.index = {tuple(prompt): index for index, prompt in enumerate(prompts)}
        self.counters = dict.fromkeys(("drafts", "draft_tokens", "accepted", "generated", "prompted"), 0)
        self.positions = [0] * 3
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{self.prefix}"

    def __enter__(self) -> StubServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, as a server does that dies."""
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def pages(self) -> dict[str, Any]:
        """What the server says of itself, by path."""
        if self.endpoint == "/generate":
            return {"/server_info": self._server_info(), "/v1/loads": {"loads": [{"dp_rank": 0}]}, "/v1/models": {}}
        entry = {"id": "pair", "object": "model", "owned_by": self.engine, "root": MODEL, "max_model_len": 512}
        pages = {"/v1/models": {"object": "list", "data": [{**entry, **self.info}]}}
        if self.engine == "vllm":
            pages |= {"/version": {"version": "0.32.0"}, "/metrics": self._metrics()}
        return pages

    def _server_info(self) -> dict[str, Any]:
        run = self.run["run"]
        return {
            "model_path": MODEL,
            "served_model_name": "pair",
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": "/models/draft",
            "speculative_num_steps": run["num_steps"],
            "speculative_eagle_topk": run["topk"],
            "speculative_num_draft_tokens": run["num_draft_tokens"],
            "attention_backend": "torch_native",
            "disable_radix_cache": True,
            "disable_cuda_graph": True,
            "disable_overlap_schedule": False,
            "tp_size": 1,
            "dp_size": 1,
            "api_key": "sk-secret",
            "launch_command": "python -m sglang.launch_server --api-key sk-secret",
            "version": "0.5.23",
            "internal_states": [{"avg_spec_accept_length": 2.43, "admin_api_key": "sk-secret"}],
            **self.info,
        }

    def _metrics(self) -> str:
        label = '{engine="0",model_name="pair"}'
        names = {
            "vllm:spec_decode_num_drafts_total": "drafts",
            "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
            "vllm:spec_decode_num_accepted_tokens_total": "accepted",
            "vllm:generation_tokens_total": "generated",
            "vllm:prompt_tokens_total": "prompted",
        }
        lines = [f"{name}{label} {float(self.counters[key])}" for name, key in names.items()]
        for position, count in enumerate(self.positions):
            labels = f'{{engine="0",model_name="pair",position="{position}"}}'
            lines.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{labels} {float(count)}")
        return "\n".join(["# TYPE vllm:spec_decode_num_drafts_total counter", *lines, "process_open_fds 7.0"]) + "\n"

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """As the engine answered this prompt."""
        prompt = tuple(body["input_ids"] if self.endpoint == "/generate" else body["prompt"])
        index = self.index[prompt]
        output = self.run["answers"][index]
        if self.engine == "sglang":
            columns = {name: column[index] for name, column in self.run["meta_info"].items()}
            meta = {name: value for name, value in columns.items() if value is not None}
            reason = {"type": "length", "length": len(output)}
            if self.endpoint == "/generate":
                meta |= {"id": f"r{index}", "finish_reason": reason}
                return {"text": "", "output_ids": output, "meta_info": meta}
            spec = {name: value for name, value in meta.items() if name.startswith("spec_")}
            extra = {"sglext": {"spec_tokens_details": spec}} if body.get("return_spec_tokens_details") else {}
        else:
            self.count(index)
            extra = {"metrics": None}
        choice: dict[str, Any] = {"index": 0, "text": " ".join(map(str, output)), "finish_reason": "length"}
        if self.engine != "openai" and body.get("return_token_ids"):
            choice |= {"token_ids": output, "prompt_token_ids": list(prompt)}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(output)}
        return {"id": f"cmpl-{index}", "model": "pair", "choices": [choice], "usage": usage, **extra}

    def count(self, index: int) -> None:
        """Into vLLM's counters, round by round."""
        with self.lock:
            for accepted, drafted in self.run["rounds"][index]:
                self.counters["drafts"] += 1
                self.counters["draft_tokens"] += len(drafted)
                self.counters["accepted"] += accepted
                for position in range(accepted):
                    self.positions[position] += 1
            self.counters["generated"] += len(self.run["answers"][index])
            self.counters["prompted"] += len(next(prompt for prompt, at in self.index.items() if at == index))

    def entered(self, body: dict[str, Any]) -> Fault:
        """Take a generation request in; what is to go wrong with it."""
        with self.lock:
            number = len(self.received)
            self.received.append(body)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        return self.faults(number)

    def left(self) -> None:
        with self.lock:
            self._at_once -= 1
