"""Prompts to a running server, answers to a journal: never more requests than asked for, and nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers.client.collection import Collection, read_journal
from eagle3ref.servers.client.facts import ServerFacts
from eagle3ref.servers.client.http import Connection
from eagle3ref.servers.client.journal import Journal
from eagle3ref.servers.client.limits import Limits, tokens_by_id
from eagle3ref.servers.client.pages import fetch_pages, settled_pages
from eagle3ref.servers.client.recognize import recognize
from eagle3ref.servers.client.record import FORMAT
from eagle3ref.servers.client.sending import Progress, Sender
from eagle3ref.servers.client.settings import RequestSettings
from eagle3ref.trace.prompts import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

API_KEY_VARIABLE = "EAGLE3REF_API_KEY"


def collect(
    url: str,
    prompts: Sequence[Prompt],
    journal: str | Path,
    settings: RequestSettings,
    *,
    model: str | None = None,
    max_requests: int | None = None,
    retries: int = 8,
    concurrency: int = 1,
    timeout: float = 600.0,
    api_key: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    on_server: Callable[[ServerFacts], None] | None = None,
    on_request: Callable[[Progress], None] | None = None,
) -> Collection:
    """Send prompts to a running SGLang, vLLM or other OpenAI-compatible server, and read what its answers say.

    The server is recognized, and its model checked, before anything is sent. Every request is in the journal before it
    goes out, and its answer when it is there; the same call on the same folder goes on from that, after a kill too.
    What was sent and never answered counts as sent. Ctrl-C leaves with ``KeyboardInterrupt`` and a complete journal.

    Args:
        url: ``http://host:port``, with the path in front of the server's endpoints if there is one.
        prompts: to send, with different ids.
        journal: a folder; made if it is missing.
        settings: of every request.
        model: name or path that the server's model must have; None takes any.
        max_requests: never are more sent than this, over all runs of the journal. None: one for each prompt, and
            ``retries``.
        retries: further tries after a failure that may pass, of all prompts and runs together. They are in
            ``max_requests``; prompts that were never sent go first.
        concurrency: requests in flight.
        timeout: seconds for one request, from its start to the last byte of its answer.
        api_key: None takes that of the environment's ``EAGLE3REF_API_KEY``, if there is one. It is written nowhere.
        tokenizer: for the ids of answers of a server that gives text only.
        on_server: called once the server is recognized, before anything is sent.
        on_request: called after each request has ended.

    Returns:
        What the journal holds. A server that went away in between, or a budget that did not last, is told in
        ``stopped``.

    Raises:
        Eagle3RefError: no server, another model, a refused key, arguments that do not go together, a journal of another
            server or other settings, or not a single answer.
    """
    tokens = tokens_by_id(prompts)
    limits = Limits(
        max_requests=len(tokens) + retries if max_requests is None else max_requests,
        retries=retries,
        concurrency=concurrency,
        timeout=timeout,
    )

    async def run() -> str | None:
        async with Connection(url, _key(api_key)) as connection:
            facts = await recognize(connection, model)
            if on_server is not None:
                on_server(facts)
            beginning = {
                "format": FORMAT,
                "url": connection.url,
                "begun": datetime.now(timezone.utc).isoformat(),
                "facts": asdict(facts),
                "settings": settings.to_dict(),
            }
            with Journal.open(journal, beginning) as opened:
                sender = Sender(connection, facts, opened, tokens, settings, limits, on_request)
                if sender.has_work:
                    opened.pages("before", await fetch_pages(connection, facts))
                    await sender.send_all()
                    opened.pages("after", await settled_pages(connection, facts))
                return sender.stopped

    stopped = _run_apart(run)
    collection = replace(read_journal(journal, tokenizer), stopped=stopped)
    if not collection.answered:
        why = next(iter(collection.unanswered.values()), stopped or "nothing was sent")
        raise Eagle3RefError(
            f"collecting answers from {url}",
            found=f"not one answer to {collection.sent} requests ({why})",
            expected="an answer to each prompt",
            action="See to the server. The same command goes on from there, with more retries if they are used up.",
        )
    return collection


def _key(given: str | None) -> str | None:
    key = (os.environ.get(API_KEY_VARIABLE, "") if given is None else given).strip()
    if key and not (key.isascii() and key.isprintable()):
        raise Eagle3RefError(
            "reading the API key",
            found="characters that no HTTP header takes",
            expected="printable ASCII",
            action=f"Correct {API_KEY_VARIABLE}, or the key that was given.",
        )
    return key or None


def _run_apart(work: Callable[[], Awaitable[str | None]]) -> str | None:
    """Run a coroutine in a thread of its own: the caller may have a running loop, as notebooks do.

    Ctrl-C reaches the calling thread alone; the coroutine is cancelled, and its files are closed before this returns.
    """
    cancel: list[Callable[[], Any]] = []

    async def cancellable() -> str | None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None  # a coroutine runs in one
        cancel.append(lambda: loop.call_soon_threadsafe(task.cancel))
        return await work()

    with ThreadPoolExecutor(max_workers=1) as thread:
        ended = thread.submit(lambda: asyncio.run(cancellable()))
        try:
            return ended.result()
        except KeyboardInterrupt:
            with contextlib.suppress(RuntimeError, IndexError):  # it has ended, or not begun
                cancel[0]()
            raise
