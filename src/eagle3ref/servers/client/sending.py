"""The requests of one run: which prompt goes next, what is tried again, and when to stop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers.client.answers import unusable
from eagle3ref.servers.client.facts import ServerFacts
from eagle3ref.servers.client.http import Connection, Failure, json_object
from eagle3ref.servers.client.journal import Journal
from eagle3ref.servers.client.limits import Limits
from eagle3ref.servers.client.record import Asked
from eagle3ref.servers.client.settings import RequestSettings, request_body

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before trying again; each pause is twice the one before
_CONNECTION_TRIES = 4
_FAILED_PROMPTS = 5  # in a row: what fails for these will fail for the next


@dataclass(frozen=True)
class Progress:
    """Where a collection stands, after a request has ended.

    Args:
        prompt_id: of that request.
        why: it failed; "" if it was answered.
        answered: prompts with an answer, those of earlier runs included.
        failed: prompts that were sent and have none.
        sent: requests, those of earlier runs included.
        total: prompts.
    """

    prompt_id: str
    why: str
    answered: int
    failed: int
    sent: int
    total: int


class Sender:
    """Sends what a journal lacks.

    Args:
        connection: to the server.
        facts: of the server.
        journal: open; with what earlier runs have sent.
        tokens: of all prompts that are wanted, by id.
        settings: of every request.
        limits: that earlier runs count into.
        on_request: called after each.

    Attributes:
        stopped: why no more is sent, a sentence; None while there is no reason.

    Raises:
        Eagle3RefError: a prompt of the journal has other tokens now.
    """

    def __init__(
        self,
        connection: Connection,
        facts: ServerFacts,
        journal: Journal,
        tokens: Mapping[str, tuple[int, ...]],
        settings: RequestSettings,
        limits: Limits,
        on_request: Callable[[Progress], None] | None,
    ) -> None:
        self._connection, self._facts, self._journal = connection, facts, journal
        self._tokens, self._settings, self._limits, self._on_request = tokens, settings, limits, on_request
        self._index = {name: index for index, name in enumerate(tokens)}
        self._refuse_other_prompts()
        asked = journal.record.asked
        # Prompts that were never sent go first: the budget is for them before it is for second tries.
        fresh = [name for name in tokens if not self._tries(name)]
        failed = [name for name in tokens if self._tries(name) and asked[name].answer is None and asked[name].again]
        self._waiting = deque(fresh + failed)
        self._failed_in_row = 0
        self.stopped: str | None = None

    @property
    def has_work(self) -> bool:
        """Whether there is a prompt to send, and a request left for it."""
        return self.stopped is None and any(self._may_send(name) for name in self._waiting)

    async def send_all(self) -> None:
        """Send until every prompt has its answer, or ``stopped`` says why not.

        Raises:
            Eagle3RefError: the journal cannot be written.
        """
        workers = [asyncio.create_task(self._work()) for _ in range(min(self._limits.concurrency, len(self._waiting)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self) -> None:
        while self.has_work:
            await self._ask(self._waiting.popleft())

    async def _ask(self, name: str) -> None:
        """One prompt, with the tries that it is allowed."""
        pause, unconnected, failure = FIRST_PAUSE, 0, None
        while self.stopped is None and self._may_send(name):
            if failure is not None:
                await asyncio.sleep(min(max(pause, failure.wait), LONGEST_PAUSE))
                pause *= 2
                if self.stopped is not None or not self._may_send(name):  # others have sent in the meantime
                    break
            failure = await self._try(name)
            self._tell(name)
            if failure is None:
                self._failed_in_row = 0
                return
            unconnected = 0 if failure.sent else unconnected + 1
            if unconnected == _CONNECTION_TRIES:
                self.stopped = f"The server takes no connections any more ({failure.why})."
            elif failure.for_all:
                self.stopped = f"The server refuses the requests ({failure.why})."
            if not failure.again:
                break
        if failure is not None:
            self._count_failed_prompt(failure)

    def _count_failed_prompt(self, failure: Failure) -> None:
        self._failed_in_row += 1
        if self._failed_in_row >= _FAILED_PROMPTS and self.stopped is None:
            self.stopped = f"{self._failed_in_row} prompts in a row got no answer (the last: {failure.why})."

    async def _try(self, name: str) -> Failure | None:
        """One request; None if it was answered."""
        ids = self._tokens[name]
        body = request_body(self._facts, self._settings, list(ids), self._index[name])
        self._journal.sent(name, ids)
        response = await self._connection.post(self._facts.endpoint, body, self._limits.timeout)
        answer = response if isinstance(response, Failure) else json_object(response)
        failure = answer if isinstance(answer, Failure) else unusable(self._facts, answer)
        if failure is not None:
            self._journal.failed(name, failure)
        elif not isinstance(answer, Failure) and not isinstance(response, Failure):
            self._journal.answered(name, answer, response.seconds)
        return failure

    def _may_send(self, name: str) -> bool:
        """Whether the budget has a request for this prompt. If it has none for any, ``stopped`` says so."""
        if not self._tries(name):
            return self._may_send_first()
        sent = self._journal.record.sent
        never_sent = sum(not self._tries(other) for other in self._tokens)
        tried_again = sent - sum(asked.tries > 0 for asked in self._journal.record.asked.values())
        return tried_again < self._limits.retries and sent + never_sent < self._limits.max_requests

    def _may_send_first(self) -> bool:
        if self._journal.record.sent < self._limits.max_requests:
            return True
        if self._waiting:
            self.stopped = f"All {self._limits.max_requests} requests that were asked for are sent."
        return False

    def _tries(self, name: str) -> int:
        return self._journal.record.asked.get(name, Asked(())).tries

    def _tell(self, name: str) -> None:
        if self._on_request is None:
            return
        record = self._journal.record
        failed = sum(asked.answer is None and asked.tries > 0 for asked in record.asked.values())
        why = record.asked[name].why
        self._on_request(Progress(name, why, record.answered, failed, record.sent, len(self._tokens)))

    def _refuse_other_prompts(self) -> None:
        for name, asked in self._journal.record.asked.items():
            if name in self._tokens and self._tokens[name] != asked.prompt_ids:
                raise Eagle3RefError(
                    "going on with a journal of requests",
                    found=f"other tokens for the prompt {name!r}",
                    expected="those that were sent under that id",
                    action="Give the prompts that the journal was begun with, or another folder.",
                )
