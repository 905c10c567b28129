"""What the readers of JSON share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3ref.servers.formats.fields import figure
from eagle3ref.servers.formats.unwrap import Line

Fields = Mapping[str, Any]
LIFETIME_REMARK = "The server's average since its start, updated with each decode log line: warm-up is in it."


def place(line: Line, source: str) -> dict[str, Any]:
    """Where a statement stands, as the arguments of a ``Reading``."""
    return {"time": line.time, "source": source or line.source, "line": line.number, "raw": line.raw}


def numbers_of(value: Fields, *names: str) -> dict[str, Any]:
    """These fields, those that are numbers."""
    return {name: value[name] for name in names if figure(value.get(name)) is not None}
