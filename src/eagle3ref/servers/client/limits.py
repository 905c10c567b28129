"""How many requests may be sent, and how long each may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace.prompts import Prompt


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one journal: all its runs together.

    Args:
        max_requests: the most that are sent.
        retries: the most of them that are further tries.
        concurrency: in flight at a time.
        timeout: seconds for one, start to end.

    Raises:
        Eagle3RefError: a limit that allows nothing.
    """

    max_requests: int
    retries: int
    concurrency: int
    timeout: float

    def __post_init__(self) -> None:
        for name, holds, expected in (
            ("retries", self.retries >= 0, "0 or more"),
            ("max_requests", self.max_requests >= 1, "at least 1"),
            ("concurrency", self.concurrency >= 1, "at least 1"),
            ("timeout", 0 < self.timeout < float("inf"), "a number of seconds above 0"),
        ):
            if not holds:
                raise _nothing_sent(f"{name} = {getattr(self, name)}", expected)


def tokens_by_id(prompts: Sequence[Prompt]) -> dict[str, tuple[int, ...]]:
    """The prompts' tokens by their ids, in order.

    Raises:
        Eagle3RefError: no prompt, two of one id, or one without a token.
    """
    tokens: dict[str, tuple[int, ...]] = {}
    for prompt in prompts:
        if prompt.id in tokens:
            raise _nothing_sent(f"two prompts of id {prompt.id!r}", "a different id for each")
        tokens[prompt.id] = tuple(prompt.tokens.tolist())
        if not tokens[prompt.id]:
            raise _nothing_sent(f"no token in the prompt {prompt.id!r}", "one or more in each")
    if not tokens:
        raise _nothing_sent("no prompt", "at least one")
    return tokens


def _nothing_sent(found: str, expected: str) -> Eagle3RefError:
    return Eagle3RefError(
        "preparing requests to a server", found=found, expected=expected, action="Correct that; nothing was sent."
    )
