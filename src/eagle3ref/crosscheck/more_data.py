"""How much more evidence would tell, if the difference stays where it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eagle3ref.statistics import Criterion, Difference

_UNHEARD_OF = 10**9  # rounds; beyond, the difference sits on the margin, and a number would pretend to know

_STAYS = ", if the difference stays where it is"


@dataclass(frozen=True)
class MoreData:
    """What would settle it, at the confidence and the margin of the comparison.

    Args:
        server_rounds: rounds of the server in all; None if no number of them is enough by itself.
        factor: by how much more of both, server and trace, would do; ``inf`` if nothing does.
        sentence: to print.
    """

    server_rounds: int | None
    factor: float
    sentence: str


def more_data(
    difference: Difference, criterion: Criterion, rounds: int | None, variances: tuple[float, float] | None
) -> MoreData | None:
    """None if the verdict is there already.

    Args:
        difference: as it is.
        criterion: of the verdict.
        rounds: behind the server's figure; None if unknown.
        variances: of the server's figure and the reference's where they are independent; None where both are of the
            same prompts, so that more of them is more of both.
    """
    factor = difference.factor_to_tell(*criterion)
    if factor <= 1:
        return None
    if rounds is None or math.isinf(difference.variance):
        return MoreData(None, math.inf, "Give evidence of more requests, and of the number of rounds behind it.")
    if math.isinf(factor) or rounds * factor > _UNHEARD_OF:
        why = "what rounding and bounds leave open is too much" if math.isinf(factor) else "it lies on the margin"
        return MoreData(
            None, math.inf, f"No number of rounds tells: {why}. Give request fields or counters, or another margin."
        )
    if variances is not None:
        server, reference = variances
        room = (server + reference) / factor - reference
        if room > 0 and server > 0:
            needed = math.ceil(rounds * server / room)
            return MoreData(needed, factor, f"About {_count(needed)} rounds of the server in all would tell{_STAYS}.")
    both = f"about {_count(rounds * factor)} rounds of the server, and {factor:.1f} times as many prompts in the trace"
    return MoreData(None, factor, f"More of both would tell{_STAYS}: {both}.")


def too_few_rounds(rounds: int, criterion: Criterion) -> MoreData | None:
    """What equal integers lack for ``agrees``; None if they are enough.

    Rule of three: where none of R rounds came out otherwise, their share is below ``-ln(1 - confidence) / R``, 3 / R at
    0.95. A round that does is taken to move the sum by one token, so that this share has to be within the margin.

    Args:
        rounds: different ones that were compared.
        criterion: of the verdict.
    """
    needed = math.ceil(-math.log(1 - criterion.confidence) / criterion.margin)
    if rounds >= needed:
        return None
    missing = needed - rounds
    sentence = (
        f"{missing:,} more rounds of the same answers would tell: a difference of the margin may go "
        f"unseen in {rounds:,} equal ones, and seldom does in {needed:,}."
    )
    return MoreData(needed, needed / rounds if rounds else math.inf, sentence)


def _count(number: float) -> str:
    """Two digits: it is an estimate."""
    unit = 10 ** max(0, len(str(math.ceil(number))) - 2)
    return f"{math.ceil(number / unit) * unit:,}"
