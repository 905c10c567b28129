"""Counts from the file that ``eagle3ref replay --json`` wrote."""

from __future__ import annotations

import json
from pathlib import Path

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.errors import Eagle3RefError


def read_counts(path: str | Path) -> AcceptanceCounts:
    """The counts of a replay document, or of a file that holds ``AcceptanceCounts.to_dict`` alone.

    Raises:
        Eagle3RefError: no readable JSON object, none with counts, counts that contradict themselves, or counts of all
            positions, which are no rounds of a server.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, getattr(error, "strerror", None) or f"no JSON ({error})") from error
    if not isinstance(document, dict):
        raise _unreadable(path, f"a {type(document).__name__}")
    counts = document.get("counts", document)
    if not isinstance(counts, dict) or "histogram" not in counts:
        raise _unreadable(path, f"an object with the keys {', '.join(sorted(document))[:200] or 'none'}")
    read = AcceptanceCounts.from_dict(counts)
    if read.kind == "positions":
        raise _unreadable(path, "counts of all positions, most of which a server does not visit")
    return read


def _unreadable(path: str | Path, found: str) -> Eagle3RefError:
    return Eagle3RefError(
        f"reading counts from {path}",
        found=found,
        expected="what `eagle3ref replay --json` prints",
        action="Write it with `eagle3ref replay TRACE DRAFT --json > counts.json`.",
    )
