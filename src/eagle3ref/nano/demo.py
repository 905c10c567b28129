"""The main job on the embedded pair: capture held-out prompts, replay the drafts, judge a server that is mis-wired."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3ref import nano
from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.config import TreeConfig
from eagle3ref.draft import Eagle3Draft, load_draft
from eagle3ref.inspection import TraceSummary, summarize_trace
from eagle3ref.nano.demo_server import Advance, DemoServer, run_demo_server
from eagle3ref.replay import replay
from eagle3ref.target import Target, load_target
from eagle3ref.target.generate import Sampling
from eagle3ref.trace import Trace, capture, read_prompts

CHAIN = TreeConfig(num_steps=3, topk=1, num_draft_tokens=4)
TREE = TreeConfig(num_steps=5, topk=4, num_draft_tokens=16)
# Greedy answers of a model this small soon repeat themselves, so they are kept short.
_CAPTURES = {"greedy": (Sampling(), 32), "T=0.8": (Sampling(temperature=0.8, seed=0), 128)}
_DTYPE = torch.float32
_BATCH_SIZE = 16


@dataclass(frozen=True)
class DemoRun:
    """One replay: which answers, which draft, and what was counted."""

    answers: str
    draft: str
    counts: AcceptanceCounts


@dataclass(frozen=True)
class Demo:
    """All replays, what they were replayed on by the name of the answers, and the server."""

    traces: Mapping[str, TraceSummary]
    runs: tuple[DemoRun, ...]
    server: DemoServer


def run_demo(folder: Path, begin: Callable[[str, int], Advance]) -> Demo:
    """Capture greedy and sampled answers of the nano target, replay the nano drafts on both, and judge a server.

    Args:
        folder: where the traces go; what is there already is not captured again.
        begin: called with the name and the number of sequences of each stage; what it returns is called after
            every sequence with its number of tokens.

    Raises:
        Eagle3RefError: the nano pair is not installed, or ``folder`` holds other traces.
    """
    target = load_target(nano.target_path(), dtype=_DTYPE)
    drafts = _drafts(target)
    traces = {answers: _capture(answers, target, drafts, folder, begin) for answers in _CAPTURES}
    runs = []
    for answers, trace in traces.items():
        for name, draft in drafts.items():
            for tree in (CHAIN, TREE) if name == "GQA" else (CHAIN,):
                advance = begin(f"replay {tree} {name}, {answers}", len(trace))
                runs.append(DemoRun(answers, name, _replay(trace, draft, tree, advance)))
    server = run_demo_server(traces["greedy"], drafts["GQA"], target, CHAIN, begin)
    return Demo({answers: summarize_trace(trace) for answers, trace in traces.items()}, tuple(runs), server)


def _drafts(target: Target) -> dict[str, Eagle3Draft]:
    folders = {"GQA": nano.draft_path(), "MLA": nano.mla_draft_path()}
    return {
        name: load_draft(folder, target=target, dtype=_DTYPE)
        for name, folder in folders.items()
        if name == "GQA" or folder.exists()  # the MLA draft is an extra
    }


def _capture(
    answers: str, target: Target, drafts: Mapping[str, Eagle3Draft], folder: Path, begin: Callable[[str, int], Advance]
) -> Trace:
    sampling, max_new_tokens = _CAPTURES[answers]
    prompts, tokenizer_sha256 = read_prompts(nano.prompts_path(), nano.target_path())
    points = {point + step for draft in drafts.values() for point in draft.capture_points for step in (-1, 0, 1)}
    advance = begin(f"capture, {answers}", len(prompts))
    return capture(
        target,
        prompts,
        folder / answers,
        capture_points=sorted(points),
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        batch_size=_BATCH_SIZE,
        tokenizer_sha256=tokenizer_sha256,
        on_sequence=lambda sequence: advance(len(sequence.answer)),
    )


def _replay(trace: Trace, draft: Eagle3Draft, tree: TreeConfig, advance: Advance) -> AcceptanceCounts:
    return replay(trace, draft, tree, on_sequence=lambda rounds: advance(rounds.recorded_tokens))
