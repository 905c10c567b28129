"""The draft side alone, on one trace: our replays, our first one, and SafeAILab's loop."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from peers import earlier
from peers.safeailab import SafeAILabDraft, states_of
from peers.timing import Arm, Seconds, interleaved, seconds
from peers.worker import Worker
from peers.workloads import Workload, generated_tokens

import eagle3ref as e3
from eagle3ref.positions import replay_positions
from eagle3ref.tune import tune

# Both with the true ancestors' rows, as SafeAILab has them.
TREES = (e3.TreeConfig(3, 1, 4), e3.TreeConfig(5, 4, 16, tree_kv="ancestor"))

# Sequences that an arm scores in one run: slow ones fewer. A rate does not depend on it, but for what a batch gains.
SEQUENCES = {"nano": {"peer": 4, "reference": 48, "fast": 192}, "mid-size": {"peer": 1, "reference": 4, "fast": 32}}


WALK, ALL = "replay_positions, walk", "replay_positions, all"
SPINE, SAFEAILAB = "replay at the first issue", "SafeAILab topK_genrate"


class DisagreementError(Exception):
    """Two ways to score the same trace differ, so that no time of theirs means anything."""


def compare(
    workload: Workload, tree: e3.TreeConfig, safeailab: Path | None, spine: Worker, repeats: int
) -> dict[str, Any]:
    """Rounds held against each other, then times.

    Raises:
        DisagreementError: the rounds of two of our own replays are not the same.
    """
    counts = SEQUENCES[workload.name]
    slow, fast = workload.first(counts["reference"]), workload.first(counts["fast"])
    rounds = rounds_of(slow, workload, tree)
    agree("the first replay", rounds, earlier.replay(spine, tree, len(slow))["rounds"])
    walked = replay_positions(fast, workload.draft, tree, positions="walk")
    agree("the fast walk", rounds, [sequence.num_accepted.tolist() for sequence in walked.sequences][: len(slow)])
    everywhere = replay_positions(fast, workload.draft, tree, positions="all")
    arms = [*our_arms(workload, slow, fast, tree), earlier_arm(spine, slow, tree)]
    theirs: dict[str, Any] = {}
    if safeailab is not None:
        arm, theirs = safeailab_arm(safeailab, workload, tree, rounds)
        arms.append(arm)
    rows = interleaved(arms, repeats)
    positions = {
        "walk": sum(len(sequence.roots) for sequence in walked.sequences),
        "all": sum(len(sequence.roots) for sequence in everywhere.sequences),
    }
    return {
        "pair": workload.name,
        "tree": str(tree),
        "acceptance_length": 1 + sum(map(sum, rounds)) / sum(map(len, rounds)),
        "arms": rows,
        "positions": positions,
        **theirs,
    }


def rounds_of(trace: e3.Trace, workload: Workload, tree: e3.TreeConfig) -> list[list[int]]:
    """Accepted drafts of every round of each sequence, in trace order: the reference's."""
    found = {sequence.id: sequence for sequence in e3.replay_rounds(trace, workload.draft, tree)}
    return [found[name].num_accepted.tolist() for name in trace.ids]


def agree(who: str, reference: list[list[int]], found: list[list[int]]) -> None:
    """Raise unless the rounds are the same."""
    differing = sum(ours != theirs for ours, theirs in zip(reference, found, strict=True))
    if differing:
        raise DisagreementError(
            f"{who} accepts other drafts than the reference in {differing} of {len(reference)} sequences"
        )


def our_arms(workload: Workload, slow: e3.Trace, fast: e3.Trace, tree: e3.TreeConfig) -> list[Arm]:
    draft = workload.draft

    def surface() -> None:
        limits = {"max_num_steps": tree.num_steps, "max_num_draft_tokens": tree.num_draft_tokens}
        tune(fast, draft, topks=(tree.topk,), tree_kv=tree.tree_kv, **limits)

    tokens = generated_tokens(fast)
    return [
        Arm("replay, the reference", generated_tokens(slow), partial(seconds, partial(e3.replay, slow, draft, tree))),
        Arm(WALK, tokens, partial(seconds, partial(replay_positions, fast, draft, tree))),
        Arm(
            ALL,
            tokens,
            partial(seconds, partial(replay_positions, fast, draft, tree, positions="all")),
        ),
        Arm("tune, every smaller setting", tokens, partial(seconds, surface)),
    ]


def earlier_arm(spine: Worker, trace: e3.Trace, tree: e3.TreeConfig) -> Arm:
    return Arm(SPINE, generated_tokens(trace), lambda: Seconds(*earlier.replay(spine, tree, len(trace))["seconds"]))


def safeailab_arm(
    folder: Path, workload: Workload, tree: e3.TreeConfig, reference: list[list[int]]
) -> tuple[Arm, dict[str, Any]]:
    """The arm, and in how many of the sequences it accepts what we do; its states are in memory before it starts."""
    theirs = SafeAILabDraft(folder, workload.draft, tree)
    trace = workload.first(SEQUENCES[workload.name]["peer"])
    given = [(sequence.tokens, states_of(sequence, workload.draft), sequence.prompt_length) for sequence in trace]
    found = [theirs.accepted(*sequence) for sequence in given]
    same = sum(one == other for one, other in zip(found, reference, strict=False))

    def run() -> None:
        for sequence in given:
            theirs.accepted(*sequence)

    arm = Arm(SAFEAILAB, generated_tokens(trace), partial(seconds, run))
    return arm, {"safeailab_sequences": len(found), "safeailab_sequences_equal": same}
