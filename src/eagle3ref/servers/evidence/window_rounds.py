"""How many rounds stand behind a line of a log: counted where the line tells, else estimated, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from eagle3ref.servers.consistency import rounds_between
from eagle3ref.servers.reading import Reading

# SGLang's default of --decode-log-interval.
DECODE_LOG_INTERVAL = 40
_LONG_ENOUGH = 20.0  # seconds of log, whose stamps are in whole seconds
_SLACK = 2.0  # an estimate of rounds is taken to be right within this factor


@dataclass(frozen=True)
class RoundsEstimate:
    """Verification rounds behind one or several lines.

    Args:
        value: the estimate.
        low: the least that seems possible.
        high: the most that seems possible.
        how: what it is made of.
        is_counted: whether the lines give the number itself.
    """

    value: float
    low: float
    high: float
    how: str
    is_counted: bool = False


def window_rounds(reading: Reading, interval: float = DECODE_LOG_INTERVAL) -> RoundsEstimate | None:
    """The rounds of one line; None where nothing tells.

    A round is one request in one verification: a decode step of a batch of 8 is 8 rounds.

    Args:
        reading: of scope ``"window"``, or any with integers.
        interval: decode steps between two lines of SGLang.
    """
    if reading.rounds is not None:
        return RoundsEstimate(reading.rounds, reading.rounds, reading.rounds, "counted", True)
    bounds = rounds_between(reading)
    if bounds is not None:
        how = "accepted drafts / (length - 1), the length being rounded"
        return RoundsEstimate((bounds[0] + bounds[1]) / 2, *bounds, how)
    if reading.tool in ("SGLang", "tokenspeed") and reading.format == "decode log" and reading.running_requests:
        value = interval * reading.running_requests
        how = f"{interval:g} decode steps x the requests that ran at the end of them"
        return RoundsEstimate(value, value / _SLACK, value * _SLACK, how)
    return None


def all_rounds(windows: Sequence[Reading]) -> RoundsEstimate | None:
    """The rounds of many lines together; None where nothing tells.

    For SGLang two estimates are compared: decode steps x running requests, and generated tokens / length, the tokens
    being throughput x time between lines. The second holds for any --decode-log-interval and any batch, and is taken
    where the log is long enough for stamps in whole seconds.
    """
    each = [window_rounds(window) for window in windows]
    known = [rounds for rounds in each if rounds is not None]
    if not known:
        return None
    if len(known) == len(each) and all(rounds.is_counted for rounds in known):
        return RoundsEstimate(*(sum(rounds.value for rounds in known),) * 3, "counted", True)
    scale = len(each) / len(known)
    low, value, high = (scale * sum(getattr(rounds, end) for rounds in known) for end in ("low", "value", "high"))
    by_throughput = _by_throughput(windows)
    if by_throughput is None:
        return RoundsEstimate(value, low, high, next(rounds.how for rounds in known if not rounds.is_counted))
    how = "generated tokens / length, the tokens being throughput x time between lines"
    if not 0.8 < by_throughput / value < 1.25:
        how += f"; {DECODE_LOG_INTERVAL} steps a line would give {value:,.0f}: --decode-log-interval may be another"
    return RoundsEstimate(by_throughput, by_throughput * 0.8, by_throughput * 1.25, how)


def _by_throughput(windows: Iterable[Reading]) -> float | None:
    """Rounds of all windows from tokens per second, those of the first line of each rank taken as average."""
    by_source: dict[str, list[Reading]] = {}
    for window in windows:
        by_source.setdefault(window.source, []).append(window)
    rounds = 0.0
    for lines in by_source.values():
        spans = list(_spans(lines))
        seconds = sum(span for span, _ in spans)
        if seconds < _LONG_ENOUGH:
            return None
        rounds += sum(inside for _, inside in spans) * len(lines) / len(spans)
    return rounds or None


def _spans(lines: Sequence[Reading]) -> Iterator[tuple[float, float]]:
    """(seconds, rounds) of every line after the first."""
    for before, after in zip(lines, lines[1:], strict=False):
        length, tokens = after.length_with_bonus, after.gen_throughput
        if before.time is None or after.time is None or length is None or tokens is None or length.value < 1:
            continue
        seconds = (after.time - before.time).total_seconds()
        if seconds >= 0:
            yield seconds, tokens.value * seconds / length.value
