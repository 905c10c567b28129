"""The accept rate beside what a person said of the server: what it means then, and what of it cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers.evidence.evidence import Evidence
from eagle3ref.servers.rate.reading import RateInference


def rate_with(
    evidence: Evidence, num_draft_tokens: int | None, num_steps: int | None, engine: str | None
) -> RateInference | None:
    """What the accept rates of a log mean; where the settings leave nothing, also which of them the lines contradict.

    Args:
        evidence: what was read.
        num_draft_tokens: of the server, the root counted; None if nobody said.
        num_steps: likewise.
        engine: as ``infer_rate`` takes it.

    Raises:
        Eagle3RefError: an engine that is not known, or settings that no tree has.
    """
    if num_draft_tokens is not None and num_steps is not None and num_draft_tokens <= num_steps:
        raise Eagle3RefError(
            "reading an accept rate",
            found=f"num_draft_tokens {num_draft_tokens} and num_steps {num_steps}",
            expected="a root and at least one draft for each step",
            action="Give the settings that the server runs with.",
        )
    rate = evidence.rate(num_draft_tokens=num_draft_tokens, num_steps=num_steps, engine=engine)
    if rate is None or rate.verdict != "none" or (num_draft_tokens, num_steps, engine) == (None, None, None):
        return rate
    free = evidence.rate()
    if free is None or free.verdict == "none":
        return rate
    by_engine = None if engine is None else evidence.rate(engine=engine)
    is_of_engine = by_engine is None or by_engine.verdict != "none"
    against = tuple(_against(free, num_draft_tokens, num_steps, None if is_of_engine else engine))
    return replace(rate, remarks=(*rate.remarks, *against, f"Without the settings that were given: {free.sentence}"))


def _against(
    free: RateInference, num_draft_tokens: int | None, num_steps: int | None, engine: str | None
) -> Iterator[str]:
    """Which of the settings that were given the lines contradict."""
    wheres = " or ".join(dict.fromkeys(reading.formula.where for reading in free.readings))
    if engine is not None:
        yield f"The engine given contradicts the lines: this rate was printed by {wheres}; --engine says {engine}."
    for name, given, found in (
        ("num-draft-tokens", num_draft_tokens, {n for reading in free.readings for n in reading.num_draft_tokens}),
        ("num-steps", num_steps, {n for reading in free.readings for n in reading.num_steps}),
    ):
        if given is not None and found and given not in found:
            needed = " or ".join(map(str, sorted(found)[:3]))
            yield f"The setting given contradicts the lines: they are of {needed}; --{name} says {given}."
