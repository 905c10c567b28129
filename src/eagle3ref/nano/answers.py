"""The target's own answers, which the drafts learn from."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.target import Target
from eagle3ref.target.generate import Sampling, generate

PROMPT_LENGTH = 64
ANSWER_LENGTH = 128
TEMPERATURE = 0.8
_BATCH = 128


def training_sequences(target: Target, stream: Tensor, count: int, seed: int) -> Tensor:
    """Random windows of the training text, each answered by the target: half greedily, half at temperature 0.8.

    Answers that end early are followed by the next window's tokens, so that every row has the same length.

    Args:
        target: the trained target.
        stream: int64 [T], the training text.
        count: how many sequences.
        seed: of the windows and answers.

    Returns:
        int64 [count, PROMPT_LENGTH + ANSWER_LENGTH].
    """
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(stream) - PROMPT_LENGTH, (count,), generator=generator).tolist()
    prompts = [stream[start : start + PROMPT_LENGTH] for start in starts]
    made: list[Tensor] = []
    for first in range(0, count, _BATCH):
        batch = prompts[first : first + _BATCH]
        temperature = TEMPERATURE if (first // _BATCH) % 2 else 0.0
        answers = generate(
            target,
            batch,
            max_new_tokens=ANSWER_LENGTH,
            sampling=Sampling(temperature, seed=seed),
            prompt_indices=range(first, first + len(batch)),
        )
        made += [torch.cat(pair) for pair in zip(batch, answers, strict=True)]
    length = PROMPT_LENGTH + ANSWER_LENGTH
    joined = torch.cat(made)
    return joined[: len(joined) // length * length].view(-1, length)
