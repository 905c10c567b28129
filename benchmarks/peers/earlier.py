"""This library as its first issue left it, in a process of its own (spine.py), over the same folders."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

from peers.worker import PeerError, Worker
from peers.workloads import Workload

import eagle3ref as e3

COMMIT = "9756669"  # the last of the first issue: capture, replay, live decoding, nothing made fast yet
ROOT = Path(__file__).parents[2]


def earlier(workload: Workload, folder: Path) -> Worker:
    """A worker over the workload with the sources of ``COMMIT``, which are put into ``folder`` if they are not there.

    Raises:
        PeerError: no git here, or a clone without that commit.
    """
    if not (folder / "src").exists():
        _unpack(folder)
    paths = (workload.trace.path, workload.draft_path, workload.target_path or "")
    return Worker(sys.executable, "spine.py", *paths, environment={"PYTHONPATH": str(folder / "src")})


def replay(worker: Worker, tree: e3.TreeConfig, num_sequences: int) -> dict[str, Any]:
    """``seconds`` of one replay of the first sequences, wall and processor, and ``rounds``: accepted drafts of each."""
    return worker.ask(f"{tree.num_steps} {tree.topk} {tree.num_draft_tokens} {tree.tree_kv} {num_sequences}")


def _unpack(folder: Path) -> None:
    command = ["git", "-C", str(ROOT), "archive", COMMIT, "src"]
    try:
        packed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeerError(f"commit {COMMIT} is not to be had: {error}") from error
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
