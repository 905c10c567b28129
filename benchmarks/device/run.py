"""Runs the parts in two rounds, keeps what they found, and prints what it means.

The first round checks everything, and calls everything that is to be timed once, so that it is compiled; all parts run
side by side. In the second the parts run alone, one after the other, and times are taken.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

import eagle3ref as e3
from device import judge
from device.process import run_part
from device.recorder import Row
from device.setting import Setting

_SHARE_OF_CHECKS = 0.55  # of the time
_LONGEST_S = 45.0  # that one part may spend on its times
_REHEARSAL_S = 3600.0  # an interpreter on a busy machine says nothing by being slow


def check(parts: list[str], seconds: float, scratch: Path, results: Path, *, rehearsed: bool) -> int:
    """Run parts and print the table; the exit status is 1 if a check failed or was not reached.

    Args:
        parts: of ``PARTS``, in order.
        seconds: for all of them.
        scratch: a folder for what each part writes.
        results: the folder of the file that is kept; it is written again whenever a part is done.
        rehearsed: on the CPU.
    """
    setting, rows = Setting("cpu" if rehearsed else "cuda", rehearsed=rehearsed, timing=False), list[Row]()
    ends = time.monotonic() + (_REHEARSAL_S if rehearsed else seconds)
    started = time.monotonic()
    for found in _side_by_side(parts, setting, scratch, _SHARE_OF_CHECKS * (ends - started)):
        rows += found
        rows.sort(key=lambda row: parts.index(row["part"]))  # a part that is done first need not be the first
        write(rows, results)
    print(f"checks: {time.monotonic() - started:.0f} s", file=sys.stderr)
    timing = replace(setting, timing=True)
    for part in parts[:1] if rehearsed else parts:  # the second round does again what the first did
        started = time.monotonic()
        limit = _REHEARSAL_S if rehearsed else min(_LONGEST_S, ends - started)
        rows += run_part(part, timing, scratch / f"{part}.times.jsonl", limit)
        write(rows, results)
        print(f"times of {part}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    print(judge.table(rows))
    return 1 if judge.failures(rows) else 0


def write(rows: list[Row], folder: Path) -> None:
    """The rows and what was made of them, under the device's name."""
    device = next((row["name"] for row in rows if row["kind"] == "device"), "unknown device")
    content = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": device,
        "versions": {"eagle3ref": e3.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "failures": judge.failures(rows),
        "ceilings_per_s": judge.ceilings(rows),
        "goals": [{"goal": sentence, "met": met} for sentence, met in judge.goals(rows)],
        "times": judge.times(rows),
        "loops": judge.loops(rows),
        "rows": rows,
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"device_check_{re.sub('[^a-z0-9]+', '_', device.lower()).strip('_')}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _side_by_side(parts: list[str], setting: Setting, scratch: Path, seconds: float) -> Iterator[list[Row]]:
    """The rows of each part, as soon as it is done.

    A rehearsal forks, which threads do not survive, so there one comes after the other.
    """
    run = partial(_checked, setting=setting, scratch=scratch, seconds=seconds)
    if setting.rehearsed:
        yield from map(run, parts)
    else:
        with ThreadPoolExecutor(len(parts)) as pool:
            yield from (done.result() for done in as_completed([pool.submit(run, part) for part in parts]))


def _checked(part: str, setting: Setting, scratch: Path, seconds: float) -> list[Row]:
    return run_part(part, setting, scratch / f"{part}.checks.jsonl", seconds)
