"""What an engine hands over when it is asked for hidden states, as golden files.

In the folder of a dump:

    responses.jsonl.gz   a line for each request: what was asked, and the response as it came
    server_info.json     of SGLang: the settings that have to do with what is captured
    draft/config.json    of a draft that ran: where SGLang reads the layer ids
    request_<i>/         of ``hook``: what the patch left during that request; the responses have no states then
    hs_<i>.safetensors   of vLLM: the file that its connector left for that request
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import httpx

from engines.drafts import write_draft
from engines.dump_plan import PREFILL, VLLM_LAYER_IDS, DumpRun, Request
from engines.http_server import SGLANG_VARIABLES, Serving, free_port, started, write_target
from engines.pairs import prompts_of
from engines.serve import HERE, PATIENCE, environment

Json = dict[str, Any]
DUMPS = HERE.parent / "golden"
SETTINGS = (
    r"speculative_(algorithm|draft_model_path|num_|eagle_topk)|aux_hidden_state|return_hidden_states"
    r"|^(version|dtype|chunked_prefill_size|disable_radix_cache)$"
)


def path_of(run: DumpRun) -> Path:
    """The folder of its files."""
    return DUMPS / str(run)


def record_dump(run: DumpRun, python: Path, folder: Path) -> None:
    """Serve ``run`` and write its files anew.

    Args:
        run: what to serve.
        python: of the engine's environment.
        folder: ``path_of(run)`` for the golden files; what is in it is removed.

    Raises:
        EngineError: the server did not answer.
        subprocess.CalledProcessError: vLLM did not run.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as made:
        lines = {"sglang": _sglang, "vllm": _vllm}[run.engine](run, python, Path(made), folder)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "responses.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def prompt_of(request: Request) -> list[int] | list[list[int]]:
    """Its token ids; a list of such lists for several prompts in one request."""
    known = prompts_of("llama")
    if isinstance(request.prompt, tuple):
        return [known[i][: request.length] for i in request.prompt]
    return known[request.prompt][: request.length]


def _sglang(run: DumpRun, python: Path, made: Path, folder: Path) -> list[Json]:
    target, port, dumps = write_target(made / "target"), free_port(), made / "dumps"
    serving = Serving(f"http://127.0.0.1:{port}", made / "log.txt", made / "rounds.jsonl", target)
    serving.rounds.touch()
    variables = environment(run, python) | SGLANG_VARIABLES | {"EAGLE3REF_ROUNDS": str(serving.rounds)}
    if run.hook:
        variables["EAGLE3REF_DUMPS"] = str(dumps)
    if run.hook == "lists":
        variables["EAGLE3REF_DUMPS_AS_LISTS"] = "1"
    if run.draft is not None:
        config = write_draft(run.draft, "", made / "draft") / "config.json"
        (folder / "draft").mkdir()
        shutil.copy(config, folder / "draft")
    command = [python, HERE / "serve_sglang.py", *_flags(run, target, made, port)]
    lines = []
    with started(command, serving, variables):
        shutil.rmtree(dumps, ignore_errors=True)  # of SGLang's own warm-up
        info = httpx.get(f"{serving.url}/server_info", timeout=PATIENCE).json()
        told = {name: _public(value, made) for name, value in info.items() if re.search(SETTINGS, name)}
        (folder / "server_info.json").write_text(json.dumps(told, indent=1) + "\n")
        for i, request in enumerate(run.requests):
            asked = {
                "input_ids": prompt_of(request),
                "sampling_params": {
                    "temperature": 0,
                    "max_new_tokens": request.max_new_tokens,
                    "ignore_eos": True,
                },
                "return_hidden_states": request.states,
            }
            response = httpx.post(f"{serving.url}/generate", json=asked, timeout=PATIENCE)
            lines.append({"request": asked, "response": _kept(run, response)})
            for call in sorted(dumps.glob("*")):
                kept = folder / f"request_{i}" / call.name
                kept.parent.mkdir(exist_ok=True)
                shutil.move(call, kept)
    return lines


def _flags(run: DumpRun, target: Path, made: Path, port: int) -> list[str]:
    given: Json = {
        "model-path": target,
        "served-model-name": "pair",
        "port": port,
        "device": "cpu",
        "dtype": run.dtype,
        "max-total-tokens": 2048,
        "max-running-requests": 2,
        "chunked-prefill-size": PREFILL,
        "mem-fraction-static": 0.3,
        "random-seed": 0,
        "prefill-attention-backend": "intel_amx",
        "decode-attention-backend": "intel_amx",
    }
    if run.draft is not None:
        given |= {
            "speculative-algorithm": run.algorithm,
            "speculative-draft-model-path": made / "draft",
            "speculative-num-steps": 3,
            "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": 4,
        }
    return [*(f"--{name}={value}" for name, value in given.items()), *run.flags, "--disable-cuda-graph"]


def _public(value: Any, made: Path) -> Any:
    """A setting without the folders of this machine."""
    return value.replace(f"{made}/", "") if isinstance(value, str) else value


def _kept(run: DumpRun, response: httpx.Response) -> Any:
    said = response.json()
    if run.hook:
        del said["meta_info"]["hidden_states"]
    return said


def _vllm(run: DumpRun, python: Path, made: Path, folder: Path) -> list[Json]:
    job = {
        "target": str(write_target(made / "target")),
        "layer_ids": VLLM_LAYER_IDS,
        "prompts": [prompt_of(request) for request in run.requests],
        "max_new_tokens": [request.max_new_tokens for request in run.requests],
        "folder": str(made / "dumps"),
    }
    (made / "job.json").write_text(json.dumps(job))
    command = [python, HERE / "run_vllm_dumps.py", made / "job.json", made / "result.json"]
    with (made / "log.txt").open("w") as log:
        try:
            subprocess.run(
                command,
                check=True,
                timeout=PATIENCE,
                env=environment(run, python),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        except subprocess.CalledProcessError:
            print((made / "log.txt").read_text()[-6000:])
            raise
    results = json.loads((made / "result.json").read_text())
    for i, result in enumerate(results):
        shutil.copy(result.pop("file"), folder / f"hs_{i}.safetensors")
    return [
        {"request": {"prompt_token_ids": prompt}, "response": result}
        for prompt, result in zip(job["prompts"], results, strict=True)
    ]
