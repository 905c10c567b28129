"""What a running server is asked, and what it said, as golden files.

The folder of a server:

    server.json         how it was started, what is wrong with it, and, of SGLang, the accepted drafts of every request
                        of every batch that it verified, warm-up first
    requests.jsonl      one request and its response a line, in the order of the prompts
    before/, after/     pages that change, before the first of these requests and after the last
    log.txt             the lines of its log that have to do with batches, requests and acceptance, until then
    *.json              pages that do not change
    openai.jsonl        sent later: a few requests to OpenAI's endpoints, and whatever they give about acceptance
    *.txt               the tables that the engine's own benchmarks print, run last

Folders of the machine, and the server's address, are replaced; metrics and settings that have nothing to do with
acceptance are left out.
"""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import httpx

from engines.drafts import GOLDEN
from engines.http_benchmark import benchmarks
from engines.http_plan import Server
from engines.http_server import LOG_INTERVAL, MODEL, Serving
from engines.pairs import prompts_of
from engines.recording import VERSIONS

Json = dict[str, Any]
PATIENCE = 600  # seconds for one request
STILL = {
    "sglang": {"model_info.json": "/model_info", "models.json": "/v1/models"},
    "vllm": {"version.json": "/version", "models.json": "/v1/models"},
}
MOVING = {
    "sglang": {"server_info.json": "/server_info", "loads.json": "/v1/loads?include=all", "metrics.txt": "/metrics"},
    "vllm": {"metrics.txt": "/metrics"},
}
LOG_LINES = (
    r"batch[,.] |SpecDecoding|Engine \d|speculative|POST /|fired up|startup complete|Cache flushed|non-default args"
)
TOO_LONG = r"server_args=|Initializing a V1 LLM engine"  # every setting in one line
# Of SGLang's 556 settings those that have to do with acceptance, and with what the server is.
SETTINGS = (
    r"speculative_(algorithm|draft|num|eagle|accept|attention|use)|^(model_path|served_model_name|version|launch_command)$"
    r"|^(dtype|quantization|kv_cache_dtype|page_size|device|tp_size|dp_size|pp_size|disaggregation_mode|random_seed)$"
    r"|attention_backend|^(disable|enable)_(radix_cache|overlap_schedule|cuda_graph|dp_attention|mixed_chunk|metrics)$"
    r"|decode_log_interval|chunked_prefill_size|max_running_requests|spec_accept|enable_deterministic_inference"
)
METRICS = (
    r"spec_(?!cap|block)|(generation|prompt)_tokens_(total|created)|num_requests|:gen_throughput|cache_hit_rate|success"
)


def path_of(server: Server) -> Path:
    return GOLDEN / str(server)


def record(server: Server, serving: Serving, python: Path) -> None:
    """Ask the server everything, and write what it said anew; ``python`` is of the engine's environment."""
    folder = path_of(server)
    _write_pages(STILL[server.engine], serving, folder)
    _write_pages(MOVING[server.engine], serving, folder / "before")
    _write_lines(folder / "requests.jsonl", ask(server, serving.url))
    _write_pages(MOVING[server.engine], serving, folder / "after")
    time.sleep(2 * LOG_INTERVAL)  # vLLM writes by the clock
    _write_log(serving, folder / "log.txt")
    batches = [json.loads(line) for line in serving.rounds.read_text().splitlines()]
    verified = [[accepted for accepted, *_ in batch] for batch in batches]
    defaults = {field.name: field.default for field in fields(Server)}
    settings = {name: value for name, value in asdict(server).items() if value != defaults[name]}
    heading = {"version": VERSIONS[server.engine], "server": settings, "verified": verified or None}
    (folder / "server.json").write_text(json.dumps(heading) + "\n")
    _write_lines(folder / "openai.jsonl", _ask_openai(server, serving.url))
    if server.benchmark:
        for name, text in benchmarks(server, serving, python).items():
            (folder / name).write_text(_without_paths(text, serving))


def ask(server: Server, url: str) -> list[Json]:
    """Send the prompts of ``server``, ``concurrency`` of them at a time; requests and responses in their order."""
    prompts = prompts_of(server.pair)[: server.num_prompts] * server.passes
    return _post(url, [_request(server, prompt) for prompt in prompts], server.concurrency)


def _request(server: Server, prompt: list[int]) -> Json:
    sampling = {"temperature": server.temperature, "ignore_eos": True}
    if server.stop_token is not None:
        sampling |= {"ignore_eos": False, "stop_token_ids": [server.stop_token]}
    if server.engine == "sglang":
        sampling |= {"max_new_tokens": server.max_new_tokens}
        return {"path": "/generate", "body": {"input_ids": prompt, "sampling_params": sampling}}
    body = {"model": MODEL, "prompt": prompt, "max_tokens": server.max_new_tokens, "return_token_ids": True, **sampling}
    return {"path": "/v1/completions", "body": body}


def _ask_openai(server: Server, url: str) -> list[Json]:
    """Two completions and a chat, with the counts of speculation asked for, which vLLM ignores."""
    common = {"model": MODEL, "temperature": 0, "max_tokens": 16, "return_spec_tokens_details": True}
    prompts = prompts_of(server.pair)[:2]
    requests = [{"path": "/v1/completions", "body": {"prompt": prompt, **common}} for prompt in prompts]
    chat = {"messages": [{"role": "user", "content": "t5 t6 t7"}], **common}
    return _post(url, [*requests, {"path": "/v1/chat/completions", "body": chat}], concurrency=1)


def _post(url: str, requests: list[Json], concurrency: int) -> list[Json]:
    def send(request: Json) -> Json:
        response = httpx.post(url + request["path"], json=request["body"], timeout=PATIENCE)
        return {**request, "status": response.status_code, "response": response.json()}

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(send, requests))


def _write_pages(pages: dict[str, str], serving: Serving, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in pages.items():
        text = httpx.get(serving.url + path, timeout=PATIENCE).raise_for_status().text
        if name == "metrics.txt":
            text = "\n".join(line for line in text.splitlines() if re.search(METRICS, line)) + "\n"
        if name == "server_info.json":
            text = json.dumps(_cut(json.loads(text)), indent=1) + "\n"
        (folder / name).write_text(_without_paths(text, serving))


def _write_log(serving: Serving, path: Path) -> None:
    lines = serving.log.read_text().splitlines()
    kept = [line for line in lines if re.search(LOG_LINES, line) and not re.search(TOO_LONG, line)]
    path.write_text(_without_paths("\n".join(kept) + "\n", serving))


def _cut(info: Json) -> Json:
    """The settings asked for; of each scheduler's state what is not among them once more."""
    states = [{name: value for name, value in state.items() if name not in info} for state in info["internal_states"]]
    return {name: value for name, value in info.items() if re.search(SETTINGS, name)} | {"internal_states": states}


def _without_paths(text: str, serving: Serving) -> str:
    """What names this machine and its folders replaced."""
    return text.replace(str(serving.target.parent), "/models").replace(serving.url, "http://server")


def _write_lines(path: Path, entries: list[Json]) -> None:
    path.write_text("".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries))
