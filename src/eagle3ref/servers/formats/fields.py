"""Figures out of running text, by the names that stand before them, whatever else stands around."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from eagle3ref.servers.rounded import Rounded

# 1,234,567.8 with its separators, 2.50, 2,50 as some locales have it, 1e-5; a dot that ends a sentence is none of it.
NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?|\.\d+)"
_VALUE = re.compile(rf"({NUMBER}\s*%?|True|False|true|false)(?![\w])")
_FIELD = re.compile(rf"([#@A-Za-z_][^:=,;|#{{}}\[\]\"\n]{{0,79}})[:=]\s*({NUMBER}\s*%?|True|False)")
# In a list, a comma stands between two numbers, never within one.
_LIST_COMMAS, _SPACED_PERCENT = re.compile(r"[\s,]+"), re.compile(r"\s+%")
_LARGEST = 1e18  # no server counted so far
_DEEPEST = 1000  # accepted drafts of a round; a histogram beyond is none
_LONGEST = 20_000  # characters; a line of figures is far shorter
_SEPARATORS = re.compile(r"[\s_\-]+")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$")


@functools.lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """``"#running-req"``, ``"Running_Req"`` and ``"**running req**"`` are one name."""
    return _SEPARATORS.sub(" ", name.strip().strip("#*`@ ")).lower()


def named_values(text: str) -> dict[str, str]:
    """Every ``name: value`` or ``name = value`` of a line, by plain name; of a name that comes twice, the first."""
    found: dict[str, str] = {}
    for match in _FIELD.finditer(text[:_LONGEST]):
        found.setdefault(plain_name(match[1]), match[2])
    return found


def first_value(text: str) -> str | None:
    """The first number, percentage or truth value of a text."""
    match = _VALUE.search(text)
    return None if match is None else match[1]


def numbers_after(text: str, name: str) -> tuple[str, ...]:
    """The list of numbers that follows a name: ``"rate: 0.6, 0.4"``, ``"rate = (0.6, 0.4)"``, ``"[0.6, 0.4]"``."""
    # The list first and its numbers then: one pattern for both would try every way to part a long row of digits.
    listed = re.search(rf"{name}\s*[:=]?\s*[\[(]?\s*((?:\d[eE][-+]?\d|[\d.,%\s])+)", text, re.IGNORECASE)
    if listed is None:
        return ()
    numbers = _LIST_COMMAS.split(_SPACED_PERCENT.sub("%", listed[1]).strip(" \t,"))
    if text[listed.end() : listed.end() + 1].isalnum() and not listed[1][-1].isspace():  # 12 of "12tokens"
        numbers.pop()
    return tuple(number.rstrip(".") for number in numbers if number.strip("."))


@functools.lru_cache(maxsize=1 << 16)  # a log repeats its few thousand figures for ever
def rounded(text: str | None) -> Rounded | None:
    """A printed figure; None where there is none, or it is nan."""
    if text is None:
        return None
    digits = text.strip()
    if "," in digits and not _THOUSANDS.match(digits.rstrip("% ")):
        digits = digits.replace(",", ".")
    try:
        return Rounded.printed(digits)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None


def integer(text: str | None) -> int | None:
    """A printed count, ``"1,234"`` or ``"1234.0"``; None if it is not whole."""
    number = rounded(text)
    return int(number.value) if number is not None and number.value == int(number.value) else None


def plain_value(text: str) -> bool | int | float | str:
    """A field that is kept by its name: a truth value or a number if it is one."""
    if text in ("True", "true", "False", "false"):
        return text in ("True", "true")
    number = rounded(text)
    if number is None:
        return text
    return int(number.value) if "." not in text and "%" not in text and number.value.is_integer() else number.value


def rates(texts: Iterator[str] | tuple[str, ...]) -> tuple[Rounded, ...]:
    """Printed rates by depth, those that can be read."""
    return tuple(rate for rate in map(rounded, texts) if rate is not None)


def figure(value: Any) -> Rounded | None:
    """A number of a JSON object or a gauge; None for null, nan, 1e400 and what is no number.

    Who wrote it may have rounded it before, to two decimals or more: 2.39 is within 0.005, 2.390625 within its last.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        return None
    digits = repr(value) if abs(value) < _LARGEST else ""
    decimals = len(digits.partition(".")[2])
    return rounded(digits if "e" in digits or decimals >= 2 else digits and f"{value:.2f}")


def count(value: Any) -> int | None:
    """A whole, non-negative number of a JSON object; a float that is whole counts."""
    number = figure(value)
    return int(value) if number is not None and value == int(value) >= 0 else None


def counts(value: Any) -> tuple[int, ...]:
    """A list of whole numbers, or a mapping from 0, 1, … to them; empty if it is neither."""
    if isinstance(value, Mapping):
        try:
            by_index = {int(key): number for key, number in value.items()}
        except (TypeError, ValueError):
            return ()
        if max(by_index, default=0) > _DEEPEST:
            return ()
        value = [by_index.get(index, 0) for index in range(max(by_index, default=-1) + 1)] if by_index else []
    if not isinstance(value, list | tuple):
        return ()
    whole = [count(number) for number in value]
    return tuple(number for number in whole if number is not None) if None not in whole else ()
