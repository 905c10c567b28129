"""Each round of a replay as one line of a file, for other programs."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from eagle3ref.durable import replace_file
from eagle3ref.errors import Eagle3RefError
from eagle3ref.replay import SequenceRounds

_FIELDS = ("id", "position", "accepted", "complete")


def check_rounds_file(path: Path) -> None:
    """Refuse a file that could not be written, before a long replay is run for it.

    Raises:
        Eagle3RefError: its name ends neither in .csv nor in .jsonl, it is a folder, or there is no folder to write it
            to.
    """
    if path.suffix not in (".csv", ".jsonl"):
        raise Eagle3RefError(
            "choosing the format of a file of rounds",
            found=path.name,
            expected="a name that ends in .csv or .jsonl",
            action="Rename it.",
        )
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise Eagle3RefError(
            "choosing where to write a file of rounds",
            found=f"{path}, which is a folder" if path.is_dir() else f"no folder {folder} that can be written to",
            expected="the name of a file in such a folder",
            action="Name another file, or make its folder.",
        )


def write_rounds(path: Path, sequences: Iterable[SequenceRounds]) -> None:
    """One line a round: id, position (token index of its root), accepted drafts, and whether it is complete.

    A round that is not complete looks past the end of the record, so it may have been cut short.

    Raises:
        Eagle3RefError: as ``check_rounds_file``.
    """
    check_rounds_file(path)
    rounds, text = _rounds(sequences), io.StringIO()
    if path.suffix == ".csv":
        writer = csv.DictWriter(text, _FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rounds)
    else:
        text.writelines(json.dumps(round_) + "\n" for round_ in rounds)
    replace_file(path, text.getvalue().encode())


def _rounds(sequences: Iterable[SequenceRounds]) -> Iterator[dict[str, Any]]:
    for sequence in sequences:
        columns = (sequence.roots, sequence.num_accepted, sequence.complete.int())
        for values in zip(*(column.tolist() for column in columns), strict=True):
            yield dict(zip(_FIELDS, (sequence.id, *values), strict=True))
