"""Live decoding held against a replay of what it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

import eagle3ref as e3


def assert_a_replay_has_the_same_rounds(
    target: e3.Target,
    draft: e3.Eagle3Draft,
    prompts: Sequence[Tensor],
    decoded: Sequence[e3.Decoded],
    tree: e3.TreeConfig,
    folder: Path,
) -> None:
    """Record every trajectory, the overrun of its last round included, and replay it: same roots, same counts."""
    recorded = [
        e3.Prompt(str(i), prompt, one.trajectory[len(prompt) :])
        for i, (prompt, one) in enumerate(zip(prompts, decoded, strict=True))
    ]
    trace = e3.capture(target, recorded, folder, capture_points=draft.capture_points)
    rounds = {sequence.id: sequence for sequence in e3.replay_rounds(trace, draft, tree)}
    for i, one in enumerate(decoded):
        assert rounds[str(i)].roots.tolist() == one.roots
        assert rounds[str(i)].num_accepted.tolist() == one.num_accepted
