"""Replays as an earlier state of this library does: a process that answers on each line it is sent.

    PYTHONPATH=EARLIER/src python spine.py TRACE DRAFT TARGET

A line is ``num_steps topk num_draft_tokens tree_kv num_sequences``; the answer is JSON with the seconds of one replay,
wall and processor, and the accepted drafts of every round.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time

import torch

import eagle3ref as e3


def main(trace_path: str, draft_path: str, target_path: str) -> None:
    draft = e3.load_draft(draft_path, target=target_path or None, dtype=torch.float32)
    trace = e3.Trace.open(trace_path)
    for line in sys.stdin:
        num_steps, topk, num_draft_tokens, tree_kv, num_sequences = line.split()
        tree = e3.TreeConfig(int(num_steps), int(topk), int(num_draft_tokens), tree_kv=tree_kv)
        part = dataclasses.replace(trace, entries=trace.entries[: int(num_sequences)])
        wall, cpu = time.perf_counter(), time.process_time()
        rounds = {sequence.id: sequence.num_accepted.tolist() for sequence in e3.replay_rounds(part, draft, tree)}
        seconds = (time.perf_counter() - wall, time.process_time() - cpu)
        print(json.dumps({"seconds": seconds, "rounds": [rounds[name] for name in part.ids]}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
