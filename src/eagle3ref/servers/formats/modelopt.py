"""modelopt's ``specdec_bench``: a mean over turns, a histogram of lengths, conditional rates."""

from __future__ import annotations

import ast
import re
from typing import Any

from eagle3ref.servers.formats.blocks import Statements
from eagle3ref.servers.formats.fields import NUMBER, counts, rounded
from eagle3ref.servers.formats.unwrap import Line
from eagle3ref.servers.reading import Reading
from eagle3ref.servers.rounded import Rounded

_AVERAGE = re.compile(rf"^\s*Average AL:\s*({NUMBER})")
_HISTOGRAM = re.compile(r"^\s*(\{\d+: \d+(?:, \d+: \d+)*\})\s*$")
_RATE = re.compile(rf"^\s*(\d+) ({NUMBER})\s*$")


class ModeloptBlock:
    """Reads the block from ``Average AL:`` on."""

    reach = 30

    def __init__(self) -> None:
        self.last_line = 0
        self._clear()

    def _clear(self) -> None:
        self._average: Rounded | None = None
        self._lengths: tuple[int, ...] = ()
        self._conditional: dict[int, Rounded] = {}
        self._in_rates = False
        self._lines: list[Line] = []

    def feed(self, line: Line) -> Statements | None:
        """As ``BlockReader``."""
        average = _AVERAGE.match(line.text)
        ended = self.finish() if average is not None else []
        if average is not None:
            self._average = rounded(average[1])
        elif not self.last_line or not self._takes(line.text):
            return None
        self._lines.append(line)
        self.last_line = line.number
        return ended

    def _takes(self, text: str) -> bool:
        histogram, rate = _HISTOGRAM.match(text), _RATE.match(text)
        if histogram is not None:
            self._lengths = counts(ast.literal_eval(histogram[1]))
        elif self._in_rates and rate is not None and (number := rounded(rate[2])) is not None:
            self._conditional[int(rate[1])] = number
        elif text.strip() == "Conditional acceptance rate":
            self._in_rates = True
        elif text.strip() != "Acceptance Length Histogram":
            return False
        return True

    def finish(self) -> Statements:
        """As ``BlockReader``: the mean over turns, and what the histogram counts."""
        average, lengths, conditional, lines = self._average, self._lengths, self._conditional, self._lines
        self._clear()
        self.last_line = 0
        if average is None:
            return []
        at: dict[str, Any] = {"tool": "modelopt", "line": lines[0].number, "raw": "\n".join(line.raw for line in lines)}
        mean = Reading(
            **at,
            format="specdec_bench mean",
            scope="run",
            average="requests",
            accept_length=average,
            remarks=("The unweighted mean over turns; the histogram gives the mean over rounds.",),
        )
        accepted = lengths[1:]  # a length counts the bonus token: length 1 is no accepted draft
        if not sum(accepted):
            return [mean]
        counted = Reading(
            **at,
            format="specdec_bench histogram",
            scope="run",
            histogram=accepted,
            rounds=sum(accepted),
            accepted_drafts=sum(c * rounds for c, rounds in enumerate(accepted)),
            # Its entry 1 is the bonus token's: always 1.
            conditional_accept_rate_at=tuple(conditional[depth] for depth in sorted(conditional) if depth > 1),
        )
        return [mean, counted]
