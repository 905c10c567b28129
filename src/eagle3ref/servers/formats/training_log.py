"""What training prints: a proxy of the acceptance length, never a server's own."""

from __future__ import annotations

import re

from eagle3ref.servers.formats.blocks import Statements
from eagle3ref.servers.formats.fields import NUMBER, rounded
from eagle3ref.servers.formats.unwrap import Line
from eagle3ref.servers.reading import Reading
from eagle3ref.servers.rounded import Rounded

_VALUE = re.compile(rf"\b(\w+)=({NUMBER})")
_SAFEAILAB = re.compile(rf"^\{{'(test|train)/(\d+)_acc': ({NUMBER})\}}$")


def read_tau_sim(line: Line) -> Reading | None:
    """NeMo Automodel's ``train_tau_sim=1.2765``; a progress bar with a ``tau`` of its own may stand before it."""
    message = line.text[max(line.text.rfind("| INFO |"), 0) :]
    fields = dict(_VALUE.findall(message))
    tau = rounded(fields.get("train_tau_sim") or fields.get("val_tau_sim"))
    if tau is None:
        return None
    return Reading(
        tool="NeMo Automodel",
        format="training log",
        scope="reference",
        time=line.time,
        line=line.number,
        raw=line.raw,
        accept_length=tau,
        other={name: float(value.replace(",", "")) for name, value in fields.items()},
        remarks=("A proxy: 1 + the sum of products of teacher-forced accuracies on training data.",),
    )


class SafeailabTraining:
    """SafeAILab's ``{'test/0_acc': 0.70}``, one line for each depth."""

    reach = 30

    def __init__(self) -> None:
        self.last_line = 0
        self._joint: list[Rounded] = []
        self._lines: list[Line] = []

    def feed(self, line: Line) -> Statements | None:
        """As ``BlockReader``."""
        match = _SAFEAILAB.match(line.text.strip())
        if match is None:
            return None
        ended = self.finish() if int(match[2]) != len(self._joint) else []
        self._joint.append(Rounded.exactly(float(match[3])))
        self._lines.append(line)
        self.last_line = line.number
        return ended

    def finish(self) -> Statements:
        """As ``BlockReader``."""
        joint, lines = self._joint, self._lines
        self._joint, self._lines, self.last_line = [], [], 0
        if not joint:
            return []
        before = [1.0, *(rate.value for rate in joint)]
        conditional = (rate.value / left if left else 0.0 for rate, left in zip(joint, before, strict=False))
        reading = Reading(
            tool="SafeAILab",
            format="training log",
            scope="reference",
            line=lines[0].number,
            raw="\n".join(line.raw for line in lines),
            accept_length=Rounded.exactly(1 + sum(rate.value for rate in joint)),
            accept_rate_at=tuple(joint),
            conditional_accept_rate_at=tuple(map(Rounded.exactly, conditional)),
            remarks=(
                "A depth counts here only if all before it were right: these are joint rates, "
                "and the curve n-alpha of the papers is the conditional one.",
            ),
        )
        return [reading]
