"""How many, and the first few of them: the words of messages about very many tensors."""

from __future__ import annotations

from collections.abc import Iterable


def count(number: int, noun: str) -> str:
    """``1 tensor``, ``2,048 tensors``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def first_few(items: Iterable[object], limit: int = 3) -> str:
    """The first ones, and how many more there are."""
    every = list(items)
    rest = len(every) - limit
    return ", ".join(map(str, every[:limit])) + (f" and {rest:,} more" if rest > 0 else "")
