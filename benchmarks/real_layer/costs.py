"""What a pass over the whole of Kimi-K2.5 costs, by the plan that `capture` prints; nothing is timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from eagle3ref.config import KimiK25Config
from eagle3ref.target.checkpoint import open_census, plan_pass
from eagle3ref.target.streaming import StreamedTarget
from real_layer import checkpoint

WHOLE = {"num_hidden_layers": 61, "vocab_size": 163_840}
_COUNTS = (1, 32, 256, 1_000, 10_000, 100_000, 1_000_000)  # tokens of a pass
_LONGEST = 1_000  # tokens of a sequence
_BOUNDS_GIB = (2, 3, 4, 8, 16, 64)


def pass_costs(folder: Path) -> dict[str, Any]:
    """Tensors and bytes of the checkpoint, and a row for each number of tokens, three capture points in bf16.

    Args:
        folder: an empty one, for a checkpoint without numbers.
    """
    checkpoint.write(folder, hollow=True, **WHOLE)
    census, architecture = open_census(folder), KimiK25Config.from_folder(folder)
    rows = []
    for count in _COUNTS:
        lengths = [min(_LONGEST, count)] * max(1, count // _LONGEST)
        cost = plan_pass(census, architecture, lengths, num_capture_points=3, with_final=False, dtype=torch.bfloat16)
        rows.append(
            {
                "tokens": cost.num_tokens,
                "bytes_to_read": cost.bytes_to_read,
                "experts_per_layer": cost.experts_per_layer,
                "flops": cost.flops,
                "stream_bytes": cost.stream_bytes,
                "trace_bytes": cost.trace_bytes,
            }
        )
    return {"num_tensors": census.num_tensors, "num_bytes": census.num_bytes, "rows": rows, "rooms": rooms(folder)}


def rooms(folder: Path) -> list[dict[str, int]]:
    """How many tokens one pass may have under a memory bound, by the target's own count, on a CPU in bf16."""
    found = []
    for gib in _BOUNDS_GIB:
        target = StreamedTarget.from_folder(folder, memory=gib * 2**30)
        found.append({"memory": gib * 2**30, "tokens": target.max_tokens(_LONGEST)})
    return found
