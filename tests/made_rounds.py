"""Replays that were never run: rounds with given accepted drafts, and the trace and the server that go with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import torch

import eagle3ref as e3
from eagle3ref.replay import SequenceRounds, count_rounds
from eagle3ref.servers import Evidence, Reading, Rounded, read

CHAIN = e3.TreeConfig(3, 1, 4)
TWO_PROMPTS = ([[3, 3, 0, 2, 1], [0, 0, 1, 0, 2, 3]], [14, 11])
PROMPT_LENGTH = 4


@dataclass(frozen=True)
class MadeTrace:
    """As much of a trace as a cross-check asks for."""

    sequences: list[SimpleNamespace]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(sequence.id for sequence in self.sequences)

    @property
    def entries(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(num_tokens=len(s.tokens), prompt_length=s.prompt_length) for s in self.sequences]

    def __iter__(self):
        return iter(self.sequences)

    def __len__(self) -> int:
        return len(self.sequences)


def answer_of(prompt: int, length: int) -> torch.Tensor:
    """Tokens that no other prompt has."""
    return torch.arange(length) + 1000 * (prompt + 1)


def made_trace(lengths: Sequence[int]) -> MadeTrace:
    """A sequence for each answer length."""
    sequences = []
    for i, length in enumerate(lengths):
        prompt = torch.full((PROMPT_LENGTH,), i + 1)
        tokens = torch.cat((prompt, answer_of(i, length)))
        sequences.append(
            SimpleNamespace(id=str(i), tokens=tokens, prompt_length=PROMPT_LENGTH, answer=tokens[PROMPT_LENGTH:])
        )
    return MadeTrace(sequences)


def made_rounds(accepted: Sequence[Sequence[int]], lengths: Sequence[int], tree: e3.TreeConfig = CHAIN):
    """SequenceRounds of each prompt: the accepted drafts c of its rounds, cut where the record ends."""
    made = []
    for i, (counts, length) in enumerate(zip(accepted, lengths, strict=True)):
        end, root, roots, kept = PROMPT_LENGTH + length - 1, PROMPT_LENGTH, [], []
        for c in counts:
            if root >= end:
                break
            roots.append(root)
            kept.append(min(c, end - root))
            root += kept[-1] + 1
        assert root >= end, "these rounds do not reach the end of the answer"
        complete = torch.tensor(roots) + tree.num_steps <= end
        proposed = torch.zeros(len(roots), tree.num_steps, dtype=torch.int64)
        proposed[:, 0] = tree.num_draft_tokens - 1 - (tree.num_steps - 1)
        proposed[:, 1:] = 1
        made.append(
            SequenceRounds(
                id=str(i),
                roots=torch.tensor(roots),
                num_accepted=torch.tensor(kept),
                complete=complete,
                proposed_at=proposed,
                off_argmax_tokens=0,
                recorded_tokens=length,
                in_limit=complete,
                expected_at=None,
            )
        )
    return made


def replayed(accepted: Sequence[Sequence[int]], lengths: Sequence[int], tree: e3.TreeConfig = CHAIN):
    """(trace, rounds, counts)."""
    rounds = made_rounds(accepted, lengths, tree)
    return made_trace(lengths), rounds, count_rounds(rounds, tree, "exact")


def drafts_of(rng: np.random.Generator, rates: np.ndarray, num_rounds: int, steps: int = 3) -> list[list[int]]:
    """Accepted drafts of ``num_rounds`` rounds of each prompt, whose drafts are each right at the prompt's own rate."""
    misses = rng.random((len(rates), num_rounds, steps)) > rates[:, None, None]
    return np.where(misses.any(-1), misses.argmax(-1), steps).tolist()


def request(prompt: int, accepted: Sequence[int], length: int, steps: int = 3, **fields) -> Reading:
    """What a server tells of a request, as SGLang does; its last round is counted whole."""
    histogram = np.bincount(accepted, minlength=steps + 1)
    given = {
        "request_id": f"r{prompt}",
        "prompt_ids": (prompt + 1,) * PROMPT_LENGTH,
        "output_ids": tuple(answer_of(prompt, length).tolist()),
        "completion_tokens": length,
        "rounds": len(accepted),
        "accepted_drafts": int(sum(accepted)),
        "proposed_drafts": steps * len(accepted),
        "histogram": tuple(histogram.tolist()),
    }
    return Reading(tool="SGLang", format="meta_info", scope="request", **{**given, **fields})


def evidence(*readings: Reading) -> Evidence:
    return Evidence(readings)


def log(*lines: str) -> Evidence:
    return Evidence.gather(read(list(lines)))


def line(length: float, rate: float, second: int = 0, running: int = 1) -> str:
    return (
        f"[2026-06-24 10:{second // 60:02d}:{second % 60:02d} TP0] Decode batch, #running-req: {running}, #token: 412, "
        f"token usage: 0.01, accept len: {length:.2f}, accept rate: {rate:.2f}, cuda graph: True, "
        "gen throughput (token/s): 80.00, #queue-req: 0"
    )


def run(length: str, **fields) -> Reading:
    settings = {"accept_length": Rounded.printed(length), "scope": "run", **fields}
    return Reading(tool="SGLang", format="bench", **settings)


def untold(prompt: int, length: int) -> Reading:
    """A request without acceptance, as vLLM tells it."""
    return replace(request(prompt, [0], length), rounds=None, accepted_drafts=None, histogram=(), proposed_drafts=None)


def workload(seed: int, prompts: int, shift: float = 0.0, rounds: int = 30):
    """A replay, and a server's pooled run on other prompts of the same workload, at a true difference."""
    rng = np.random.default_rng(seed)
    own = drafts_of(rng, rng.beta(5, 5, prompts), rounds)
    lengths = [1 + sum(c + 1 for c in row) for row in own]
    other = drafts_of(rng, rng.beta(5, 5, prompts), rounds)
    accepted = sum(map(sum, other)) + round(shift * prompts * rounds)
    reading = Reading(tool="vLLM", format="counters", scope="run", rounds=prompts * rounds, accepted_drafts=accepted)
    return (*replayed(own, lengths), evidence(reading))
