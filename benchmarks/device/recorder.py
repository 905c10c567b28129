"""What was found, one JSON line each, on disk before the next thing is tried: a process that dies loses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]


@dataclass(frozen=True)
class Recorder:
    """Appends rows to the file of one part."""

    path: Path

    def write(self, kind: str, **facts: Any) -> None:
        """A row of this kind."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **facts}) + "\n")

    def check(self, name: str, passed: bool, **facts: Any) -> None:
        """Whether something is right, and the numbers that say so."""
        self.write("check", name=name, passed=passed, **facts)

    def rows(self) -> list[Row]:
        """Everything so far. A process that was killed while it wrote leaves a last line that is no row."""
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]


class Case(NamedTuple):
    """One thing to try. Cases of a part do not know of each other.

    Args:
        name: for people.
        run: writes what it finds.
        is_check: whether not having run it leaves something unchecked, and not only unmeasured.
    """

    name: str
    run: Callable[[Recorder], None]
    is_check: bool = True
