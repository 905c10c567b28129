"""Collecting from a running server: what is sent, and what is read of the answers and counters."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
import torch
from stub_server import MODEL, StubServer, recorded, recorded_prompts

from eagle3ref.config import TreeConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.explain.flags import parse_server_flags
from eagle3ref.servers.client import Progress, RequestSettings, collect, read_journal
from eagle3ref.servers.client.settings import request_body
from eagle3ref.servers.client.stated import sglang_facts
from eagle3ref.trace.prompts import Prompt

SETTINGS = RequestSettings(max_new_tokens=48)

pytestmark = pytest.mark.usefixtures("impatient_client")


def test_sglang_answers_are_the_recorded_fields(tmp_path: Path) -> None:
    """Would catch a field read under the wrong name, ids that are lost, or readings in another order than sent."""
    prompts = recorded_prompts(8)
    with StubServer() as server:
        collection = collect(server.url, prompts, tmp_path / "journal", SETTINGS)
    run = recorded("sglang", "3-1-4")
    for index, (prompt, reading) in enumerate(zip(prompts, collection.requests, strict=True)):
        meta = {name: column[index] for name, column in run["meta_info"].items()}
        assert reading.request_id == prompt.id
        assert reading.prompt_ids == tuple(prompt.tokens.tolist())
        assert list(reading.output_ids or ()) == run["answers"][index]
        assert (reading.rounds, reading.accepted_drafts, reading.proposed_drafts) == (
            meta["spec_verify_ct"],
            meta["spec_num_correct_drafts"],
            meta["spec_num_proposed_drafts"],
        )
        assert list(reading.histogram) == meta["spec_correct_drafts_histogram"]
        assert (reading.completion_tokens, reading.prompt_tokens) == (48, len(prompt.tokens))
        assert reading.finish_reason == "length"
        assert reading.remarks == ()
    assert (collection.sent, collection.answered, collection.unanswered, collection.stopped) == (8, 8, {}, None)


def test_answer_of_the_prefill_alone(tmp_path: Path) -> None:
    """Would catch fields called missing in an answer of one token: SGLang gives it none, since it had no round."""
    with StubServer() as server:
        whole = server.answer

        def first_token(body: dict[str, object]) -> dict[str, object]:
            answer = whole(body)
            meta = {"finish_reason": {"type": "length"}, "prompt_tokens": 5, "completion_tokens": 1, "cached_tokens": 2}
            return {"text": "", "output_ids": answer["output_ids"][:1], "meta_info": meta}

        server.answer = first_token
        (reading,) = collect(server.url, recorded_prompts(1), tmp_path / "journal", SETTINGS).requests
    assert (reading.completion_tokens, reading.prompt_tokens, reading.cached_tokens) == (1, 5, 2)
    assert (reading.rounds, reading.remarks) == (None, ())


def test_what_sglang_is_asked(tmp_path: Path) -> None:
    """Would catch sampling left to the model's generation config: every parameter that moves the answer is said."""
    settings = RequestSettings(max_new_tokens=48, stop_token_ids=(7,), ignore_eos=True, seed=5, top_k=3)
    with StubServer() as server:
        collect(server.url, recorded_prompts(2), tmp_path / "journal", settings)
        first, second = server.received
    assert first["input_ids"] == recorded_prompts(1)[0].tokens.tolist()
    sampling = first["sampling_params"]
    assert sampling["max_new_tokens"] == 48
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"], sampling["min_p"]) == (0.0, 1.0, 3, 0.0)
    penalties = ("repetition_penalty", "frequency_penalty", "presence_penalty")
    assert [sampling[name] for name in penalties] == [1.0, 0.0, 0.0]
    assert (sampling["ignore_eos"], sampling["stop_token_ids"]) == (True, [7])
    assert (sampling["sampling_seed"], second["sampling_params"]["sampling_seed"]) == (5, 6)


def test_sglang_behind_a_gateway(tmp_path: Path) -> None:
    """Would catch acceptance given up where only OpenAI's endpoints are let through: SGLang tells it there as well."""
    with StubServer(gateway=True) as server:
        collection = collect(server.url, recorded_prompts(3), tmp_path / "journal", SETTINGS)
        assert {"return_token_ids", "return_spec_tokens_details", "ignore_eos", "top_k"} <= set(server.received[0])
    assert (collection.server.engine_name, collection.server.tree) == ("sglang", None)
    run = recorded("sglang", "3-1-4")
    for index, reading in enumerate(collection.requests):
        assert list(reading.output_ids or ()) == run["answers"][index]
        assert list(reading.histogram) == run["meta_info"]["spec_correct_drafts_histogram"][index]
        assert (reading.rounds, reading.prompt_ids) == (
            run["meta_info"]["spec_verify_ct"][index],
            tuple(recorded_prompts(3)[index].tokens.tolist()),
        )


def test_vllm_counters_give_the_run(tmp_path: Path) -> None:
    """Would catch a lifetime taken for the run: the counters stood high before, and each round is counted apart."""
    prompts = recorded_prompts(8)
    with StubServer("vllm") as server:
        for index in (20, 21, 22):
            server.count(index)
        collection = collect(server.url, prompts, tmp_path / "journal", SETTINGS)
    rounds = [accepted for request in recorded("vllm", "k3")["rounds"][:8] for accepted, _ in request]
    (run,) = [reading for reading in collection.readings if getattr(reading, "scope", "") == "run"]
    assert (run.rounds, run.accepted_drafts, run.proposed_drafts) == (len(rounds), sum(rounds), 3 * len(rounds))
    assert run.accepted_drafts_at == tuple(sum(c >= depth for c in rounds) for depth in (1, 2, 3))
    assert run.completion_tokens == 8 * 48
    assert run.remarks == ()
    for index, reading in enumerate(collection.requests):
        assert list(reading.output_ids or ()) == recorded("vllm", "k3")["answers"][index]
        assert (reading.rounds, reading.completion_tokens, reading.finish_reason) == (None, 48, "length")


def test_other_traffic_in_the_counters_is_told(tmp_path: Path) -> None:
    """Would catch a run figure that silently holds somebody else's requests."""
    with StubServer("vllm") as server:

        def somebody_else(_: Progress) -> None:
            server.count(25)

        collection = collect(server.url, recorded_prompts(2), tmp_path / "journal", SETTINGS, on_request=somebody_else)
    (run,) = [reading for reading in collection.readings if getattr(reading, "scope", "") == "run"]
    assert any("gained 192 generated tokens, the answers have 96" in remark for remark in run.remarks)


def test_counters_that_cannot_be_checked(tmp_path: Path) -> None:
    """Would catch a run figure that passes for ours alone, of a server that does not count what it generates."""
    with StubServer("vllm") as server:
        pages = server.pages

        def fewer() -> dict[str, object]:
            found = pages()
            kept = [line for line in found["/metrics"].splitlines() if "generation_tokens" not in line]
            return {**found, "/metrics": "\n".join(kept)}

        server.pages = fewer
        collection = collect(server.url, recorded_prompts(1), tmp_path / "journal", SETTINGS)
    (run,) = [reading for reading in collection.readings if getattr(reading, "scope", "") == "run"]
    assert run.remarks == ("The generated tokens cannot be counted: other requests may be in these figures.",)


def test_vllm_is_asked_for_ids_and_states_its_drafts(tmp_path: Path) -> None:
    """Would catch a request without ids in its answer, or the number of drafts not read from the counters."""
    with StubServer("vllm") as server:
        facts = collect(server.url, recorded_prompts(1), tmp_path / "journal", SETTINGS).server
        (body,) = server.received
    assert (body["model"], body["max_tokens"], body["temperature"], body["top_k"]) == ("pair", 48, 0.0, -1)
    assert body["return_token_ids"] is True
    assert (facts.engine_name, facts.tree) == ("vllm==0.32.0", TreeConfig(3, 1, 4))
    assert parse_server_flags("vLLM", facts.flags).num_steps == 3


class _Numbers:
    """Reads the stub's text, numbers between spaces, as a tokenizer would."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [int(word) for word in text.split()]


def test_text_only_servers(tmp_path: Path) -> None:
    """Would catch OpenAI's parameters mixed with others, and ids claimed for text that nobody has tokenized."""
    prompts = recorded_prompts(2)
    with StubServer("openai") as server:
        without = collect(server.url, prompts, tmp_path / "journal", SETTINGS)
        assert set(server.received[0]) == {"model", "prompt", "max_tokens", "temperature", "top_p"}
    assert [reading.output_ids for reading in without.requests] == [None, None]
    with_tokenizer = read_journal(tmp_path / "journal", _Numbers())
    ids = [list(reading.output_ids or ()) for reading in with_tokenizer.requests]
    assert ids == recorded("vllm", "k3")["answers"][:2]
    assert "tokenizer" in with_tokenizer.requests[0].remarks[0]


def test_concurrency_is_what_was_asked(tmp_path: Path) -> None:
    """Would catch requests one after the other in spite of concurrency, or more in flight than asked for."""
    with StubServer(delay=0.05) as server:
        collection = collect(server.url, recorded_prompts(12), tmp_path / "journal", SETTINGS, concurrency=4)
        assert server.most_at_once == 4
    assert sorted(str(reading.request_id) for reading in collection.requests) == sorted(f"p{i}" for i in range(12))


def test_inside_a_running_loop(tmp_path: Path) -> None:
    """Would catch a collection that cannot be begun from a notebook, whose cells run inside a loop."""

    async def cell() -> int:
        with StubServer() as server:
            return collect(server.url, recorded_prompts(1), tmp_path / "journal", SETTINGS).answered

    assert asyncio.run(cell()) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens = 0"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
    ],
)
def test_settings_that_no_server_takes(change: dict[str, float], words: str) -> None:
    """Would catch a refusal that comes from the server, after a request is spent."""
    with pytest.raises(Eagle3RefError, match=words):
        dataclasses.replace(SETTINGS, **change)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prompts": []}, "no prompt"),
        ({"prompts": [Prompt("a", torch.tensor([1])), Prompt("a", torch.tensor([2]))]}, "two prompts of id 'a'"),
        ({"max_requests": 0}, "max_requests = 0"),
        ({"retries": -1}, "retries = -1"),
        ({"concurrency": 0}, "concurrency = 0"),
        ({"timeout": 0.0}, "timeout"),
        ({"api_key": "ключ"}, "API key"),
        ({"url": "localhost:30000"}, "http://localhost:30000"),
        ({"url": "ftp://localhost"}, "http or https"),
        ({"url": "http://[::1"}, "reading the address"),
        ({"url": "http://localhost:99999"}, "no port between"),
        ({"url": "http://localhost:-1"}, "reading the address"),
        ({"url": "http://localhost:1?key=x"}, "a query or fragment"),
        ({"url": "http://localhost:1/#x"}, "a query or fragment"),
        ({"url": "http://me:secret@localhost:1"}, "http://…@localhost"),
        ({"prompts": [Prompt("a", torch.tensor([], dtype=torch.int64))]}, "no token in the prompt 'a'"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], words: str, tmp_path: Path) -> None:
    """Would catch a traceback, or a folder made for a run that cannot begin."""
    given = {"url": "http://127.0.0.1:9", "prompts": recorded_prompts(1), **arguments}
    with pytest.raises(Eagle3RefError, match=words) as refused:
        collect(journal=tmp_path / "journal", settings=SETTINGS, **given)
    assert not (tmp_path / "journal").exists()
    assert "secret" not in str(refused.value)


def test_greedy_bodies_name_no_seed() -> None:
    """Would catch a parameter that older servers do not know sent where it means nothing."""
    body = request_body(sglang_facts({"model_path": MODEL}), SETTINGS, [1, 2], 0)
    assert {"sampling_seed", "stop_token_ids"} & set(body["sampling_params"]) == set()
