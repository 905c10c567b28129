"""Does the evidence say of itself that it comes from another tree? Then no comparison means anything."""

from __future__ import annotations

from eagle3ref.config import TreeConfig
from eagle3ref.engines import EngineProfile
from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers import Evidence, Reading

_FIXED_DRAFTS = ("SGLang", "vLLM")  # engines that verify the same number of drafts in every round


def check_settings(evidence: Evidence, tree: TreeConfig) -> None:
    """Refuse evidence whose integers, or whose own words, contradict the tree.

    Raises:
        Eagle3RefError: naming the line.
    """
    for reading in evidence.readings:
        if reading.scope != "reference" and (found := _contradiction(reading, tree)):
            place = f"line {reading.line}, " if reading.line else ""
            raise Eagle3RefError(
                "cross-checking a server",
                found=f"{found} ({place}{reading.tool} {reading.format})",
                expected=f"what a server prints that runs {tree} (num_steps/topk/num_draft_tokens), as the replay does",
                action="Give the server's own --num-steps, --topk and --num-draft-tokens.",
            )


def check_says_something(evidence: Evidence) -> None:
    """Refuse evidence that no replay can be held against.

    Raises:
        Eagle3RefError: not one figure of acceptance.
    """
    if not any(_is_figure(reading) for reading in evidence.readings):
        raise says_nothing(evidence)


def says_nothing(evidence: Evidence) -> Eagle3RefError:
    """What there is instead of a figure."""
    number = len(evidence.readings)
    statements = "no statement" if not number else "1 statement" if number == 1 else f"{number} statements"
    of_these = " that" if not number else ", and it" if number == 1 else ", none of which"
    gives = "does not give" if number == 1 else "gives"
    return Eagle3RefError(
        "cross-checking a server",
        found=f"{statements}{of_these} {gives} an acceptance length, or integers for one",
        expected="a log line with accept len, counters, request fields or a benchmark's summary",
        action="`eagle3ref read` shows what was recognized; docs/reading.md says what each engine can give.",
    )


def _is_figure(reading: Reading) -> bool:
    told = (reading.length_with_bonus, reading.accept_length, reading.accept_rate)
    return bool(reading.rounds or reading.accept_rate_at) or any(figure is not None for figure in told)


def rate_doubt(evidence: Evidence, tree: TreeConfig, profile: EngineProfile | None) -> str:
    """Why the log cannot be of this tree, by its accept rates, in one sentence; "" if they fit, or there are none."""
    engine = None if profile is None else profile.name
    fitting = evidence.rate(
        num_draft_tokens=tree.num_draft_tokens, num_steps=tree.num_steps, topk=tree.topk, engine=engine
    )
    if fitting is None or fitting.verdict != "none":
        return ""
    free = evidence.rate(engine=engine)
    found = () if free is None else free.remarks if free.verdict == "none" else (free.sentence,)
    other = f" Without that tree: {' '.join(found)}" if found else ""
    return f"The accept rates fit no formula of a server that runs {tree}: give the tree that it does run.{other}"


def _contradiction(reading: Reading, tree: TreeConfig) -> str:
    """In words; "" if there is none."""
    for name in ("num_steps", "topk", "num_draft_tokens"):
        stated = getattr(reading, name)
        if stated is not None and stated != getattr(tree, name):
            return f"{name} {stated}"
    if any(reading.histogram[tree.num_steps + 1 :]):
        return f"rounds that accepted {max(c for c, n in enumerate(reading.histogram) if n)} drafts"
    if any(reading.accepted_drafts_at[tree.num_steps :]):
        return f"drafts accepted at depth {len(reading.accepted_drafts_at)}"
    if reading.rounds and reading.proposed_drafts is not None and reading.tool in _FIXED_DRAFTS:
        drafts = reading.proposed_drafts / reading.rounds
        if drafts != tree.num_draft_tokens - 1:
            return f"{reading.proposed_drafts} drafts proposed in {reading.rounds} rounds, {drafts:g} a round"
    length = reading.length_with_bonus
    if length is not None and length.low > tree.num_steps + 1:
        return f"an acceptance length of {length.value:.2f}"
    return ""
