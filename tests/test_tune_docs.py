"""docs/tune.md shows what the command prints."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from test_docs_commands import PAGES, assert_printed, run, shown

import eagle3ref as e3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")
def test_the_tuned_nano_pair_is_shown_as_it_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a recommendation, a length or a bound on the page that the command does not print any more."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(e3.nano.draft_path(), "draft")
    points = ("--capture-points", "1,2,3,4,5", "--max-new-tokens", 64, "--dtype", "float32")
    run("capture", e3.nano.target_path(), e3.nano.prompts_path(), "-o", "trace", *points)
    (command,) = re.findall(r"^\$ eagle3ref (tune .*)$", PAGES["tune.md"], re.MULTILINE)
    assert_printed(shown("tune.md", "draft on trace"), run(*shlex.split(command)))
