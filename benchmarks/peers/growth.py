"""Time, time to the first result and memory of a replay as its trace grows; each size in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mid_size
import torch
from peers.workloads import generated_tokens, repeat

import eagle3ref as e3
from eagle3ref.positions import replay_positions

TREE = e3.TreeConfig(3, 1, 4)
TOKENS_EACH = 512
SIZES = (2, 20, 200, 2000)  # sequences: 10^3 to 10^6 tokens
DISTINCT = 50


def measure(folder: Path) -> list[dict[str, Any]]:
    """A row for each size, of a tiny draft, so that what does not shrink with the draft shows."""
    draft = e3.load_draft(mid_size.write_draft(folder / "draft", mid_size.TINY))
    some = mid_size.write_trace(draft, folder / "some", DISTINCT, TOKENS_EACH)
    repeat(some, folder / "trace", max(SIZES))
    command = [sys.executable, __file__, folder / "draft", folder / "trace"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    rows = []
    for count in SIZES:
        threads = str(torch.get_num_threads())
        done = subprocess.run([*command, str(count), threads], env=environment, check=True, stdout=subprocess.PIPE)
        rows.append(json.loads(done.stdout))
    return rows


def one_size(draft_path: str, trace_path: str, count: str, threads: str) -> dict[str, Any]:
    """Peak memory is above what is held before the replay begins: libraries, draft and index."""
    torch.set_num_threads(int(threads))
    draft = e3.load_draft(draft_path, dtype=torch.float32)
    whole = e3.Trace.open(trace_path)
    trace = dataclasses.replace(whole, entries=whole.entries[: int(count)])
    replay_positions(dataclasses.replace(trace, entries=trace.entries[:1]), draft, TREE)  # warms up
    before, first = peak_bytes(), []
    started = time.perf_counter()
    replay_positions(trace, draft, TREE, on_sequence=lambda _: first.append(time.perf_counter()))
    seconds = time.perf_counter() - started
    tokens = generated_tokens(trace)
    return {
        "tokens": trace.num_tokens,
        "trace_mb": sum(entry.bytes for entry in trace.entries) / 1e6,
        "microseconds_per_token": seconds / tokens * 1e6,
        "first_result_s": first[0] - started,
        "peak_mb": (peak_bytes() - before) / 1e6,
    }


def peak_bytes() -> int:
    """Most memory of this process so far, pages of mapped files that are in use among it."""
    status = Path("/proc/self/status")
    if status.exists():  # a new process of Linux begins with the maximum of its parent in getrusage
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    print(json.dumps(one_size(*sys.argv[1:])))
