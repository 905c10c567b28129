"""Streamed captures that cannot go on: a full disk, too little memory, a second writer; and what a failure leaves."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch
from streamed_captures import StopError, capture, contents, stream
from tiny import target_folder

import eagle3ref as e3
from eagle3ref.trace.passes import LayerDone

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_folder(tmp_path_factory.mktemp("target"))


@pytest.mark.parametrize("nth", [12, 41, *(pytest.param(n, marks=slow) for n in (2, 3, 7, 16, 20, 31, 38, 50, 70))])
def test_a_full_disk_is_told_and_the_capture_goes_on_after(checkpoint, tmp_path, monkeypatch, nth):
    """Catches a traceback, a thread that fails unseen, and files cut short under their final name."""
    capture(e3.load_target(checkpoint, dtype=torch.float32), tmp_path / "whole")
    fsync, calls = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls >= nth:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(e3.Eagle3RefError, match=r"writing a trace to .*No space left on device.*goes on"):
        capture(stream(checkpoint), tmp_path / "t")
    assert calls == nth
    monkeypatch.setattr(os, "fsync", fsync)
    capture(stream(checkpoint), tmp_path / "t")
    assert contents(tmp_path / "t") == contents(tmp_path / "whole")


def test_a_second_capture_is_refused_while_one_runs(checkpoint, tmp_path):
    """Catches two processes that delete each other's work files."""

    def second(_: LayerDone) -> None:
        with pytest.raises(e3.Eagle3RefError, match="another writer at work"):
            capture(stream(checkpoint), tmp_path / "t")
        raise StopError

    with pytest.raises(StopError):
        capture(stream(checkpoint), tmp_path / "t", on_layer=second)


def test_no_weight_is_read_when_the_disk_or_the_memory_is_too_small(checkpoint, tmp_path, monkeypatch):
    """Catches hours of reading that end in a full disk, and a sequence that can never fit."""
    target = stream(checkpoint, memory=2**20)
    with pytest.raises(e3.Eagle3RefError, match="memory bound of 1 MiB; expected at least"):
        capture(target, tmp_path / "memory")
    assert not (tmp_path / "memory").exists()
    target = stream(checkpoint)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=20_000))
    with pytest.raises(e3.Eagle3RefError, match=r"found 20,000 bytes free on its disk; expected 3\d,\d+ bytes"):
        capture(target, tmp_path / "disk")
    assert target.bytes_read == 0


def test_the_plan_of_the_disk_is_an_upper_bound(checkpoint, tmp_path, monkeypatch):
    """Catches a disk that was promised to do and fills up: what lies there at any time stays below the plan."""
    fsync, peak, needed = os.fsync, 0, []

    def look(descriptor: int) -> None:
        nonlocal peak
        written = [path for kind in ("bin", "safetensors") for path in (tmp_path / "t").rglob(f"*.{kind}*")]
        peak = max(peak, sum(path.stat().st_size for path in written))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", look)  # nothing is deleted while a file is being written
    prompts = [e3.Prompt(f"p{i}", torch.full((200,), i), torch.full((50,), i)) for i in range(4)]
    capture(
        stream(checkpoint),
        tmp_path / "t",
        prompts,
        on_plan=lambda plan: needed.append(plan.disk_needed),
    )
    overhead = 4 * 1024  # headers of the files
    assert 0.7 * needed[0] < peak <= needed[0] + overhead


def test_no_thread_or_file_is_left_after_a_capture_that_failed(checkpoint, tmp_path):
    """Catches readers and writers that live on, each with its buffers and its descriptors."""

    def stop(_: object) -> None:
        raise StopError

    def left() -> tuple[int, int]:
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    errors = []  # their tracebacks hold what the frames held
    for number in range(4):
        with pytest.raises(StopError) as caught:
            capture(stream(checkpoint), tmp_path / str(number), **{"on_layer" if number % 2 else "on_sequence": stop})
        errors.append(caught)
        if number == 1:
            before = left()
    assert left() == before
