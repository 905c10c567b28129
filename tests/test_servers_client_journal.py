"""The journal of a collection: kills, Ctrl-C, two runs at once, damage, other servers under the same name."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from stub_server import StubServer, recorded, recorded_prompts

from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers import Rounded
from eagle3ref.servers.client import Progress, RequestSettings, collect, is_journal, read_journal
from eagle3ref.trace.prompts import Prompt

SETTINGS = RequestSettings(max_new_tokens=48)
TESTS = Path(__file__).parent

# A collection in a process of its own, which can be killed.
CHILD = """
import sys
sys.path.insert(0, {tests!r})
from stub_server import recorded_prompts
from eagle3ref.servers.client import RequestSettings, collect
collect({url!r}, recorded_prompts({number}), {journal!r}, RequestSettings(max_new_tokens=48), concurrency=2)
"""

pytestmark = pytest.mark.usefixtures("impatient_client")


def killed(server: StubServer, journal: Path, after: int) -> None:
    """A collection of 12 prompts that is killed when ``after`` requests have been received."""
    code = textwrap.dedent(CHILD).format(tests=str(TESTS), url=server.url, number=12, journal=str(journal))
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent / "src")}
    child = subprocess.Popen([sys.executable, "-c", code], env=environment)
    deadline = time.monotonic() + 60
    while len(server.received) < after and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.005)
    child.kill()
    assert child.wait(timeout=30) == -signal.SIGKILL


def interrupted(server: StubServer, journal: Path, after: int) -> None:
    """The same with Ctrl-C, which reaches the main thread alone."""
    main = threading.main_thread().ident or 0

    def press(progress: Progress) -> None:
        if progress.answered == after:
            signal.pthread_kill(main, signal.SIGINT)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        collect(server.url, recorded_prompts(12), journal, SETTINGS, concurrency=2, on_request=press)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("stop", [killed, interrupted])
def test_stopped_run_goes_on(stop: Callable[[StubServer, Path, int], None], tmp_path: Path) -> None:
    """Would catch an answered prompt sent again, a request that the count forgets, or counters of half a run only."""
    journal = tmp_path / "journal"
    with StubServer("vllm", delay=0.05) as server:
        stop(server, journal, 6)
        time.sleep(0.2)  # what was in flight ends at the server
        kept = read_journal(journal)
        assert 1 <= kept.answered <= 8
        # Two may be written down that the stop kept from the server.
        assert len(server.received) <= kept.sent <= len(server.received) + 2
        before = len(server.received)
        collection = collect(server.url, recorded_prompts(12), journal, SETTINGS, max_requests=20)
        sent_again = [tuple(body["prompt"]) for body in server.received[before:]]
        assert len(sent_again) == 12 - kept.answered
        assert not {reading.prompt_ids for reading in kept.requests} & set(sent_again)
        assert len(server.received) <= collection.sent <= 20
    assert (collection.answered, collection.unanswered) == (12, {})
    (run,) = [reading for reading in collection.readings if getattr(reading, "scope", "") == "run"]
    assert (run.rounds or 0) >= sum(len(request) for request in recorded("vllm", "k3")["rounds"][:12])
    # What was in flight has no reader any more. If the server ran it all the same, that is told.
    assert any("without an answer" in remark for remark in run.remarks) == (run.completion_tokens != 12 * 48)


def test_resumed_counters_leave_the_time_between_out(tmp_path: Path) -> None:
    """Would catch requests that others sent between two runs of one journal counted as ours."""
    with StubServer("vllm") as server:
        collect(server.url, recorded_prompts(4), tmp_path / "journal", SETTINGS, max_requests=2)
        server.count(25)
        collection = collect(server.url, recorded_prompts(4), tmp_path / "journal", SETTINGS)
    (run,) = [reading for reading in collection.readings if getattr(reading, "scope", "") == "run"]
    rounds = [accepted for request in recorded("vllm", "k3")["rounds"][:4] for accepted, _ in request]
    assert (run.rounds, run.accepted_drafts, run.proposed_drafts) == (len(rounds), sum(rounds), 3 * len(rounds))
    assert run.accepted_drafts_at == tuple(sum(c >= depth for c in rounds) for depth in (1, 2, 3))
    assert (run.completion_tokens, run.remarks) == (4 * 48, ())
    assert run.length_with_bonus == Rounded.exactly(1 + sum(rounds) / len(rounds))


def test_request_is_on_disk_before_it_is_sent(tmp_path: Path) -> None:
    """Would catch a request that a kill between sending and writing would send twice."""
    journal = tmp_path / "journal"
    seen: list[int] = []
    with StubServer() as server:
        answer = server.answer

        def look(body: dict[str, object]) -> dict[str, object]:
            lines = (journal / "requests.jsonl").read_text().splitlines()
            seen.append(sum(json.loads(line)["event"] == "sent" for line in lines))
            return answer(body)

        server.answer = look
        collect(server.url, recorded_prompts(3), journal, SETTINGS)
    assert seen == [1, 2, 3]


def test_finished_journal_sends_nothing(tmp_path: Path) -> None:
    """Would catch a second call that asks the server again."""
    with StubServer() as server:
        first = collect(server.url, recorded_prompts(3), tmp_path / "journal", SETTINGS)
        second = collect(server.url, recorded_prompts(3), tmp_path / "journal", SETTINGS)
        assert len(server.received) == 3
    assert first == second == read_journal(tmp_path / "journal")


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    """Would catch two runs that write into one journal, and send each prompt twice."""
    refused: list[str] = []
    with StubServer() as server:

        def second(_: Progress) -> None:
            with pytest.raises(Eagle3RefError, match="another run that has it open") as error:
                collect(server.url, recorded_prompts(3), tmp_path / "journal", SETTINGS)
            refused.append(str(error.value))

        collect(server.url, recorded_prompts(2), tmp_path / "journal", SETTINGS, on_request=second)
        assert len(server.received) == 2
    assert len(refused) == 2


@pytest.mark.parametrize("cut", [1, 20, 5000])
def test_torn_last_line_was_never_relied_on(cut: int, tmp_path: Path) -> None:
    """Would catch a power cut in the middle of a line that spoils the journal, or the line after it."""
    journal = tmp_path / "journal"
    with StubServer() as server:
        collect(server.url, recorded_prompts(2), journal, SETTINGS)
        events = journal / "requests.jsonl"
        lines = events.read_bytes().splitlines(keepends=True)
        whole = next(index for index in range(len(lines) - 1, 0, -1) if b'"answered"' in lines[index])
        events.write_bytes(b"".join(lines[:whole]) + lines[whole][: min(cut, len(lines[whole]) - 1)])
        torn = read_journal(journal)
        assert (torn.sent, torn.answered) == (2, 1)
        assert torn.unanswered == {"p1": "sent, and the run ended before an answer came"}
        assert collect(server.url, recorded_prompts(2), journal, SETTINGS).answered == 2
        assert len(server.received) == 3
    assert all(json.loads(line) for line in events.read_text().splitlines())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda events: events.write_text("not JSON\n" + events.read_text()), "line 1: found no JSON"),
        (lambda events: events.write_text("[]\n" + events.read_text()), "line 1: found JSON of type list"),
        (lambda events: events.write_text('{"event": "answered", "id": "x"}\n'), "line 1: found an event"),
        (lambda events: events.write_text('{"event": "sent", "id": "x", "prompt_ids": 3}\n'), "line 1: found an event"),
        (lambda events: events.unlink(), "no server.json"),
        (lambda events: (events.parent / "server.json").write_text("{}"), "no server.json"),
        (lambda events: events.with_name("server.json").write_text(_with(events, format=9)), "format 9"),
        (lambda events: events.with_name("server.json").write_text(_with(events, facts={"engine": 1, "x": 2})), "'x'"),
    ],
)
def test_damaged_journal_is_told(damage: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    """Would catch a traceback, or a damaged journal taken for an empty one."""
    journal = tmp_path / "journal"
    with StubServer() as server:
        collect(server.url, recorded_prompts(1), journal, SETTINGS)
    damage(journal / "requests.jsonl")
    with pytest.raises(Eagle3RefError, match=words):
        read_journal(journal)


def _with(events: Path, **changes: object) -> str:
    return json.dumps({**json.loads(events.with_name("server.json").read_text()), **changes})


def test_journal_belongs_to_one_server_settings_and_prompts(tmp_path: Path) -> None:
    """Would catch answers of two servers, or of two temperatures, in one comparison."""
    journal = tmp_path / "journal"
    with StubServer() as server:
        collect(server.url, recorded_prompts(2), journal, SETTINGS)
        with pytest.raises(Eagle3RefError, match=r"temperature = 0\.8.*0\.0, as when it was begun"):
            collect(server.url, recorded_prompts(3), journal, RequestSettings(max_new_tokens=48, temperature=0.8))
        swapped = [Prompt("p0", recorded_prompts(2)[1].tokens)]
        with pytest.raises(Eagle3RefError, match="other tokens for the prompt 'p0'"):
            collect(server.url, swapped, journal, SETTINGS)
        assert len(server.received) == 2
    with StubServer(info={"speculative_num_steps": 5}) as server:
        with pytest.raises(Eagle3RefError, match="num_steps = 5; expected 3"):
            collect(server.url, recorded_prompts(3), journal, SETTINGS)
        assert server.received == []
    with StubServer() as server:  # at another port, which is no matter
        assert collect(server.url, recorded_prompts(3), journal, SETTINGS).answered == 3


def test_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    """Would catch a folder of somebody's results written over, even one with a file of the journal's name."""
    (tmp_path / "requests.jsonl").write_text("mine\n")
    (tmp_path / "server.json").write_text('{"mine": true}')
    assert not is_journal(tmp_path)
    with StubServer() as server:
        for path in (tmp_path, tmp_path / "requests.jsonl"):
            with pytest.raises(Eagle3RefError, match="nothing was touched"):
                collect(server.url, recorded_prompts(1), path, SETTINGS)
        assert server.received == []
    assert (tmp_path / "requests.jsonl").read_text() == "mine\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["requests.jsonl", "server.json"]


def test_beginning_that_was_killed_begins_again(tmp_path: Path) -> None:
    """Would catch a folder that cannot be used any more since a kill left it without its server."""
    journal = tmp_path / "journal"
    journal.mkdir()
    for name in (".lock", "requests.jsonl", "server.json.partial"):
        (journal / name).touch()
    with StubServer() as server:
        assert collect(server.url, recorded_prompts(1), journal, SETTINGS).answered == 1


def test_full_disk_ends_the_run_and_spoils_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch requests that go out although they cannot be written down."""
    journal = tmp_path / "journal"
    with StubServer() as server:
        collect(server.url, recorded_prompts(1), journal, SETTINGS)

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as disk:
            disk.setattr("eagle3ref.durable.os.fsync", full)
            with pytest.raises(Eagle3RefError, match="No space left on device"):
                collect(server.url, recorded_prompts(3), journal, SETTINGS)
        assert len(server.received) == 1
        assert collect(server.url, recorded_prompts(3), journal, SETTINGS).answered == 3
        assert len(server.received) == 3


def test_no_journal(tmp_path: Path) -> None:
    """Would catch an empty collection read from nowhere."""
    with pytest.raises(Eagle3RefError, match="a folder that a collection from a server has made"):
        read_journal(tmp_path / "nowhere")
