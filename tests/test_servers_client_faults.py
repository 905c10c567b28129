"""Servers that fail: nothing collected is lost, nothing is sent that was not asked for, and the reason is told."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stub_faults import Fault
from stub_server import StubServer, recorded_prompts

from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers.client import Progress, RequestSettings, collect, read_journal

SETTINGS = RequestSettings(max_new_tokens=48)

pytestmark = pytest.mark.usefixtures("impatient_client")


def at(faults: Mapping[int, Fault]) -> object:
    """These faults at these requests."""
    return lambda number: faults.get(number, "")


@pytest.mark.parametrize("fault", ["500", "429", "hang", "drip", "cut", "html", "drop", "abort"])
def test_what_passes_is_tried_again(fault: Fault, tmp_path: Path) -> None:
    """Would catch a prompt lost to a fault that passes, an answer kept that is none, or a hang without an end."""
    began = time.monotonic()
    timeout = 0.5 if fault in ("hang", "drip") else 60.0
    with StubServer(faults=at({1: fault, 2: fault})) as server:
        collection = collect(server.url, recorded_prompts(3), tmp_path / "journal", SETTINGS, timeout=timeout)
        assert len(server.received) == 5
        sent_ids = [body["input_ids"] for body in server.received]
    assert sent_ids[1] == sent_ids[2] == sent_ids[3]
    assert (collection.sent, collection.answered, collection.unanswered) == (5, 3, {})
    assert all(reading.rounds for reading in collection.requests)
    assert time.monotonic() - began < 20
    assert fault != "429" or time.monotonic() - began > 0.4  # twice what the server asked to wait


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("400", "HTTP 400: as told"),
        ("bare", "no output_ids or text in the answer; there was meta_info"),
    ],
)
def test_what_does_not_pass_is_not_tried_again(fault: Fault, words: str, tmp_path: Path) -> None:
    """Would catch requests spent on what the server has refused for good, and a run that ends over one bad prompt."""
    with StubServer(faults=at({1: fault})) as server:
        collection = collect(server.url, recorded_prompts(4), tmp_path / "journal", SETTINGS)
        assert len(server.received) == 4
        again = collect(server.url, recorded_prompts(4), tmp_path / "journal", SETTINGS)
        assert len(server.received) == 4
    assert [reading.request_id for reading in collection.requests] == ["p0", "p2", "p3"]
    assert collection.unanswered == {"p1": words} == again.unanswered


@pytest.mark.parametrize(
    ("fault", "why"), [("401", "HTTP 401: as told"), ("307", "HTTP 307, a redirection to nowhere")]
)
def test_refusal_of_all_ends_the_run_at_once(fault: Fault, why: str, tmp_path: Path) -> None:
    """Would catch every prompt sent to a server that refuses each for the same reason, or one sent twice elsewhere."""
    with StubServer(faults=lambda number: fault if number >= 2 else "") as server:
        collection = collect(server.url, recorded_prompts(20), tmp_path / "journal", SETTINGS)
        assert len(server.received) == 3
    assert collection.answered == 2
    assert collection.stopped == f"The server refuses the requests ({why})."


@pytest.mark.parametrize("concurrency", [1, 4])
def test_many_failures_in_a_row_end_the_run(concurrency: int, tmp_path: Path) -> None:
    """Would catch a thousand prompts sent one by one to a server that is broken."""
    with StubServer(faults=lambda number: "500" if number >= 2 else "") as server:
        collection = collect(
            server.url, recorded_prompts(32), tmp_path / "journal", SETTINGS, retries=3, concurrency=concurrency
        )
        assert len(server.received) <= 2 + 5 + 3 + concurrency
    assert collection.answered == 2
    assert "prompts in a row got no answer (the last: HTTP 500: as told)" in str(collection.stopped)


def test_endless_answer_is_not_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch memory filled by a server that does not stop sending."""
    monkeypatch.setattr("eagle3ref.servers.client.http._LARGEST", 40_000)
    with StubServer(faults=at({0: "big"})) as server:
        collection = collect(server.url, recorded_prompts(2), tmp_path / "journal", SETTINGS)
        assert len(server.received) == 2
    assert collection.unanswered == {"p0": "an answer of more than 40000 bytes"}


def test_changed_field_names_are_told(tmp_path: Path) -> None:
    """Would catch zero rounds, or silence, where a server has renamed its fields: ids count, the remark names both."""
    with StubServer(faults=lambda _: "renamed") as server:
        (reading,) = collect(server.url, recorded_prompts(1), tmp_path / "journal", SETTINGS).requests
    assert (reading.rounds, reading.accepted_drafts, reading.histogram) == (None, None, ())
    assert len(reading.output_ids or ()) == 48
    (remark,) = reading.remarks
    assert "looked for spec_verify_ct" in remark
    assert "speculation_verify_ct" in remark


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_another_prompt_than_was_sent(engine: str, tmp_path: Path) -> None:
    """Would catch a comparison on a prompt to which the server has added a token."""
    sent = tuple(recorded_prompts(1)[0].tokens.tolist())
    with StubServer(engine, faults=lambda _: "other prompt") as server:
        (reading,) = collect(server.url, recorded_prompts(1), tmp_path / "journal", SETTINGS).requests
    assert reading.prompt_ids == (None if engine == "sglang" else (1, *sent))
    assert "another prompt than was sent" in reading.remarks[0]


def test_nobody_listens(tmp_path: Path) -> None:
    """Would catch a traceback, a long wait, or a journal made for nothing."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(Eagle3RefError, match="expected a running server"):
        collect(f"http://127.0.0.1:{port}", recorded_prompts(1), tmp_path / "journal", SETTINGS)
    assert not (tmp_path / "journal").exists()


def test_somebody_listens_and_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a wait without end, or one for every path, at a server that is stuck."""
    monkeypatch.setattr("eagle3ref.servers.client.http.PATIENCE", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with pytest.raises(Eagle3RefError, match=r"no answer within 0\.3 s"):
            collect(f"http://127.0.0.1:{silent.getsockname()[1]}", recorded_prompts(1), tmp_path / "journal", SETTINGS)
    assert time.monotonic() - began < 5


def test_somebody_else_listens(tmp_path: Path) -> None:
    """Would catch prompts sent to a web server that is no model's."""
    with StubServer("vllm", prefix="/hidden") as server:
        address = server.url.removesuffix("/hidden")
        with pytest.raises(
            Eagle3RefError,
            match=r"not an engine: 5 paths answered HTTP 404: Not Found;.*a path in front",
        ):
            collect(address, recorded_prompts(1), tmp_path / "journal", SETTINGS)
        assert server.received == []


def test_server_dies_in_the_middle(tmp_path: Path) -> None:
    """Would catch collected answers lost with the server, or refused connections counted as requests."""
    with StubServer() as server:

        def kill_after_three(progress: Progress) -> None:
            if progress.answered == 3:
                server.close()

        collection = collect(
            server.url, recorded_prompts(8), tmp_path / "journal", SETTINGS, on_request=kill_after_three
        )
    assert (collection.answered, collection.sent) == (3, 3)
    assert "takes no connections any more" in str(collection.stopped)
    with StubServer() as server:
        collection = collect(server.url, recorded_prompts(8), tmp_path / "journal", SETTINGS)
        assert len(server.received) == 5
    assert (collection.answered, collection.sent, collection.stopped) == (8, 8, None)


def test_a_break_down_is_told_by_its_first_words(tmp_path: Path) -> None:
    """Would catch "no connection" given as the reason of a server that said why it broke down."""
    with StubServer(faults=lambda _: "500") as server:

        def break_down(_: Progress) -> None:
            server.close()

        with pytest.raises(Eagle3RefError, match=r"not one answer to 1 requests \(HTTP 500: as told\)"):
            collect(server.url, recorded_prompts(2), tmp_path / "journal", SETTINGS, on_request=break_down)


def test_not_one_answer_is_an_error_that_resumes(tmp_path: Path) -> None:
    """Would catch an empty collection that looks like a finished one."""
    with StubServer(faults=lambda _: "500") as server:
        with pytest.raises(Eagle3RefError, match=r"not one answer to 3 requests \(HTTP 500: as told\)"):
            collect(server.url, recorded_prompts(1), tmp_path / "journal", SETTINGS, retries=2)
        assert len(server.received) == 3
    assert read_journal(tmp_path / "journal").unanswered == {"p0": "HTTP 500: as told"}


def test_budget_ends_before_the_prompts(tmp_path: Path) -> None:
    """Would catch more requests than asked for, and tries again in the place of prompts that were never sent."""
    with StubServer(faults=at({0: "500"})) as server:
        collection = collect(server.url, recorded_prompts(6), tmp_path / "journal", SETTINGS, max_requests=4)
        assert len(server.received) == 4
        assert collection.stopped == "All 4 requests that were asked for are sent."
        assert [reading.request_id for reading in collection.requests] == ["p1", "p2", "p3"]
        same = collect(server.url, recorded_prompts(6), tmp_path / "journal", SETTINGS, max_requests=4)
        assert len(server.received) == 4
        assert same.stopped == collection.stopped
        more = collect(server.url, recorded_prompts(6), tmp_path / "journal", SETTINGS, max_requests=7)
        assert len(server.received) == 7
    assert (more.answered, more.unanswered, more.stopped) == (6, {}, None)


FAULTS: tuple[Fault, ...] = ("", "", "", "500", "429", "cut", "html", "drop", "abort", "400")


@given(
    faults=st.lists(st.sampled_from(FAULTS), max_size=12),
    num_prompts=st.integers(1, 6),
    max_requests=st.integers(1, 10),
    retries=st.integers(0, 4),
    concurrency=st.integers(1, 3),
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_never_more_than_asked(
    faults: list[Fault],
    num_prompts: int,
    max_requests: int,
    retries: int,
    concurrency: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Would catch any course of failures, resumed three times, that sends a request too many or an answered prompt."""
    journal = tmp_path_factory.mktemp("any") / "journal"
    prompts = recorded_prompts(num_prompts)
    with StubServer(faults=at(dict(enumerate(faults)))) as server:
        answered: set[str | None] = set()
        for _ in range(3):
            before = len(server.received)
            try:
                collection = collect(
                    server.url,
                    prompts,
                    journal,
                    SETTINGS,
                    max_requests=max_requests,
                    retries=retries,
                    concurrency=concurrency,
                )
            except Eagle3RefError:
                collection = read_journal(journal)
            sent_now = {tuple(body["input_ids"]) for body in server.received[before:]}
            assert not sent_now & {tuple(prompt.tokens.tolist()) for prompt in prompts if prompt.id in answered}
            answered |= {reading.request_id for reading in collection.requests}
            assert collection.sent == len(server.received) <= max_requests
            tries = len(server.received) - len({tuple(body["input_ids"]) for body in server.received})
            assert tries <= retries
