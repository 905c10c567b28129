"""What is scored: a draft and a trace of it, as folders that other processes open too."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import mid_size
import torch

import eagle3ref as e3
from eagle3ref.trace import TraceWriter

NANO_PROMPTS, NANO_NEW_TOKENS, NANO_SEQUENCES = 48, 128, 192


@dataclass(frozen=True)
class Workload:
    """A draft in fp32 and a trace.

    Args:
        name: as the tables have it.
        draft_path: folder of the draft.
        target_path: folder of the target that supplies the embedding, or None.
        draft: the same, loaded.
        trace: recorded, or made, at its capture points.
    """

    name: str
    draft_path: Path
    target_path: Path | None
    draft: e3.Eagle3Draft
    trace: e3.Trace

    def first(self, count: int) -> e3.Trace:
        """The first sequences of the trace."""
        return dataclasses.replace(self.trace, entries=self.trace.entries[:count])


def nano(folder: Path) -> Workload:
    """The embedded trained pair, 48 prompts with up to 128 greedy tokens each, four times over."""
    target = e3.load_target(e3.nano.target_path(), dtype=torch.float32)
    draft = e3.load_draft(e3.nano.draft_path(), target=target, dtype=torch.float32)
    prompts = e3.read_prompts(e3.nano.prompts_path(), e3.nano.target_path())[0][:NANO_PROMPTS]
    points = draft.capture_points
    once = e3.capture(target, prompts, folder / "once", capture_points=points, max_new_tokens=NANO_NEW_TOKENS)
    trace = repeat(once, folder / "nano", NANO_SEQUENCES)
    return Workload("nano", e3.nano.draft_path(), e3.nano.target_path(), draft, trace)


def mid(folder: Path, given: Path | None) -> Workload:
    """The mid-size random pair: hidden 1024, vocabulary 32k, draft vocabulary 16k, sequences of 512 tokens."""
    where = given or folder / "mid"
    if given is None:
        mid_size.write_draft(where / "draft")
        mid_size.write_trace(e3.load_draft(where / "draft"), where / "trace")
    draft = e3.load_draft(where / "draft", dtype=torch.float32)
    return Workload("mid-size", where / "draft", None, draft, e3.Trace.open(where / "trace"))


def repeat(trace: e3.Trace, folder: Path, count: int) -> e3.Trace:
    """``count`` sequences: those of a trace over and over, under other ids."""
    sequences = list(trace)
    with TraceWriter.open(folder, trace.header) as writer:
        for i in range(count):
            writer.add(dataclasses.replace(sequences[i % len(sequences)], id=f"sequence-{i}"))
    return e3.Trace.open(folder)


def generated_tokens(trace: e3.Trace) -> int:
    """Tokens that the trajectories of a trace generated, prompts not counted."""
    return sum(entry.num_tokens - entry.prompt_length for entry in trace.entries)
