"""A printed number, and everything it may have been before it was rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Rounded:
    """What a server printed: ``"2.50"`` is any number in [2.495, 2.505].

    Args:
        value: the number as printed; a percentage is a fraction already.
        low: the least that prints so.
        high: the most that prints so.
    """

    value: float
    low: float
    high: float

    @classmethod
    def printed(cls, text: str) -> Rounded:
        """From the digits: half a unit of the last one either way; ``"61.3%"`` is 0.613 within 0.0005.

        Raises:
            ValueError: no finite decimal number.
        """
        scale = 100 if text.rstrip().endswith("%") else 1
        digits = text.strip().removesuffix("%").strip().replace(",", "")
        number = Fraction(digits)
        decimals = len(digits.partition("e")[0].partition(".")[2]) if "." in digits else 0
        exponent = int(digits.lower().partition("e")[2] or 0)
        half = Fraction(10) ** (exponent - decimals) / 2
        return cls(float(number / scale), float((number - half) / scale), float((number + half) / scale))

    @classmethod
    def exactly(cls, value: float) -> Rounded:
        """A number that was not rounded: a ratio of integers, or a float in full."""
        return cls(value, value, value)

    def holds(self, value: float) -> bool:
        """Whether this number may have been ``value``, within the last bits of a double."""
        slack = 1e-9 * max(1.0, abs(value))
        return math.isfinite(value) and self.low - slack <= value <= self.high + slack

    def overlaps(self, other: Rounded) -> bool:
        """Whether the two may have been one number."""
        return self.low <= other.high + 1e-9 and other.low <= self.high + 1e-9
