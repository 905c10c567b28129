"""Which formula an accept rate follows: told from the length beside it, the settings, and the date or version."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime

from eagle3ref.engines import engine_profile
from eagle3ref.servers.formats.unwrap import NO_YEAR
from eagle3ref.servers.rate.formulas import FORMULAS, OF_PROFILE, RateFormula
from eagle3ref.servers.rate.reading import RateInference, RateReading, Verdict
from eagle3ref.servers.rounded import Rounded

Pair = tuple[Rounded, Rounded]  # length with bonus, rate

_FEWEST_OF_A_SERVER = 4  # lines; fewer fit some formula by chance
_LARGEST_TREE = 128  # draft tokens; SGLang's examples end at 64


def infer_rate(
    length: Rounded,
    rate: Rounded,
    *,
    num_draft_tokens: int | None = None,
    num_steps: int | None = None,
    topk: int | None = None,
    when: date | None = None,
    engine: str | None = None,
    strict: bool = False,
) -> RateInference:
    """What one printed rate may mean beside the length of the same rounds.

    Args:
        length: with the bonus token.
        rate: as a fraction.
        num_draft_tokens: of the server, if known, the root counted.
        num_steps: likewise.
        topk: likewise; 1 makes num_draft_tokens num_steps + 1.
        when: the line was printed: a formula that SGLang had not yet is not meant.
        engine: ``"sglang==0.5.9"``: its profile names the formula.
        strict: the tool is known to count drafts only, and to have done so always.

    Raises:
        Eagle3RefError: an engine that is not known.
    """
    return infer_rates(
        [(length, rate)],
        num_draft_tokens=num_draft_tokens,
        num_steps=num_steps,
        topk=topk,
        when=when,
        engine=engine,
        strict=strict,
    )


def infer_rates(
    pairs: Iterable[Pair],
    *,
    num_draft_tokens: int | None = None,
    num_steps: int | None = None,
    topk: int | None = None,
    when: date | None = None,
    engine: str | None = None,
    strict: bool = False,
) -> RateInference:
    """What the rates of many lines of one server mean: one formula and one divisor must fit them all.

    A line more may decide what one leaves open: 2.38 beside 0.15 is 16 draft tokens with the bonus token counted, or 10
    without; 2.50 beside 0.16 is 16 and nothing else. A line in twenty may fit nothing, as after a new setting.

    Args:
        pairs: (length, rate) of each line; the other arguments as in ``infer_rate``.

    Raises:
        Eagle3RefError: an engine that is not known.
    """
    if topk == 1:
        num_draft_tokens = num_draft_tokens or (None if num_steps is None else num_steps + 1)
        num_steps = num_steps or (None if num_draft_tokens is None else num_draft_tokens - 1)
    counted = Counter(pairs)
    allowed, remarks = _allowed(engine, strict)
    found: list[RateReading] = []
    for formula in _candidates(num_draft_tokens, num_steps):
        reading = _reading(formula, counted, num_draft_tokens, num_steps, None if strict else when)
        if reading is not None and (allowed is None or formula.name in allowed):
            found.append(reading)
    possible = [reading for reading in found if reading.possible_then]
    likely = [reading for reading in possible or found if reading.formula.is_released]
    kept = _distinct(likely or possible or found)
    remarks += tuple(_of_dates(found, possible, kept, when))
    misfits = min((_misfits(reading, counted) for reading in kept), default=0)
    kept = [reading for reading in kept if _misfits(reading, counted) == misfits]
    if not kept:
        remarks += tuple(_mixed(counted, allowed, num_draft_tokens, num_steps))
    if misfits:
        remarks += (f"{misfits:,} of {counted.total():,} lines fit no reading.",)
    verdict: Verdict = "none" if not kept else "one" if len(kept) == 1 else "several"
    return RateInference(tuple(kept), verdict, counted.total(), misfits, remarks)


def _allowed(engine: str | None, strict: bool) -> tuple[set[str] | None, tuple[str, ...]]:
    """The formulas that the engine can mean; None for any."""
    if engine is not None:
        profile = engine_profile(engine)
        name = None if profile.accept_rate is None else OF_PROFILE.get(profile.accept_rate)
        if name is None:
            return None, (f"{profile.name} prints no accept rate that is known.",)
        return {name}, ()
    return ({formula.name for formula in FORMULAS if not formula.counts_bonus} if strict else None), ()


def _candidates(num_draft_tokens: int | None, num_steps: int | None) -> Sequence[RateFormula]:
    """With no settings, the two families are all that numbers can tell apart."""
    if num_draft_tokens is None and num_steps is None:
        return FORMULAS[:2]
    known = [formula for formula in FORMULAS if formula.divisor(num_draft_tokens, num_steps) is not None]
    return known if num_draft_tokens is not None else [*known, *(f for f in FORMULAS[:2] if f not in known)]


def _reading(
    formula: RateFormula,
    counted: Counter[Pair],
    num_draft_tokens: int | None,
    num_steps: int | None,
    when: date | None,
) -> RateReading | None:
    divisors = _divisors(formula, num_draft_tokens, num_steps)
    matches = {d: sum(n for pair, n in counted.items() if _fits(formula, pair, d)) for d in divisors}
    best = max(matches.values(), default=0)
    if not best or counted.total() - best > _odd_lines(counted.total()):
        return None
    fits = [d for d, number in matches.items() if number == best]
    trees = (num_draft_tokens,) if num_draft_tokens else _settings(formula.num_draft_tokens, fits)
    steps = (num_steps,) if num_steps else _settings(formula.num_steps, fits)
    possible = (
        when is None or when.year == NO_YEAR or not formula.since or _day(when) >= date.fromisoformat(formula.since)
    )
    return RateReading(formula, tuple(fits), trees, steps, _strict_rate(counted, trees, steps), possible)


def _divisors(formula: RateFormula, num_draft_tokens: int | None, num_steps: int | None) -> Sequence[int]:
    """What may stand below the line: one number with these settings, or all of plausible trees."""
    divisor = formula.divisor(num_draft_tokens, num_steps)
    if divisor is not None:
        return (divisor,) if divisor >= 1 else ()
    # A tree of num_steps levels has at least one node a level.
    least = 1 if num_steps is None else num_steps + (1 if formula.counts_bonus else 0)
    return range(least, _LARGEST_TREE + 1)


def _odd_lines(total: int) -> int:
    """Lines of one server that may fit no formula, as those around a change of its settings."""
    return max(total // 20, 1) if total >= 8 else 0


def _fits(formula: RateFormula, pair: Pair, divisor: int) -> bool:
    length, rate = pair
    above = (max(length.low, 1.0), length.high) if formula.counts_bonus else (max(length.low - 1, 0.0), length.high - 1)
    return above[0] / divisor <= rate.high + 1e-9 and rate.low <= above[1] / divisor + 1e-9


def _settings(offset: int | None, divisors: Sequence[int]) -> tuple[int, ...]:
    """The setting of each divisor; none where all large ones fit, which says nothing."""
    if offset is None or (len(divisors) > 1 and divisors[-1] == _LARGEST_TREE):
        return ()
    return tuple(divisor - offset for divisor in divisors)


def _strict_rate(counted: Counter[Pair], trees: Sequence[int], steps: Sequence[int]) -> Rounded | None:
    """Accepted drafts / verified drafts: from the length alone, once the settings are known."""
    verified = [n - 1 for n in trees if n > 1] or list(steps)
    total = counted.total()
    low, value, high = (
        sum(getattr(pair[0], end) * n for pair, n in counted.items()) / total for end in ("low", "value", "high")
    )
    if value <= 1:
        return Rounded(0.0, 0.0, max(high - 1, 0) / min(verified, default=1)) if verified or high <= 1.01 else None
    if not verified:
        return None
    return Rounded(
        (value - 1) / math.sqrt(verified[0] * verified[-1]),
        (max(low, 1) - 1) / max(verified),
        (high - 1) / min(verified),
    )


def _distinct(readings: Sequence[RateReading]) -> list[RateReading]:
    """Formulas that divide the same by the same, as those by tree and by level of a chain, are one reading."""
    kept: dict[tuple[bool, tuple[int, ...]], RateReading] = {}
    for reading in readings:
        kept.setdefault((reading.formula.counts_bonus, reading.divisors), reading)
    return list(kept.values())


def _of_dates(
    found: Sequence[RateReading], possible: Sequence[RateReading], kept: Sequence[RateReading], when: date | None
) -> Iterator[str]:
    """What the date of the lines excludes, or contradicts."""
    if when is None or len(possible) == len(found):
        return
    if not possible:
        first = kept[0].formula
        yield (
            f"That contradicts the date: SGLang has {first.name} since {first.since}, and the lines are of "
            f"{_day(when)}. The clock is wrong, or the build is newer than its date or patched, or the formula another."
        )
    divided = {(reading.formula.counts_bonus, reading.divisors) for reading in kept}
    for reading in found if possible else ():
        if not reading.possible_then and (reading.formula.counts_bonus, reading.divisors) not in divided:
            yield f"Excluded by the date {_day(when)}: {reading.formula.name}, in SGLang since {reading.formula.since}."


def _mixed(counted: Counter[Pair], allowed: set[str] | None, tree: int | None, steps: int | None) -> Iterator[str]:
    """Whether lines of several servers may stand among each other."""
    formulas = [f for f in _candidates(tree, steps) if allowed is None or f.name in allowed]
    ways = [(formula, divisor) for formula in formulas for divisor in _divisors(formula, tree, steps)]
    if counted.total() >= 2 * _FEWEST_OF_A_SERVER:
        yield from _two_servers(counted, ways)
    elif len(counted) > 1 and all(any(_fits(f, pair, d) for f, d in ways) for pair in counted):
        yield "Each line alone fits one: lines of several servers or settings may be mixed. Read them apart."


def _two_servers(counted: Counter[Pair], ways: Sequence[tuple[RateFormula, int]]) -> Iterator[str]:
    """Whether the lines fall into two groups of which each has its formula."""
    total, rest = counted.total(), counted
    named: list[str] = []
    for _ in range(2):
        fitting = {way: [pair for pair in rest if _fits(way[0], pair, way[1])] for way in ways}
        best = max(ways, key=lambda way: sum(rest[pair] for pair in fitting[way]), default=None)
        number = sum(rest[pair] for pair in fitting[best]) if best else 0
        if best is None or number < max(_FEWEST_OF_A_SERVER, total // 10):
            return
        named.append(f"{number:,} are {best[0].name} with {best[1]} below the line")
        rest = Counter({pair: n for pair, n in rest.items() if pair not in fitting[best]})
    if rest.total() <= _odd_lines(total):
        yield f"Lines of two servers, or of two settings: {' and '.join(named)}. Read them apart."


def _misfits(reading: RateReading, counted: Counter[Pair]) -> int:
    return min(
        sum(n for pair, n in counted.items() if not _fits(reading.formula, pair, divisor))
        for divisor in reading.divisors
    )


def _day(when: date) -> date:
    return when.date() if isinstance(when, datetime) else when
