"""Per-step evaluation as training code does it, at every position of a chain, against ours."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from peers.safeailab import states_of
from peers.timing import Arm, Seconds, interleaved, seconds
from peers.worker import Worker
from peers.workloads import Workload, generated_tokens
from safetensors.torch import save_file

import eagle3ref as e3
from eagle3ref.draft import export_draft
from eagle3ref.positions import replay_positions

SPECULATORS = "speculators, all steps"
SEQUENCES = {"nano": 8, "mid-size": 2}


def compare(workload: Workload, tree: e3.TreeConfig, python: Path, folder: Path, repeats: int) -> dict[str, Any]:
    """Accepted lengths of a chain at every position, teacher-forced by speculators and replayed here; then times."""
    trace = workload.first(SEQUENCES[workload.name])
    export_draft(workload.draft, folder / "draft", format="speculators")
    stored = {}
    for i, sequence in enumerate(trace):
        stored |= {f"tokens.{i}": sequence.tokens, f"states.{i}": states_of(sequence, workload.draft)}
    save_file(stored, folder / "sequences.safetensors")
    everywhere = partial(replay_positions, trace, workload.draft, tree, positions="all")
    tokens = generated_tokens(trace)
    arguments = (folder / "draft", folder / "sequences.safetensors", tree.num_steps)
    environment = {"PYTHONPATH": "", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    with Worker(python, "speculators_steps.py", *arguments, environment=environment) as theirs:
        found = theirs.ask("")["accepted"]
        same = total = 0
        for ours, right, sequence in zip(everywhere().sequences, found, trace, strict=True):
            rows = right[sequence.prompt_length - 1 : len(sequence.tokens) - 2]  # row L - 1 leads to root L
            same += sum(a == b for a, b in zip(ours.num_accepted.tolist(), rows, strict=True))
            total += len(rows)
        arms = [
            Arm("replay_positions, all", tokens, partial(seconds, everywhere)),
            Arm(SPECULATORS, tokens, lambda: Seconds(*theirs.ask("")["seconds"])),
        ]
        rows = interleaved(arms, repeats)
    return {"pair": workload.name, "tree": str(tree), "positions": total, "positions_equal": same, "arms": rows}
