"""What an accept rate turned out to mean, and how that is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3ref.servers.rate.formulas import RateFormula
from eagle3ref.servers.rounded import Rounded

Verdict = Literal["one", "several", "none"]


@dataclass(frozen=True)
class RateReading:
    """One formula that the figures may follow, and what they mean then.

    Args:
        formula: the formula.
        divisors: what may stand below the line; many if the figures do not tell.
        num_draft_tokens: the settings that this means, the root counted; empty if they do not follow.
        num_steps: likewise.
        strict_rate: accepted drafts / verified drafts under this reading; None if the divisor is not known.
        possible_then: whether it had been written when the line was.
    """

    formula: RateFormula
    divisors: tuple[int, ...]
    num_draft_tokens: tuple[int, ...]
    num_steps: tuple[int, ...]
    strict_rate: Rounded | None
    possible_then: bool

    @property
    def sentence(self) -> str:
        """The reading in words."""
        settings = f"num_draft_tokens {_list(self.num_draft_tokens)}" if self.num_draft_tokens else ""
        settings = settings or (f"num_steps {_list(self.num_steps)}" if self.num_steps else "any setting")
        strict = "" if self.strict_rate is None else f"; accepted / verified drafts is {_figure(self.strict_rate)}"
        return f"{self.formula.name} with {settings}{strict} ({self.formula.where})"


@dataclass(frozen=True)
class RateInference:
    """What the accept rate of a line, or of all lines of a server, divides by what.

    Args:
        readings: the formulas that fit and could be meant; if none could, those that fit.
        verdict: how many formulas those are.
        lines: pairs that were looked at.
        misfits: of them, those that no reading fits.
        remarks: what else must be known.
    """

    readings: tuple[RateReading, ...]
    verdict: Verdict
    lines: int
    misfits: int
    remarks: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The inference in words."""
        if self.verdict == "none":
            if self.lines == 1:
                return "The rate fits no known formula beside this length."
            return f"No one formula and setting fits the {self.lines:,} lines."
        if self.verdict == "one":
            return f"The rate is {self.readings[0].sentence}."
        return "The rate is ambiguous: " + "; or ".join(reading.sentence for reading in self.readings) + "."


def _figure(number: Rounded) -> str:
    return f"{number.value:.3f} [{number.low:.3f}, {number.high:.3f}]"


def _list(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers)) if len(numbers) <= 3 else f"{numbers[0]} to {numbers[-1]}"
