"""Pairs of target and draft with their files, and traces with everything that a laboratory may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch
from engines import comparison
from engines.drafts import write_draft
from engines.plan import OUTPUT_IDS, POINTS
from faulty_server import FaultyServer, PlainTarget, SampledTarget

import eagle3ref as e3
from eagle3ref import nano
from eagle3ref.diagnose.laboratory import Laboratory
from eagle3ref.draft import Eagle3Draft

NEW_TOKENS, LOOKAHEAD = 12, 8


@dataclass(frozen=True, eq=False)
class World:
    """One pair and some prompts.

    Args:
        target: with what a server remembers of it.
        folder: of the draft.
        draft: loaded from there.
        prompts: token ids.
        new_tokens: of a server's answer; the trace goes on behind it.
        trace: of the target, with every capture point and the final hidden states.
    """

    target: PlainTarget
    folder: Path
    draft: Eagle3Draft
    prompts: list[list[int]]
    new_tokens: int
    trace: e3.Trace

    def laboratory(self, tree: e3.TreeConfig) -> Laboratory:
        return Laboratory(self.trace, self.draft, tree, target=self.target.target)

    def server(self, tree: e3.TreeConfig, faults: Sequence[str] = ()) -> FaultyServer:
        return FaultyServer(self.target, self.folder, self.draft.capture_points, tree, faults)


def record(
    target: e3.Target, draft: Eagle3Draft, folder: Path, prompts: list[list[int]], new_tokens: int = NEW_TOKENS
) -> World:
    """A world of these; the trace lies in a temporary folder."""
    trace = e3.capture(
        target,
        [torch.tensor(prompt) for prompt in prompts],
        mkdtemp(prefix="eagle3ref-world-"),
        capture_points=range(target.config.num_layers + 1),
        max_new_tokens=new_tokens + LOOKAHEAD,
        final_hidden_state=True,
    )
    return World(PlainTarget(target), folder, draft, prompts, new_tokens, trace)


@cache
def world(kind: str, num_prompts: int = 2, new_tokens: int = NEW_TOKENS) -> World:
    """``gqa`` and ``mla``: the nano drafts; ``llama``: the pair that real engines served; else a variant of that."""
    if kind in ("gqa", "mla"):
        target = e3.load_target(nano.target_path(), dtype=torch.float32)
        folder = nano.draft_path() if kind == "gqa" else nano.mla_draft_path()
        prompts = [p.tokens.tolist() for p in e3.read_prompts(nano.prompts_path(), nano.target_path())[0]]
        draft = e3.load_draft(folder, target=target, dtype=torch.float32)
        return record(target, draft, folder, sorted(prompts, key=len)[:num_prompts], new_tokens)
    folder = write_draft(OUTPUT_IDS, "" if kind == "llama" else kind, Path(mkdtemp(prefix="eagle3ref-world-")))
    draft = e3.load_draft(folder, target=comparison.target(), capture_points=POINTS, dtype=torch.float32)
    prompts = [prompt.tolist() for prompt in comparison.prompts()]
    return record(comparison.target(), draft, folder, prompts[:num_prompts], new_tokens)


@cache
def sampled_world(kind: str, num_prompts: int, new_tokens: int, temperature: float) -> World:
    """As ``world``, with answers that the target drew."""
    here = world(kind, num_prompts, new_tokens)
    target = SampledTarget(here.target.target, temperature)
    server = FaultyServer(target, here.folder, here.draft.capture_points, e3.TreeConfig(1, 1, 2))
    answers = [server.answer(prompt, new_tokens + LOOKAHEAD).tokens for prompt in here.prompts]
    trace = e3.capture(
        target.target,
        [
            e3.Prompt(str(i), torch.tensor(prompt), torch.tensor(answer))
            for i, (prompt, answer) in enumerate(zip(here.prompts, answers, strict=True))
        ],
        mkdtemp(prefix="eagle3ref-world-"),
        capture_points=range(target.target.config.num_layers + 1),
        final_hidden_state=True,
        sampling=e3.Sampling(temperature=temperature),
    )
    return World(target, here.folder, here.draft, here.prompts, new_tokens, trace)
