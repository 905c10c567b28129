"""llama.cpp's server log: a line for each answer, and one of totals."""

from __future__ import annotations

import re

from eagle3ref.servers.formats.fields import NUMBER, integer, named_values, numbers_after, rates, rounded
from eagle3ref.servers.formats.unwrap import Line
from eagle3ref.servers.reading import NotAcceptance, Reading

_ACCEPTED_OF = re.compile(rf"draft acceptance(?: rate)?\s*=\s*({NUMBER})\s*\(\s*(\d+) accepted\s*/\s*(\d+) generated")
_SLOT = re.compile(r"\bid\s+(\d+) \| task (-?\d+)")


def read_slot(line: Line) -> Reading | None:
    """``draft acceptance = 0.64479 (  167 accepted /   259 generated), mean acceptance length = 2.92, …``."""
    match = _ACCEPTED_OF.search(line.text)
    if match is None:
        return None
    slot = _SLOT.search(line.text)
    positions = rates(numbers_after(line.text, "acceptance rate per position"))
    return Reading(
        tool="llama.cpp",
        format="slot log",
        scope="request",
        time=line.time,
        line=line.number,
        raw=line.raw,
        accept_length=rounded(named_values(line.text).get("mean acceptance length")),
        accept_rate=rounded(match[1]),
        accept_rate_at=positions,
        accepted_drafts=int(match[2]),
        proposed_drafts=int(match[3]),
        num_steps=len(positions) or None,
        request_id=None if slot is None else f"slot {slot[1]} task {slot[2]}",
        remarks=("A round may have drafted fewer tokens than its limit.",),
    )


def read_statistics(line: Line) -> Reading | NotAcceptance | None:
    """``statistics draft-eagle3: … #gen drafts = 87, … #acc tokens = 167, …``: totals since the start."""
    fields = named_values(line.text)
    accepted = integer(fields.get("acc tokens"))
    if accepted is None:
        return None
    positions = rates(numbers_after(line.text, "#acc rate/pos"))
    return Reading(
        tool="llama.cpp",
        format="statistics log",
        scope="lifetime",
        time=line.time,
        line=line.number,
        raw=line.raw,
        accept_length=rounded(fields.get("mean acc len")),
        accept_rate_at=positions,
        rounds=integer(fields.get("gen drafts")),
        accepted_drafts=accepted,
        proposed_drafts=integer(fields.get("gen tokens")),
        num_steps=len(positions) or None,
        other={"rounds with an accepted draft": integer(fields.get("acc drafts"))},
    )
