"""Runs the cases of a part in a process of its own, and in a fresh one behind each that fails.

A kernel that reads out of bounds leaves its process without a working device, and one that hangs must be killed. So a
part is begun again behind the case that failed, until every case was tried or its time is up.
"""

from __future__ import annotations

import importlib
import multiprocessing
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from device.recorder import Case, Recorder, Row
from device.setting import Setting

_ENDING_S = 5.0  # to wait for a process that was told to end


def run_part(part: str, setting: Setting, path: Path, seconds: float) -> list[Row]:
    """Every row that the part wrote, and a row for each case that failed or was not reached.

    Args:
        part: a module of this package with a function ``cases``.
        setting: where.
        path: of the rows.
        seconds: for all of it, after which the case in progress is killed.
    """
    recorder, deadline = Recorder(path), time.monotonic() + seconds
    first: int | None = 0
    while first is not None and deadline > time.monotonic():
        first = _next_case(recorder, part, first, _run_process(part, setting, path, first, deadline))
    if first is not None:
        for name, is_check in _plan(recorder.rows(), part)[first:]:
            recorder.write("unreached", name=name, is_check=is_check and not setting.timing)
    return [{**row, "part": part} for row in recorder.rows()]


def run_cases(part: str, setting: Setting, path: Path, first: int) -> None:
    """What the process runs. The first exception ends it: its device may be lost."""
    cases: Callable[[Setting], list[Case]] = importlib.import_module(f"device.{part}").cases
    recorder, plan = Recorder(path), [case for case in cases(setting) if not (setting.timing and case.is_check)]
    if first == 0:
        recorder.write("plan", cases=[(case.name, case.is_check) for case in plan])
    for index, case in enumerate(plan[first:], first):
        recorder.write("begin", index=index)
        torch.manual_seed(index)
        try:
            case.run(recorder)
        except Exception as error:
            said, where = f"{type(error).__name__}: {error}", traceback.format_exc(limit=-3)
            recorder.write("failure", name=case.name, error=said, where=where)
            recorder.write("end", index=index)
            raise
        recorder.write("end", index=index)


def _run_process(part: str, setting: Setting, path: Path, first: int, deadline: float) -> int | None:
    """The exit status; None when it had to be killed."""
    # A device does not survive a fork; without one, a fork saves the imports.
    context = multiprocessing.get_context("fork" if setting.rehearsed else "spawn")
    process = context.Process(target=run_cases, args=(part, setting, path, first))
    process.start()
    process.join(max(0.0, deadline - time.monotonic()))
    if process.exitcode is not None:
        return process.exitcode
    process.terminate()
    process.join(_ENDING_S)
    if process.exitcode is None:
        process.kill()
        process.join()
    return None


def _next_case(recorder: Recorder, part: str, first: int, exit_code: int | None) -> int | None:
    """The case to go on with; None when none is left. What a process that died could not write down is written here."""
    rows, died = recorder.rows(), f"its process ended with status {exit_code}"
    begun, ended = ({row["index"] for row in rows if row["kind"] == kind} for kind in ("begin", "end"))
    plan, last = _plan(rows, part), max(begun, default=-1)
    if last < first and exit_code is None:  # out of time while it started
        return first
    if last < first:  # nothing of it can be run
        if exit_code != 0:
            recorder.write("failure", name=part, error=f"{died} before case {first}")
        return None
    name, is_check = plan[last]
    if last not in ended and exit_code is None:
        recorder.write("unreached", name=name, is_check=is_check)
    elif last not in ended:
        recorder.write("failure", name=name, error=died)
    return last + 1 if last + 1 < len(plan) else None


def _plan(rows: list[Row], part: str) -> list[tuple[str, bool]]:
    """Name of each case, and whether it is a check. A part that never began is one case, and may have held checks."""
    plans = [row["cases"] for row in rows if row["kind"] == "plan"]
    return [(name, is_check) for name, is_check in plans[0]] if plans else [(part, True)]
