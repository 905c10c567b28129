"""A pass: the prompts that go through the target together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3ref.trace.prompts import Prompt


@dataclass(frozen=True, eq=False)
class Pass:
    """Prompts and their answers, in the order in which they are recorded.

    Args:
        prompts: each with its answer.
    """

    prompts: tuple[Prompt, ...]

    @property
    def sequences(self) -> list[Tensor]:
        """Prompt and answer of each, int64 [T]."""
        return [torch.cat((prompt.tokens, known_answer(prompt))) for prompt in self.prompts]

    @property
    def lengths(self) -> list[int]:
        """T of each sequence."""
        return [len(prompt.tokens) + len(known_answer(prompt)) for prompt in self.prompts]

    def count_tokens(self, ids: Set[str]) -> int:
        """Tokens of those sequences."""
        return sum(length for prompt, length in zip(self.prompts, self.lengths, strict=True) if prompt.id in ids)


@dataclass(frozen=True)
class LayerDone:
    """How far a capture with streamed weights has come.

    Args:
        number: of the pass, from 0.
        num_passes: of this run.
        layer: that all streams of the pass enter now; ``num_layers`` when it is through.
        num_layers: of the target.
        num_tokens: of the pass.
        bytes_read: of weights, by the target so far.
    """

    number: int
    num_passes: int
    layer: int
    num_layers: int
    num_tokens: int
    bytes_read: int


def split_passes(num_prompts: int, batch_size: int | None, fits: Callable[[range], bool]) -> Iterator[range]:
    """Cut the prompts into runs of neighbours, as long as ``batch_size`` and the memory allow.

    The same prompts are always cut alike, whatever of them is recorded already: the last bits of a state may depend on
    which sequences share a pass.

    Args:
        num_prompts: all of them.
        batch_size: prompts of a pass at most.
        fits: whether these places may share a pass.

    Yields:
        Places of prompts. A single prompt is a pass even if it does not fit; whoever runs it refuses it.
    """
    start = 0
    for i in range(1, num_prompts):
        if i - start == batch_size or not fits(range(start, i + 1)):
            yield range(start, i)
            start = i
    yield range(start, num_prompts)


def known_answer(prompt: Prompt) -> Tensor:
    """int64, the answer of a prompt that is part of a pass."""
    assert prompt.answer is not None  # a pass is made when all are known
    return prompt.answer


def longest_lengths(prompts: Sequence[Prompt], max_new_tokens: int) -> list[int]:
    """Tokens of each prompt with its answer; an answer that is to be generated counts with all it may have."""
    return [
        len(prompt.tokens) + (max_new_tokens if prompt.answer is None else len(prompt.answer)) for prompt in prompts
    ]
