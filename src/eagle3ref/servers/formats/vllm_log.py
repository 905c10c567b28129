"""vLLM's log: ``SpecDecoding metrics`` of the V1 engine, ``Speculative metrics`` of V0, and the throughput line."""

from __future__ import annotations

import re
from dataclasses import replace

from eagle3ref.servers.formats.fields import NUMBER, integer, named_values, numbers_after, rates, rounded
from eagle3ref.servers.formats.unwrap import Line
from eagle3ref.servers.reading import NotAcceptance, Reading

_V0 = re.compile(r"Number of emitted tokens|System efficiency")
_LABELS = ("Mean acceptance", "Accepted", "Drafted", "Per-position", "Avg Draft", "Draft acceptance")
_RUNNING = re.compile(r"Running: (\d+)")
_EXTRA_LIST = re.compile(rf"(Avg tree nodes per depth):\s*((?:{NUMBER}[,\s]*)+)")
_THROUGHPUT_LINE_REACH = 3  # lines between the throughput line and the figures of the same ten seconds


class VllmLog:
    """Reads vLLM's lines one after the other: what the line before says belongs to the figures after it.

    A pasted line may be broken into several; ``pending`` holds what was read until another line shows that it ended.
    """

    def __init__(self) -> None:
        self.pending: Line | None = None
        self._throughput: NotAcceptance | None = None
        self._throughput_source = ""

    def throughput(self, line: Line) -> NotAcceptance:
        """``Engine 000: Avg prompt throughput: … Running: 1 reqs, …``."""
        fields = {name: _number(value) for name, value in named_values(line.text).items()}
        running = _RUNNING.search(line.text)
        if running is not None:
            fields["running"] = int(running[1])
        self._throughput = NotAcceptance("vLLM", "engine throughput", line.number, line.raw, fields)
        self._throughput_source = line.source
        return self._throughput

    def start(self, line: Line) -> Reading | None:
        """A line with figures begins; what was pending has ended."""
        ended = self.finish()
        self.pending = line
        return self.finish() if _is_complete(line.text) else ended

    def goes_on(self, line: Line) -> bool:
        """Whether a line is the rest of the pending one; if so, it is taken."""
        text = line.text.strip()
        if self.pending is None or not text.startswith(_LABELS) or len(self.pending.text) > 4000:
            return False
        self.pending = replace(self.pending, text=f"{self.pending.text.rstrip().rstrip(',')}, {text}")
        return True

    def finish(self) -> Reading | None:
        """What the pending line says."""
        line, self.pending = self.pending, None
        if line is None:
            return None
        reading = _v0_reading(line) if _V0.search(line.text) else _v1_reading(line)
        return None if reading is None else self._with_throughput(reading)

    def _with_throughput(self, reading: Reading) -> Reading:
        beside = self._throughput
        if beside is None or not 0 <= reading.line - beside.line <= _THROUGHPUT_LINE_REACH:
            return reading
        generated = beside.fields.get("avg generation throughput")
        return replace(
            reading,
            running_requests=beside.fields.get("running"),
            gen_throughput=None if generated is None else rounded(f"{generated}"),
            source=reading.source or self._throughput_source,
        )


def _is_complete(text: str) -> bool:
    return "Per-position" in text and "raft acceptance rate" in text and not text.rstrip().endswith(":")


def _v1_reading(line: Line) -> Reading | None:
    text = line.text
    fields = named_values(text)
    rate = rounded(fields.get("avg draft acceptance rate") or fields.get("draft acceptance rate"))
    positions = rates(numbers_after(text, "Per-position acceptance rate"))
    length = rounded(fields.get("mean acceptance length"))
    accepted, drafted = (
        _tokens(fields, *names)
        for names in (("accepted", "number of accepted tokens"), ("drafted", "number of draft tokens"))
    )
    if rate is None and length is None and not accepted:
        return None  # an interval without drafts prints nan
    extra = _EXTRA_LIST.search(text)
    other = {name: _number(fields[name]) for name in fields if name.endswith("throughput")}
    return Reading(
        tool="vLLM",
        format="SpecDecoding log" if "SpecDecoding" in text else "Speculative log",
        scope="window",
        time=line.time,
        source=line.source,
        line=line.number,
        raw=line.raw,
        accept_length=length,
        accept_rate=rate,
        accept_rate_at=positions,
        accepted_drafts=accepted,
        proposed_drafts=drafted,
        num_steps=len(positions) or None,
        other=other
        if extra is None
        else {**other, "avg tree nodes per depth": [float(n) for n in re.findall(NUMBER, extra[2])]},
    )


def _v0_reading(line: Line) -> Reading:
    fields = named_values(line.text)
    steps, emitted = integer(fields.get("number of speculative tokens")), _tokens(fields, "number of emitted tokens")
    drafted, matched = _tokens(fields, "number of draft tokens"), _tokens(fields, "number of accepted tokens")
    rounds = drafted // steps if steps and drafted is not None and drafted % steps == 0 else None
    return Reading(
        tool="vLLM",
        format="V0 log",
        scope="lifetime",
        time=line.time,
        source=line.source,
        line=line.number,
        raw=line.raw,
        accept_rate=rounded(fields.get("draft acceptance rate")),
        rounds=rounds,
        accepted_drafts=None if rounds is None or emitted is None else emitted - rounds,
        proposed_drafts=drafted,
        num_steps=steps,
        other={
            "system efficiency": _number(fields.get("system efficiency", "nan")),
            "number of accepted tokens": matched,
            "number of emitted tokens": emitted,
        },
        remarks=(
            "V0 counts as accepted every draft that matches, also after the first that does not; the length here is "
            "emitted tokens / rounds.",
        ),
    )


def _tokens(fields: dict[str, str], *names: str) -> int | None:
    """A count of tokens; the word ``tokens`` came twice in V0's line."""
    found = (fields.get(name) or fields.get(f"{name} tokens") for name in names)
    return next((integer(value) for value in found if value is not None), None)


def _number(text: str) -> float:
    number = rounded(text)
    return float("nan") if number is None else number.value
