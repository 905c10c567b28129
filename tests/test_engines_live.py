"""The real SGLang and vLLM, started here: the rounds of every run, as in ``make test-engines``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from engines.comparison import compare
from engines.environment import python_of
from engines.plan import RUNS, Run
from engines.recording import read, recording_of
from engines.serve import serve


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_the_engine_runs_the_references_rounds(run: Run, tmp_path: Path) -> None:
    """Catches a golden file that no engine wrote, and a release under the same number that does something else."""
    python = python_of(run.engine, Path(os.environ["EAGLE3REF_TEST_ENGINES"]).resolve())
    result = serve(run, python, tmp_path)
    assert compare(run, recording_of(run, result)).complete
    recorded = read(run)
    assert (result["answers"], result["rounds"]) == (recorded["answers"], recorded["rounds"])
