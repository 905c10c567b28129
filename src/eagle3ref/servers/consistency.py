"""What follows from a reading's own figures, and what of them contradicts itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from eagle3ref.servers.rate.inference import infer_rate
from eagle3ref.servers.reading import Reading
from eagle3ref.servers.rounded import Rounded

_STRICT_TOOLS = ("vLLM", "llama.cpp", "ik_llama.cpp", "tokenspeed")  # rate = accepted / proposed, and always was
_RATE_CHECKED_ELSEWHERE = ("/v1/loads", "decode log", "/metrics gauge")  # by ``Evidence.rate``, over all lines
_DEEPEST_TREE = 64
_COUNTS = (
    *("rounds", "accepted_drafts", "proposed_drafts", "completion_tokens", "prompt_tokens", "cached_tokens"),
    *("num_steps", "topk", "num_draft_tokens", "running_requests"),
)
_LISTS_OF_COUNTS = ("histogram", "accepted_by_round", "accepted_drafts_at")


def completed(reading: Reading) -> Reading:
    """The reading with what its figures imply filled in, and a remark for each contradiction among them."""
    for fill_in in (
        _without_negatives,
        _without_depth_0,
        _length_kind,
        _rounds,
        _num_steps,
        _conditional,
        _counts_by_depth,
    ):
        reading = fill_in(reading)
    remarks = tuple(_contradictions(reading))
    return replace(reading, remarks=(*reading.remarks, *remarks)) if remarks else reading


def _without_negatives(reading: Reading) -> Reading:
    """Counts below 0 are none; what else the reading says stays."""
    odd: dict[str, Any] = {name: None for name in _COUNTS if (getattr(reading, name) or 0) < 0}
    odd |= {name: () for name in _LISTS_OF_COUNTS if min(getattr(reading, name), default=0) < 0}
    if not odd:
        return reading
    names = ", ".join(name.replace("_", " ") for name in odd)
    return replace(reading, **odd, remarks=(*reading.remarks, f"Below 0, and left out: {names}."))


def _without_depth_0(reading: Reading) -> Reading:
    """vLLM's example of May 2025 printed k + 1 rates, the first of which, the token of the target, is always 1."""
    rates, length = reading.accept_rate_at, reading.accept_length
    if len(rates) < 2 or length is None or rates[0].value != 1 or not _sum(rates).overlaps(length):
        return reading
    remark = "The first rate, 1.00, is the target's own token; it was left out."
    return replace(
        reading,
        accept_rate_at=rates[1:],
        accepted_drafts_at=reading.accepted_drafts_at[1:],
        num_steps=None if reading.num_steps is None else reading.num_steps - 1,
        remarks=(*reading.remarks, remark),
    )


def _length_kind(reading: Reading) -> Reading:
    """vLLM 0.8.5 printed the length without the bonus token: then it is the sum of the joint rates itself."""
    length, rates = reading.accept_length, reading.accept_rate_at
    if reading.tool != "vLLM" or length is None or reading.rounds is not None:
        return reading
    if rates and len(rates) == reading.num_steps:
        total = _sum(rates)
        without = length.overlaps(total) and not length.overlaps(_shifted(total, 1))
    else:
        without = length.value < 1
    if not without:
        return reading
    remark = "This length leaves the bonus token out, as vLLM did before 0.9.0."
    return replace(reading, length_kind="without_bonus", remarks=(*reading.remarks, remark))


def _rounds(reading: Reading) -> Reading:
    """Rounds from accepted drafts and the length, where only one whole number fits."""
    accepted, length = reading.accepted_drafts, reading.length_with_bonus
    if (
        reading.rounds is not None
        or accepted is None
        or length is None
        or reading.length_kind == "completion_per_round"
    ):
        return reading
    steps, drafted = reading.num_steps, reading.proposed_drafts
    if (
        reading.tool == "vLLM"
        and steps
        and drafted
        and drafted % steps == 0
        and length.holds(1 + accepted * steps / drafted)
    ):
        return replace(reading, rounds=drafted // steps)
    bounds = rounds_between(reading)
    return replace(reading, rounds=bounds[0]) if bounds is not None and bounds[0] == bounds[1] else reading


def rounds_between(reading: Reading) -> tuple[int, int] | None:
    """The least and the most rounds that accepted drafts and a printed length allow; None if they allow any."""
    accepted, length = reading.accepted_drafts, reading.length_with_bonus
    if not accepted or length is None or length.low <= 1:
        return None
    least, most = math.ceil(accepted / (length.high - 1) - 1e-9), math.floor(accepted / (length.low - 1) + 1e-9)
    return (least, most) if least <= most else None


def _num_steps(reading: Reading) -> Reading:
    """The depth of a chain from a strict rate, where only one fits."""
    if reading.num_steps is not None or reading.tool not in _STRICT_TOOLS:
        return reading
    if reading.rounds and reading.proposed_drafts:
        steps = reading.proposed_drafts // reading.rounds
        return replace(reading, num_steps=steps) if steps * reading.rounds == reading.proposed_drafts else reading
    length, rate = reading.length_with_bonus, reading.accept_rate
    if length is None or rate is None or reading.tool != "vLLM":
        return reading
    fits = [steps for steps in range(1, _DEEPEST_TREE) if _over(_shifted(length, -1), steps).overlaps(rate)]
    return replace(reading, num_steps=fits[0]) if len(fits) == 1 else reading


def _conditional(reading: Reading) -> Reading:
    """Rates of a table that are conditional, told by 1 + their running products; joint is what nearly all print."""
    length, rates = reading.accept_length, reading.accept_rate_at
    if reading.scope != "reference" or length is None or len(rates) < 2 or reading.conditional_accept_rate_at:
        return reading
    products = Rounded(_products(rates, "value"), _products(rates, "low"), _products(rates, "high"))
    if _shifted(_sum(rates), 1).overlaps(length) or not _shifted(products, 1).overlaps(length):
        return reading
    remark = "These rates are conditional: 1 + the sum of their running products is the length."
    return replace(reading, accept_rate_at=(), conditional_accept_rate_at=rates, remarks=(*reading.remarks, remark))


def _counts_by_depth(reading: Reading) -> Reading:
    """Accepted drafts at each depth, where the rounds and the rates leave one whole number for all of them."""
    rounds, rates = reading.rounds, reading.accept_rate_at
    if not rounds or not rates or reading.accepted_drafts_at or len(rates) != reading.num_steps:
        return reading
    numbers = [round(rate.value * rounds) for rate in rates]
    unique = all((rate.high - rate.low) * rounds < 1 for rate in rates)
    if not unique or sum(numbers) != reading.accepted_drafts:
        return reading
    return replace(reading, accepted_drafts_at=tuple(numbers))


def _contradictions(reading: Reading) -> Iterator[str]:
    yield from _impossible(reading)
    yield from _of_integers(reading)
    yield from _of_figures(reading)


def _impossible(reading: Reading) -> Iterator[str]:
    length, steps, rate = reading.length_with_bonus, reading.num_steps, reading.accept_rate
    printed = reading.accept_length
    if printed is not None and printed.high < 1 and reading.length_kind != "without_bonus":
        yield f"A length of {printed.value:.2f} is below 1, and left out: every round commits at least one token."
    if length is not None and steps is not None and length.low > steps + 1:
        yield f"A length of {length.value:.2f} is more than {steps} drafts and a bonus token can give."
    if rate is not None and rate.low > 1:
        yield f"A rate of {rate.value:.2f} is above 1; SGLang printed such rates for a few days of October 2025."


def _of_integers(reading: Reading) -> Iterator[str]:
    rounds, accepted, histogram = reading.rounds, reading.accepted_drafts, reading.histogram
    if histogram and rounds is not None and sum(histogram) != rounds:
        yield f"The histogram holds {sum(histogram):,} rounds and there were {rounds:,}."
    counted = sum(c * number for c, number in enumerate(histogram))
    if histogram and accepted is not None and counted != accepted:
        yield f"The histogram holds {counted:,} accepted drafts and there were {accepted:,}."
    by_depth = reading.accepted_drafts_at
    if by_depth and len(by_depth) == reading.num_steps and accepted not in (None, sum(by_depth)):
        yield f"The depths add up to {sum(by_depth):,} accepted drafts and there were {accepted:,}."
    if accepted is not None and reading.proposed_drafts is not None and accepted > reading.proposed_drafts:
        yield f"{accepted:,} accepted drafts of {reading.proposed_drafts:,} proposed."
    tokens = reading.completion_tokens
    if reading.scope == "request" and None not in (tokens, rounds, accepted) and reading.format != "timings":
        most = 1 + (rounds or 0) + (accepted or 0)
        if (tokens or 0) > most:
            yield f"{tokens:,} tokens came out, and prefill and rounds give at most {most:,}: some came otherwise."


def _of_figures(reading: Reading) -> Iterator[str]:
    printed, rates = reading.accept_length, reading.accept_rate_at
    counted = None
    if reading.rounds and reading.accepted_drafts is not None:
        counted = reading.accepted_drafts / reading.rounds + (reading.length_kind != "without_bonus")
    is_checked = counted is not None and printed is not None and reading.length_kind != "completion_per_round"
    if is_checked and counted is not None and printed is not None and not printed.holds(counted):
        yield f"The printed length is {printed.value:g} and the counts give {counted:.4g}."
    if reading.accept_rate is not None and reading.proposed_drafts and reading.accepted_drafts is not None:
        strict = reading.accepted_drafts / reading.proposed_drafts
        if not reading.accept_rate.holds(strict) and reading.format != "V0 log":
            yield f"The printed rate is {reading.accept_rate.value:.4g} and accepted / proposed is {strict:.4g}."
    length = reading.length_with_bonus
    if rates and length is not None and reading.length_kind != "completion_per_round":
        yield from _of_joint_rates(reading, _shifted(_sum(rates), 1), length)
    elif printed is not None and reading.accept_rate is not None and counted is None:
        yield from _of_rate(reading, printed, reading.accept_rate)


def _of_joint_rates(reading: Reading, total: Rounded, length: Rounded) -> Iterator[str]:
    listed, missing = len(reading.accept_rate_at), length.value - total.value
    if total.overlaps(length):
        return
    if reading.num_steps == listed or missing < 0:
        yield f"1 + the joint rates is {total.value:.4g} and the length is {length.value:.4g}."
    else:
        depths = "depths" if reading.num_steps is None else f"of {reading.num_steps} depths"
        yield f"Only {listed} {depths} are listed: the others add {missing:.2f}."


def _of_rate(reading: Reading, length: Rounded, rate: Rounded) -> Iterator[str]:
    if reading.format in _RATE_CHECKED_ELSEWHERE or reading.length_kind == "completion_per_round" or rate.low > 1:
        return
    inference = infer_rate(
        length, rate, num_draft_tokens=reading.num_draft_tokens, num_steps=reading.num_steps, topk=reading.topk
    )
    if inference.verdict == "none":
        yield f"{inference.sentence} A mean over a batch or over requests may also be off by more than rounding."


def _sum(rates: tuple[Rounded, ...]) -> Rounded:
    return Rounded(sum(r.value for r in rates), sum(r.low for r in rates), sum(r.high for r in rates))


def _products(rates: tuple[Rounded, ...], end: str) -> float:
    """The sum of running products of one end of each rate."""
    total, product = 0.0, 1.0
    for rate in rates:
        product *= getattr(rate, end)
        total += product
    return total


def _shifted(number: Rounded, by: float) -> Rounded:
    return Rounded(number.value + by, number.low + by, number.high + by)


def _over(number: Rounded, divisor: float) -> Rounded:
    return Rounded(number.value / divisor, number.low / divisor, number.high / divisor)
