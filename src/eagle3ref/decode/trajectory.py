"""What one prompt has come to: its tokens, and the rounds that brought them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field


@dataclass
class Trajectory:
    """A prompt and everything committed behind it.

    Args:
        place: of the prompt among those that are decoded together.
        tokens: prompt, then what was committed; the last round may run past the answer's end.
        prompt_length: how many of them are the prompt.
        roots: token index of the root of each round.
        num_accepted: accepted drafts of each round.
    """

    place: int
    tokens: list[int]
    prompt_length: int
    roots: list[int] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)

    @property
    def root(self) -> int:
        """Token index of the last committed, not yet verified token."""
        return len(self.tokens) - 1

    @property
    def num_new(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_length

    def commit(self, new_tokens: Sequence[int]) -> None:
        """Add the first token, or what a round gave: the accepted drafts and the token after them."""
        if self.num_new:
            self.roots.append(self.root)
            self.num_accepted.append(len(new_tokens) - 1)
        self.tokens += new_tokens

    def answer(self, max_new_tokens: int, ends: Collection[int]) -> list[int]:
        """At most ``max_new_tokens``, up to and with the first end token."""
        tokens = self.tokens[self.prompt_length :][:max_new_tokens]
        stop = next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))
        return tokens[:stop]

    def finished(self, max_new_tokens: int, ends: Collection[int]) -> bool:
        """Whether the answer is complete."""
        answer = self.answer(max_new_tokens, ends)
        return len(answer) == max_new_tokens or (bool(answer) and answer[-1] in ends)
