"""A file of rounds that cannot be written is refused before the replay, not after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3ref.errors import Eagle3RefError
from eagle3ref.report.rounds_file import check_rounds_file


@pytest.mark.parametrize("name", ["missing/rounds.csv", "file/rounds.jsonl", "folder.csv"])
def test_a_place_that_cannot_be_written_is_refused_at_once(name: str, tmp_path: Path) -> None:
    """Catches: hours of replay that end in an error about the file that they were for."""
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(Eagle3RefError, match="choosing where to write"):
        check_rounds_file(tmp_path / name)


def test_a_new_file_and_one_that_is_there_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: a check that refuses a bare name, or a run that is repeated."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.jsonl").write_text("")
    for path in (Path("rounds.csv"), tmp_path / "rounds.csv", Path("old.jsonl")):
        check_rounds_file(path)
    assert not Path("rounds.csv").exists()
