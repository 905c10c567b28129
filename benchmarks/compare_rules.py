"""Acceptance of the nano pair by rule, counted and expected, on one sampled trace.

    python benchmarks/compare_rules.py

The figures of docs/acceptance.md. They are of one seed and no timing, so they are the same on every run of one machine.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import eagle3ref as e3

CHAIN, TREE = e3.TreeConfig(3, 1, 4), e3.TreeConfig(5, 4, 16)
RUNS = (
    (e3.AcceptanceRule("target_only"), CHAIN),
    (e3.AcceptanceRule("target_only"), TREE),
    (e3.AcceptanceRule("multi_round"), TREE),
    (e3.AcceptanceRule("rejection", "sampled"), CHAIN),
    (e3.AcceptanceRule("block", "sampled"), CHAIN),
)


def main() -> None:
    target = e3.load_target(e3.nano.target_path(), dtype=torch.float32)
    draft = e3.load_draft(e3.nano.draft_path(), target=target, dtype=torch.float32)
    prompts, _ = e3.read_prompts(e3.nano.prompts_path(), e3.nano.target_path())
    with tempfile.TemporaryDirectory() as folder:
        trace = e3.capture(
            target,
            prompts,
            Path(folder) / "trace",
            capture_points=draft.capture_points,
            max_new_tokens=128,
            sampling=e3.Sampling(temperature=0.8),
            final_hidden_state=True,
        )
        rows = [row(e3.replay(trace, draft, tree, rule=rule, target=target)) for rule, tree in RUNS]
    for line in rows:
        print(*line.values(), sep=" | ")
    result = {"torch": torch.__version__, "dtype": "float32", "temperature": 0.8, "prompts": len(prompts), "rows": rows}
    path = Path(__file__).parent / "results" / "compare_rules.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def row(counts: e3.AcceptanceCounts) -> dict[str, Any]:
    """One line of the table: name, tree, counted and expected acceptance length with their 95 % intervals, widths."""
    assert counts.expected is not None
    intervals = counts.interval("acceptance_length"), counts.expected.interval("acceptance_length")
    counted, expected = ([round(x, 3) for x in (part.estimate, part.low, part.high)] for part in intervals)
    widths = [part.high - part.low for part in intervals]
    return {
        "rule": f"{counts.rule.name}, {counts.rule.drafts} drafts",
        "tree": str(counts.tree),
        "counted": counted,
        "expected": expected,
        "width": round(widths[1] / widths[0], 2),
    }


if __name__ == "__main__":
    main()
