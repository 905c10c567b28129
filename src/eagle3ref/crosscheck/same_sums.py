"""The same answers, but counted together: totals of a server against the totals of exactly these requests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from eagle3ref.crosscheck.comparison import Comparison, Correction, UnequalRequest
from eagle3ref.crosscheck.near_ties import MOST_NEAR_TIES, near_tie_probability
from eagle3ref.crosscheck.predict import LengthForm, accepted_at, plain_length
from eagle3ref.crosscheck.same_requests import Pair, different_rounds, judge_integers
from eagle3ref.servers import Reading
from eagle3ref.statistics import Criterion, Difference


def can_be_summed(run: Reading) -> bool:
    """Whether it gives the integers."""
    return bool(run.rounds) and run.accepted_drafts is not None


def in_sum(pairs: Sequence[Pair], run: Reading, criterion: Criterion) -> Comparison | None:
    """A run's totals against those of exactly these requests; None if there is no round to compare.

    Args:
        pairs: every request of the run.
        run: rounds and accepted drafts of all of them together.
        criterion: of the verdict.
    """
    requests = [pair.predicted for pair in pairs]
    rounds = sum(request.rounds for request in requests)
    if not run.rounds or run.accepted_drafts is None or not rounds:
        return None
    padding = min(max(run.rounds - rounds, 0), _most_padding(pairs, run))
    low, high = sum(r.accepted_low for r in requests), sum(r.accepted_high for r in requests)
    nearest = min(max(run.accepted_drafts, low), high)
    wrong = _unequal(pairs, run, rounds + padding, (low, high))
    flips = _fewest_flips(pairs, run, rounds + padding, nearest)
    chance = near_tie_probability(flips, rounds, MOST_NEAR_TIES) if wrong else None
    server, reference = 1 + run.accepted_drafts / run.rounds, 1 + nearest / (rounds + padding)
    census = Difference(server - reference, 0.0)
    judged = judge_integers(census, chance, different_rounds(pairs), criterion)
    plain = plain_length(requests, reference)
    moved_by_padding = reference - (1 + nearest / rounds)
    corrections = [
        Correction("last rounds", reference - moved_by_padding - plain, "the totals count the last rounds of answers")
    ]
    if padding:
        why = f"{padding} rounds may be padding of requests with one token left to compute, which drafts nothing"
        corrections.append(
            Correction("padded rounds", moved_by_padding, why, source="vLLM 0.32.0: v1/core/sched/scheduler.py")
        )
    return Comparison(
        kind="same requests in sum",
        verdict=judged.verdict,
        of=f"totals of {len(pairs)} requests, {run.tool} {run.format}",
        form=str(LengthForm()),
        server=server,
        server_low=server,
        server_high=server,
        reference=reference,
        plain_reference=plain,
        difference=census,
        server_rounds=run.rounds,
        reference_rounds=rounds,
        corrections=tuple(corrections),
        unequal=(UnequalRequest("all together", None, wrong),) if wrong else (),
        num_requests=len(pairs),
        compared_rounds=different_rounds(pairs),
        near_tie_probability=chance,
        more=judged.more,
    )


def _fewest_flips(pairs: Sequence[Pair], run: Reading, rounds: int, accepted: int) -> int:
    """Rounds that must have come out otherwise, at the least: one changes each count at most by one a depth."""
    requests = [pair.predicted for pair in pairs]
    apart = [abs((run.rounds or 0) - rounds)]
    apart.append(math.ceil(abs((run.accepted_drafts or 0) - accepted) / requests[0].tree.num_steps))
    for depth, found in enumerate(run.accepted_drafts_at, 1):
        low, high = accepted_at(requests, depth)
        apart.append(max(low - found, found - high))
    return max(1, *apart)


def _most_padding(pairs: Sequence[Pair], run: Reading) -> int:
    """vLLM pads a request with a single token left to compute that joins running ones to the width of a round."""
    return sum(pair.predicted.prompt_length == 1 for pair in pairs) if run.tool == "vLLM" else 0


def _unequal(pairs: Sequence[Pair], run: Reading, rounds: int, accepted: tuple[int, int]) -> tuple[str, ...]:
    requests = [pair.predicted for pair in pairs]
    totals = [("rounds", run.rounds, (rounds, rounds)), ("accepted drafts", run.accepted_drafts, accepted)]
    totals += [
        (f"drafts accepted at depth {depth}", found, accepted_at(requests, depth))
        for depth, found in enumerate(run.accepted_drafts_at, 1)
    ]
    return tuple(
        f"{name} {found}, not {low}" + (f" to {high}" if high > low else "")
        for name, found, (low, high) in totals
        if found is not None and not low <= found <= high
    )
