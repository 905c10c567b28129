"""A collection from servers that answer byte for byte what real ones did: SGLang 0.5.23 and vLLM 0.32.0 over HTTP."""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import pytest
import torch
from engines.http_plan import SERVERS, Server
from engines.http_recording import path_of
from stub_server import MODEL, StubServer

from eagle3ref.servers import Evidence, RequestSettings, collect
from eagle3ref.trace.prompts import Prompt

PAGES = {
    "sglang": {"server_info.json": "/server_info", "loads.json": "/v1/loads", "metrics.txt": "/metrics"},
    "vllm": {"metrics.txt": "/metrics"},
}
STILL = {"model_info.json": "/model_info", "models.json": "/v1/models", "version.json": "/version"}


class RecordedServer(StubServer):
    """One recorded server; its pages change when it has given its last answer.

    Attributes:
        exchanges: requests and responses, in the order sent.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(server.engine)
        self.folder = path_of(server)
        self.exchanges = [json.loads(line) for line in (self.folder / "requests.jsonl").read_text().splitlines()]
        self.responses = defaultdict(deque)
        for exchange in self.exchanges:
            self.responses[prompt_of(exchange)].append(exchange["response"])

    def pages(self) -> dict[str, Any]:
        moment = "after" if not any(self.responses.values()) else "before"
        moving = {path: self.folder / moment / name for name, path in PAGES[self.engine].items()}
        still = {path: self.folder / name for name, path in STILL.items()}
        return {path: file.read_text() for path, file in {**still, **moving}.items() if file.exists()}

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        return self.responses[prompt_of({"body": body})].popleft()


def prompt_of(exchange: dict[str, Any]) -> tuple[int, ...]:
    return tuple(exchange["body"].get("input_ids") or exchange["body"]["prompt"])


def counter(page: str, name: str) -> int:
    """The sum of one counter over the engines, by hand."""
    return round(sum(float(value) for value in re.findall(rf"^{name}\{{[^}}]*\}} (\S+)$", page, re.MULTILINE)))


pytestmark = pytest.mark.usefixtures("impatient_client")


@pytest.mark.parametrize("server", SERVERS, ids=str)
def test_everything_that_a_real_server_said(server: Server, tmp_path: Path) -> None:
    """Would catch a real server that is not recognized, its settings misread, or an answer's fields lost on the way."""
    with RecordedServer(server) as recorded:
        prompts = [Prompt(f"p{n}", torch.tensor(prompt_of(one))) for n, one in enumerate(recorded.exchanges)]
        settings = RequestSettings(max_new_tokens=server.max_new_tokens, temperature=server.temperature)
        collection = collect(recorded.url, prompts, tmp_path / "journal", settings, model=MODEL)
        pages = {moment: (recorded.folder / moment / "metrics.txt").read_text() for moment in ("before", "after")}
    facts = collection.server
    assert (facts.num_steps, facts.topk, facts.num_draft_tokens) == (
        server.num_steps,
        server.topk,
        server.num_draft_tokens,
    )
    version = {"sglang": "sglang==0.5.23", "vllm": "vllm==0.32.0"}[server.engine]
    assert (facts.engine_name, facts.model, facts.served_model_name) == (version, MODEL, "pair")
    assert (collection.answered, collection.unanswered) == (len(prompts), {})
    for reading, exchange in zip(collection.requests, recorded.exchanges, strict=True):
        response = exchange["response"]
        assert reading.prompt_ids == prompt_of(exchange)
        assert reading.remarks == ()
        check = sglang_fields if server.engine == "sglang" else vllm_fields
        assert check(response) == (
            list(reading.output_ids or ()),
            reading.completion_tokens,
            reading.rounds,
            reading.accepted_drafts,
            list(reading.histogram),
        )
    evidence = Evidence.gather(collection.readings)
    assert len(evidence.requests) == len(prompts)
    if server.engine == "vllm":
        (run,) = evidence.runs
        names = {
            "rounds": "num_drafts",
            "accepted_drafts": "num_accepted_tokens",
            "proposed_drafts": "num_draft_tokens",
        }
        for meaning, name in names.items():
            gained = [counter(pages[moment], f"vllm:spec_decode_{name}_total") for moment in ("before", "after")]
            assert getattr(run, meaning) == gained[1] - gained[0]
        assert run.remarks == ()


def sglang_fields(response: dict[str, Any]) -> tuple[Any, ...]:
    meta = response["meta_info"]
    counts = (meta.get("spec_verify_ct"), meta.get("spec_num_correct_drafts"))
    return response["output_ids"], meta["completion_tokens"], *counts, meta.get("spec_correct_drafts_histogram", [])


def vllm_fields(response: dict[str, Any]) -> tuple[Any, ...]:
    figures = (response["metrics"] or {}).get("speculative_decoding") or {}
    counts = (figures.get("num_spec_steps"), figures.get("num_accepted_draft_tokens"))
    (choice,) = response["choices"]
    tokens = response["usage"]["completion_tokens"]
    return choice["token_ids"], tokens, *counts, figures.get("acceptance_histogram", [])
