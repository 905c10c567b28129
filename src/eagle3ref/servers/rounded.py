"""A printed number, and everything it may have been before it was rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass

_LARGEST_POWER = 300  # of ten, in a double


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
        digits = text.strip()
        mantissa, _, exponent = digits.removesuffix("%").strip().replace(",", "").lower().partition("e")
        whole, _, decimals = mantissa.partition(".")
        if not digits.isascii() or "_" in digits or len(digits) > _LARGEST_POWER:  # int() takes more than servers print
            raise ValueError(f"{digits[:20]!r} is no decimal number")
        units = int(whole + decimals)  # of the last digit; whole numbers divide without a rounding of their own
        power = int(exponent or 0) - len(decimals) - (2 if digits.endswith("%") else 0)
        if abs(power) > _LARGEST_POWER or len(whole + decimals) + power > _LARGEST_POWER:
            raise ValueError(f"{text!r} is out of range")
        up, down = 10 ** max(power, 0), 2 * 10 ** max(-power, 0)
        value, low, high = (number * up / down for number in (2 * units, 2 * units - 1, 2 * units + 1))
        return cls(value, low, high)

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
