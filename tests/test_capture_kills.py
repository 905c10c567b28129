"""kill -9 at random moments of a streamed capture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from streamed_captures import contents
from tiny import target_folder

SCRIPT = Path(__file__).with_name("killed_captures.py")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_twenty_kills_leave_the_bytes_of_an_undisturbed_capture(tmp_path: Path, seed: int) -> None:
    """Catches any state of the disk from which a capture cannot go on, or goes on to something else.

    That the kills strike in the middle of things is checked too: runs must have begun in the middle of a pass's layers
    and of its answers.
    """
    checkpoint = target_folder(tmp_path / "target")
    command = [
        sys.executable,
        str(SCRIPT),
        str(checkpoint),
        str(tmp_path / "t"),
        str(tmp_path / "log"),
        "20",
        str(seed),
    ]
    path = [str(SCRIPT.parent), str(SCRIPT.parents[1] / "src")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert contents(Path(done.stdout.strip())) == contents(tmp_path / "undisturbed")
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    after_start = [second for first, second in zip(events, events[1:], strict=False) if first == ["start"]]
    assert sum(event[0] == "layer" and event[1] > 1 for event in after_start) >= 2
    assert sum(event[0] == "round" and event[1] > 0 for event in after_start) >= 1
