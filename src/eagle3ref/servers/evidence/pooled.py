"""Many readings as one: their length with the bonus token, what it stands on, and how it came about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle3ref.servers.evidence.window_rounds import RoundsEstimate, all_rounds, window_rounds
from eagle3ref.servers.reading import Average, Reading, Scope
from eagle3ref.servers.rounded import Rounded


@dataclass(frozen=True)
class Pooled:
    """Readings of one scope and one format, pooled.

    Args:
        tool: who printed them.
        format: which of its formats.
        scope: over which rounds.
        average: pooled over rounds, or a mean over requests where nothing else is known.
        count: readings.
        length: with the bonus token; None where the figures do not determine it.
        length_how: how it was pooled.
        rounds: behind it; None where nothing tells.
        accepted_drafts: their sum, where all are counted.
        histogram: rounds by accepted drafts, where all are counted.
        accept_rate_at: joint rates, pooled over rounds.
        remarks: what else must be known.
    """

    tool: str
    format: str
    scope: Scope
    average: Average
    count: int
    length: Rounded | None
    length_how: str
    rounds: RoundsEstimate | None
    accepted_drafts: int | None = None
    histogram: tuple[int, ...] = ()
    accept_rate_at: tuple[Rounded, ...] = ()
    remarks: tuple[str, ...] = ()


def pool(readings: Sequence[Reading]) -> Pooled:
    """Readings of one tool, format and scope as one; not empty."""
    counted = [reading for reading in readings if reading.rounds is not None and reading.accepted_drafts is not None]
    if counted and sum(reading.rounds or 0 for reading in counted):
        return _counted(readings, counted)
    if any(reading.length_kind == "completion_per_round" and reading.rounds for reading in readings):
        return _from_completions(readings)
    return _from_figures(readings)


def derived_histogram(reading: Reading) -> tuple[int, ...]:
    """Rounds by accepted drafts: as given, or from the counts by depth of a chain; empty if neither is there."""
    by_depth = reading.accepted_drafts_at
    if reading.histogram or not by_depth or reading.rounds is None:
        return reading.histogram
    reached = (reading.rounds, *by_depth, 0)
    steps = tuple(at - deeper for at, deeper in zip(reached, reached[1:], strict=False))
    return steps if min(steps) >= 0 and len(by_depth) == reading.num_steps else ()


def _counted(readings: Sequence[Reading], counted: Sequence[Reading]) -> Pooled:
    rounds = sum(reading.rounds or 0 for reading in counted)
    accepted = sum(reading.accepted_drafts or 0 for reading in counted)
    left_out = len(readings) - len(counted)
    remarks = (f"{left_out:,} of {len(readings):,} give no counts and were left out.",) if left_out else ()
    histograms = [derived_histogram(reading) for reading in counted]
    return Pooled(
        **_kind(readings[0]),
        average="rounds",
        count=len(counted),
        length=Rounded.exactly(1 + accepted / rounds),
        length_how="(accepted drafts + rounds) / rounds, from counts",
        rounds=RoundsEstimate(rounds, rounds, rounds, "counted", True),
        accepted_drafts=accepted,
        histogram=_added(histograms) if all(histograms) else (),
        accept_rate_at=_joint_rates(counted, rounds),
        remarks=remarks,
    )


def _from_completions(readings: Sequence[Reading]) -> Pooled:
    """Requests that give tokens and rounds: each token but the prefill's was committed by a round."""
    usable = [reading for reading in readings if reading.rounds and reading.completion_tokens]
    rounds = sum(reading.rounds or 0 for reading in usable)
    requests = len(usable) if readings[0].scope == "request" else 0
    tokens = sum(reading.completion_tokens or 0 for reading in usable) - requests
    if not rounds:
        return _from_figures(readings)
    cut = sum(_most_cut(reading) for reading in usable) if requests else 0
    how = "(completion tokens - 1 of each request's prefill) / rounds; the last round of each may have been cut"
    if not requests:
        how = "completion tokens / rounds; the prefill's token of each request is in it"
    remarks = (
        (f"{len(readings) - len(usable):,} of {len(readings):,} give no counts.",)
        if len(usable) < len(readings)
        else ()
    )
    return Pooled(
        **_kind(readings[0]),
        average="rounds",
        count=len(usable),
        length=Rounded(tokens / rounds, tokens / rounds, (tokens + cut) / rounds) if requests else None,
        length_how=how,
        rounds=RoundsEstimate(rounds, rounds, rounds, "counted", True),
        remarks=remarks,
    )


def _most_cut(reading: Reading) -> int:
    """Drafts that the last round may have lost to a limit or a stop: all but one token of a full round."""
    if reading.num_steps is not None:
        return reading.num_steps
    if reading.num_draft_tokens is not None:
        return reading.num_draft_tokens - 1
    return math.ceil(2 * (reading.completion_tokens or 0) / (reading.rounds or 1))


def _from_figures(readings: Sequence[Reading]) -> Pooled:
    """Printed lengths, weighted by rounds where these can be estimated for all."""
    usable = [(reading, reading.length_with_bonus) for reading in readings]
    lengths = [(reading, length) for reading, length in usable if length is not None]
    estimates = [window_rounds(reading) for reading, _ in lengths]
    known = [estimate.value for estimate in estimates if estimate is not None]
    weights = known if known and len(known) == len(lengths) else [1.0] * len(lengths)
    how = (
        "printed lengths weighted by estimated rounds" if weights is known else "printed lengths, each counting as much"
    )
    if len(lengths) == 1:
        how = "the printed length"
    length = None
    if lengths:
        total = sum(weights)
        low, value, high = (
            sum(weight * getattr(number, end) for weight, (_, number) in zip(weights, lengths, strict=True)) / total
            for end in ("low", "value", "high")
        )
        length = Rounded(value, low, high)
    else:
        how = "completion tokens / rounds without the counts, which does not determine it"
    return Pooled(
        **_kind(readings[0]),
        average="requests" if all(reading.average == "requests" for reading in readings) else "rounds",
        count=len(readings),
        length=length,
        length_how=how,
        rounds=all_rounds([reading for reading, _ in lengths]) if lengths else None,
        accept_rate_at=readings[0].accept_rate_at if len(readings) == 1 else (),
    )


def _kind(reading: Reading) -> dict[str, Any]:
    return {"tool": reading.tool, "format": reading.format, "scope": reading.scope}


def _joint_rates(readings: Sequence[Reading], rounds: int) -> tuple[Rounded, ...]:
    """Pooled over rounds: from counts by depth, from histograms, or from printed rates."""
    if all(reading.accepted_drafts_at or reading.histogram for reading in readings):
        by_depth = [reading.accepted_drafts_at or _reached(reading.histogram) for reading in readings]
        return tuple(Rounded.exactly(number / rounds) for number in _added(by_depth))
    rates = [reading.accept_rate_at for reading in readings]
    depths = {len(row) for row in rates}
    if len(depths) != 1 or 0 in depths:
        return ()
    columns = zip(*rates, strict=True)
    return tuple(
        Rounded(
            *(
                sum(getattr(rate, end) * (r.rounds or 0) for rate, r in zip(column, readings, strict=True)) / rounds
                for end in ("value", "low", "high")
            )
        )
        for column in columns
    )


def _reached(histogram: tuple[int, ...]) -> tuple[int, ...]:
    """Rounds that accepted at least 1, 2, … drafts."""
    return tuple(sum(histogram[depth:]) for depth in range(1, len(histogram)))


def _added(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The sums of each place; a row that ends early has zeros there."""
    longest = max(map(len, rows))
    return tuple(sum(row[place] for row in rows if place < len(row)) for place in range(longest))
