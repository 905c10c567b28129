"""Captures that are killed with SIGKILL, run by ``test_capture_kills`` in a process of its own.

Forks a child for each capture: importing torch anew for each would take all the time there is.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from streamed_captures import capture, make_prompts, stream

import eagle3ref as e3


def run(checkpoint: Path, path: Path, log: Path) -> None:
    """One capture in two passes; half of the prompts are answered first. What it does is appended to ``log``."""
    with log.open("a", buffering=1) as lines:

        def note(kind: str, *numbers: int) -> None:
            lines.write(json.dumps([kind, *numbers]) + "\n")

        note("start")
        capture(
            stream(checkpoint),
            path,
            long_prompts(),
            batch_size=3,
            max_new_tokens=6,
            on_round=lambda done: note("round", done.num_rounds),
            on_layer=lambda done: note("layer", done.layer),
            on_sequence=lambda _: note("sequence"),
        )


def long_prompts() -> list[e3.Prompt]:
    """Long enough that a pass takes a while."""
    return [
        e3.Prompt(prompt.id, prompt.tokens.repeat(60)[:300], prompt.answer if i % 2 else None)
        for i, prompt in enumerate(make_prompts())
    ]


def main(checkpoint: Path, path: Path, log: Path, num_kills: int, seed: int) -> None:
    """Kill ``num_kills`` captures, each at a random moment, then let the last one finish."""
    torch.set_num_threads(1)
    chance = random.Random(seed)
    begin = time.monotonic()
    run(checkpoint, path.with_name("undisturbed"), log.with_name("undisturbed.log"))
    whole = time.monotonic() - begin
    killed = 0
    while killed < num_kills:
        child = os.fork()
        if child == 0:
            run(checkpoint, path, log)
            os._exit(0)
        # Short enough that one capture lives through several kills, long enough that it moves on.
        time.sleep(chance.uniform(0.02, 0.6) * whole)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        if not os.WIFSIGNALED(status) and killed < num_kills:  # it was through: the next one begins anew
            path = path.with_name(f"{path.name}+")
    run(checkpoint, path, log)
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
