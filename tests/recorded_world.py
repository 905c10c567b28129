"""A made-up target on three tokens whose every probability is known, a random draft, and traces in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace

import torch
from tiny import WIDTH, draft_folder
from torch import Tensor

import eagle3ref as e3
from eagle3ref.draft import Eagle3Draft
from eagle3ref.trace import RecordedSampling, RecordedSequence, TargetIdentity, TraceHeader

POINTS = (2, 3, 4)
States = Callable[[tuple[int, ...]], tuple[Tensor, Tensor]]
"""Tokens so far -> (aux hidden states [3 * WIDTH], final hidden state [WIDTH]) of the last one."""


def small_draft(folder: Path, vocab_size: int, target_ids: Sequence[int], seed: int = 0) -> Eagle3Draft:
    """In fp64, on a vocabulary small enough to enumerate, with opinions."""
    config = e3.load_draft(draft_folder(folder / "draft"), capture_points=POINTS).config
    config = replace(config, vocab_size=vocab_size, draft_vocab_size=len(target_ids))
    torch.manual_seed(seed)
    draft = Eagle3Draft(config, 1, POINTS, torch.tensor(target_ids)).double().requires_grad_(False)
    draft.lm_head.weight *= 8
    draft.embed_tokens.weight *= 2
    return draft


@cache
def hashed_states(tokens: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Different for every prefix, always the same for one."""
    generator = torch.Generator().manual_seed(hash(tokens) % 2**31)
    states = torch.randn(4 * WIDTH, dtype=torch.float64, generator=generator)
    return states[: 3 * WIDTH], states[3 * WIDTH :]


@dataclass(frozen=True)
class World:
    """What writes the text, and how it is sampled."""

    head: Tensor  # [V, WIDTH]
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    states: States = hashed_states

    @property
    def target(self) -> SimpleNamespace:
        """As much of a loaded target as a replay may ask for."""
        config = e3.TargetConfig("world", "", "test", 7, WIDTH, len(self.head), 4096, ())
        return SimpleNamespace(
            config=config,
            embedding=lambda: self.head,
            lm_head=lambda: self.head,
            logits=lambda states: states @ self.head.T,
        )

    def trace(self, texts: Sequence[tuple[int, ...]], prompt_length: int, max_new_tokens: int) -> MemoryTrace:
        """Every text as a recorded sequence."""
        sequences = [self._recorded(str(i), text, prompt_length) for i, text in enumerate(texts)]
        identity = TargetIdentity("world", "", "test", 7, WIDTH, len(self.head), "")
        sampling = RecordedSampling(self.temperature, self.top_p, self.top_k, None, max_new_tokens)
        return MemoryTrace(TraceHeader(identity, None, POINTS, "float64", sampling, "test 1"), sequences)

    def _recorded(self, name: str, text: tuple[int, ...], prompt_length: int) -> RecordedSequence:
        aux, final = (torch.stack(rows) for rows in zip(*map(self.states, prefixes(text)), strict=True))
        states = dict(zip(POINTS, aux.chunk(3, -1), strict=True))
        argmax = (final @ self.head.T).argmax(-1)
        tokens = torch.tensor(text)
        return RecordedSequence(name, tokens, prompt_length, states, argmax=argmax, final_hidden_state=final)


@dataclass(frozen=True)
class MemoryTrace:
    """A trace that was never written: thousands of files would take longer than all the rest."""

    header: TraceHeader
    sequences: list[RecordedSequence]
    path: Path = Path("memory")

    @cached_property
    def entries(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(num_tokens=len(s.tokens), prompt_length=s.prompt_length) for s in self.sequences]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(sequence.id for sequence in self.sequences)

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> RecordedSequence:
        return self.sequences[index]


def prefixes(text: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All of them, from the first token to the whole text."""
    return [text[:end] for end in range(1, len(text) + 1)]


def entropy_scaled_head(vocab_size: int, scale: float, seed: int = 3) -> Tensor:
    """[V, WIDTH] with logits of that standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    head = torch.randn(vocab_size, WIDTH, dtype=torch.float64, generator=generator)
    return head * scale / math.sqrt(WIDTH)
