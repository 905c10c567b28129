"""A positive number with its bounds, carried through products and quotients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NoReturn

from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers import Rounded
from eagle3ref.statistics import Interval

Verdict = Literal["gains", "loses", "cannot tell"]


@dataclass(frozen=True)
class Span:
    """A number, and the bounds that come from rounding or from a confidence interval.

    Args:
        value: the number.
        low: lower bound; ``-inf`` if unknown.
        high: upper bound; ``inf`` if unknown.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, quantity: Quantity) -> Span:
        """From a plain number (bounds at the number), a printed one (what it may have been), or an interval."""
        if isinstance(quantity, Span):
            return quantity
        if isinstance(quantity, Interval):
            return cls(quantity.estimate, quantity.low, quantity.high)
        if isinstance(quantity, Rounded):
            return cls(quantity.value, quantity.low, quantity.high)
        return cls(float(quantity), float(quantity), float(quantity))

    def __mul__(self, factor: float) -> Span:
        """Times a positive number."""
        return Span(self.value * factor, self.low * factor, self.high * factor)

    def __truediv__(self, other: Span) -> Span:
        """Over a positive quantity that varies on its own; the lower end is at the other's upper one."""
        return Span(self.value / other.value, self.low / other.high, self.high / other.low)

    def verdict(self) -> Verdict:
        """What a speed-up says: more than 1 gains, less loses, bounds on both sides of 1 leave it open."""
        if self.low > 1:
            return "gains"
        return "loses" if self.high < 1 else "cannot tell"

    def to_dict(self) -> dict[str, float | None]:
        """JSON-able; an unknown bound is null."""
        ends = {"low": self.low, "high": self.high}
        return {"value": self.value, **{end: None if math.isinf(bound) else bound for end, bound in ends.items()}}


Quantity = float | Rounded | Interval | Span


def positive(name: str, quantity: Quantity, *, or_zero: bool = False) -> Span:
    """The quantity as a span, if it is a finite number above 0.

    Raises:
        Eagle3RefError: it is not.
    """
    span = Span.of(quantity)
    is_fine = math.isfinite(span.value) and (span.value >= 0 if or_zero else min(span.value, span.low) > 0)
    if not is_fine:
        refuse(f"{name} = {span.value:g}", f"a number {'of at least' if or_zero else 'above'} 0", "Correct it.")
    return span


def length_span(acceptance_length: Quantity, num_steps: int | None) -> Span:
    """An acceptance length as a span: bonus counted, so from 1 to num_steps + 1.

    A confidence interval may leave that range and is cut to it; so is what a printed number may have been.

    Raises:
        Eagle3RefError: no length of such a tree can be that.
    """
    span = Span.of(acceptance_length)
    most = math.inf if num_steps is None else num_steps + 1.0
    if not (math.isfinite(span.value) and span.high >= 1 and span.low <= most):
        refuse(
            f"an acceptance length of {span.value:g}",
            "at least 1" if num_steps is None else f"1 to {most:g}: num_steps is {num_steps}, and the bonus is counted",
            "Add 1 if the bonus token is not in it, and check num_steps.",
        )
    low, high = (min(max(bound, 1.0), most) for bound in (span.low, span.high))
    return Span(min(max(span.value, 1.0), most), low, high)


def refuse(found: str, expected: str, action: str) -> NoReturn:
    """Raise what every complaint about times and lengths looks like."""
    raise Eagle3RefError("computing the speed-up", found=found, expected=expected, action=action)
