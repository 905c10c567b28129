"""Files of requests beside their answers: what a client kept is enough to compare round by round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engines.comparison import prompts, target
from engines.http_plan import SERVERS, Server
from engines.http_recording import path_of
from engines.plan import RUNS, Run
from engines.recording import read as read_recording
from stub_server import GOLDEN
from test_cli import run

from eagle3ref.servers import Evidence, Reading, read_object

FIGURES = {"id": "a", "spec_verify_ct": 2, "spec_num_correct_drafts": 1, "completion_tokens": 4, "prompt_tokens": 3}
ANSWER: dict[str, Any] = {"text": "", "output_ids": [7, 8, 9, 10], "meta_info": FIGURES}
PROMPT = (4, 5, 6)


@pytest.mark.parametrize("server", SERVERS, ids=str)
def test_every_recorded_request_keeps_both_its_ids(server: Server) -> None:
    """Answers that are read without the prompts beside them, and then compare with the same workload only."""
    path = path_of(server) / "requests.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    said = [line for line in lines if "spec_" in json.dumps(line["response"]) or line["response"].get("metrics")]
    requests = Evidence.read(path).requests
    assert len(requests) == len(said)
    for request, line in zip(requests, said, strict=True):
        response = line["response"]
        sent = line["body"].get("input_ids") or line["body"]["prompt"]
        came = response["output_ids"] if "output_ids" in response else response["choices"][0]["token_ids"]
        assert (request.prompt_ids, request.output_ids) == (tuple(sent), tuple(came))


# SGLang on a CPU is greedy behind the first token, unless it is made to verify as on a GPU.
DRAWN = [run for run in (*RUNS, *SERVERS) if run.temperature > 0 and (run.engine == "vllm" or run.target_only)]


@pytest.mark.parametrize("run", DRAWN, ids=str)
def test_what_was_recorded_at_a_temperature_was_drawn(run: Run) -> None:
    """A launcher that loses the sampling: the tokens of the rounds are then the target's first choices, every one."""
    if isinstance(run, Server):
        lines = (path_of(run) / "requests.jsonl").read_text(encoding="utf-8").splitlines()
        answers = [json.loads(line)["response"]["output_ids"] for line in lines]
    else:
        answers = read_recording(run)["answers"]
    others = tokens = 0
    for answer, prompt in zip(answers[:8], prompts(run.pair)[:8], strict=True):
        text = torch.cat((prompt, torch.tensor(answer)))
        choices = target(run.pair).logits(target(run.pair).forward(text[None]).final_hidden_state)[0].argmax(-1)
        behind_first = slice(len(prompt), None)  # the first token is drawn in any case
        others += int((choices[:-1] != text[1:])[behind_first].sum())
        tokens += len(answer) - 1
    assert others > 0.1 * tokens


@pytest.mark.parametrize(
    "line",
    [
        {"path": "/generate", "body": {"input_ids": [4, 5, 6]}, "response": ANSWER},
        {"request": {"prompt": [4, 5, 6]}, "answer": ANSWER},
        {"prompt_ids": [4, 5, 6], "response": ANSWER},
        {"input_ids": [4, 5, 6], "response": ANSWER},
        {"prompt_ids": [4, 5, 6], **ANSWER},
        {"input_ids": [4, 5, 6], **ANSWER},
        {"prompt": "text", "prompt_token_ids": [4, 5, 6], **ANSWER},
        {"body": {"input_ids": [[4, 5, 6]]}, "response": [ANSWER]},
        {"body": {"input_ids": [1, 2]}, "response": {**ANSWER, "prompt_token_ids": [4, 5, 6]}},
    ],
)
def test_a_prompt_is_found_where_clients_put_it(line: dict[str, Any]) -> None:
    """One client's names known, and the next one's files without prompts."""
    (reading,) = read_object(line)
    assert isinstance(reading, Reading)
    assert (reading.prompt_ids, reading.output_ids) == (PROMPT, (7, 8, 9, 10))
    assert reading.rounds == 2


def test_a_batch_gives_each_answer_its_own_prompt() -> None:
    """All answers of a batch with the first prompt, or with none."""
    answers = [{**ANSWER, "meta_info": {**FIGURES, "id": name}} for name in "ab"]
    readings = read_object({"body": {"input_ids": [[4, 5, 6], [1, 2, 3]]}, "response": answers})
    assert [r.prompt_ids for r in readings if isinstance(r, Reading)] == [(4, 5, 6), (1, 2, 3)]


def test_text_is_no_prompt_and_another_length_is_another_prompt() -> None:
    """A prompt that the server did not run (a template, a cut) taken for the one that it ran."""
    for prompt in ("4 5 6", [], ["a"], [4, 5], None):
        (reading,) = read_object({"body": {"prompt": prompt}, "response": ANSWER})
        assert isinstance(reading, Reading)
        assert reading.prompt_ids is None
        assert any("another prompt than was sent" in remark for remark in reading.remarks) == (prompt == [4, 5])


@pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")
def test_the_file_alone_is_compared_round_by_round(tmp_path: Path) -> None:
    """The strongest evidence there is, judged as the weakest."""
    answers = path_of(next(server for server in SERVERS if str(server).endswith("3-1-4-overlap"))) / "requests.jsonl"
    bodies = [json.loads(line)["body"] for line in answers.read_text(encoding="utf-8").splitlines()]
    prompts = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"id": str(i), "tokens": body["input_ids"]}) for i, body in enumerate(bodies)]
    prompts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    longest = max(body["sampling_params"]["max_new_tokens"] for body in bodies)
    options = ("--capture-points", "1,2,3,4,5", "--max-new-tokens", longest + 6, "--dtype", "float32")
    assert run("capture", GOLDEN / "target", prompts, "-o", tmp_path / "trace", *options).exit_code == 0
    tree = ("--num-steps", 3, "--num-draft-tokens", 4, "--topk", 1)
    found = run("crosscheck", tmp_path / "trace", GOLDEN / "draft", answers, "--target", GOLDEN / "target", *tree)
    said = " ".join((found.stdout + found.stderr).split())
    assert found.exit_code == 0, said
    assert "same requests round by round" in said
    assert "12 of 12" in said, said
