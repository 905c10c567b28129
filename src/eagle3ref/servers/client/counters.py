"""What the server's own counters say of a collection, and whether other requests are in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce

from eagle3ref.servers.client.pages import METRICS
from eagle3ref.servers.client.record import Pages
from eagle3ref.servers.evidence.counters import between
from eagle3ref.servers.formats.prometheus import read_metrics
from eagle3ref.servers.formats.stream import read_object
from eagle3ref.servers.reading import NotAcceptance, Reading


def run_readings(pages: Sequence[Pages], requests: Sequence[Reading], sent: int) -> list[Reading | NotAcceptance]:
    """A run reading from the counters before and after, and what the last pages say of the server's lifetime.

    Args:
        pages: of all runs of the journal, in time order.
        requests: the readings of single requests.
        sent: requests that may have reached the server.
    """
    found: list[Reading | NotAcceptance] = []
    gained = [gain for first, last in _runs(pages) if (gain := _gain(first, last)) is not None]
    if gained:
        found.append(_checked(reduce(_sum, gained), requests, sent - len(requests)))
    after = [page for page in pages if page.when == "after"]
    for path, text in after[-1].by_path.items() if after else ():
        time = after[-1].time
        found += read_metrics(text, time=time) if path == METRICS else read_object(json.loads(text), time=time)
    return found


def _runs(pages: Sequence[Pages]) -> Iterator[tuple[Pages, Pages]]:
    """The pages before and after each run. Those before the next run stand in for what a killed one never fetched."""
    for page, following in zip(pages, pages[1:], strict=False):
        if page.when == "before":
            yield page, following


def _gain(before: Pages, after: Pages) -> Reading | None:
    old, new = _counters(before), _counters(after)
    return None if old is None or new is None else between(old, new)


def _counters(pages: Pages) -> Reading | None:
    """Those that tell accepted drafts. SGLang's do not; its answers do."""
    readings = read_metrics(pages.by_path.get(METRICS, ""), time=pages.time)
    counted = (reading for reading in readings if isinstance(reading, Reading) and reading.scope == "lifetime")
    return next((reading for reading in counted if reading.accepted_drafts is not None), None)


def _sum(one: Reading, other: Reading) -> Reading:
    """Two runs as one."""
    same_depth = len(one.accepted_drafts_at) == len(other.accepted_drafts_at)
    by_depth = tuple(map(sum, zip(one.accepted_drafts_at, other.accepted_drafts_at, strict=True))) if same_depth else ()
    return replace(
        other,
        rounds=_added(one.rounds, other.rounds),
        accepted_drafts=_added(one.accepted_drafts, other.accepted_drafts),
        proposed_drafts=_added(one.proposed_drafts, other.proposed_drafts),
        completion_tokens=_added(one.completion_tokens, other.completion_tokens),
        prompt_tokens=_added(one.prompt_tokens, other.prompt_tokens),
        accepted_drafts_at=by_depth,
        remarks=tuple(dict.fromkeys(one.remarks + other.remarks)),
    )


def _added(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _checked(run: Reading, requests: Sequence[Reading], unanswered: int) -> Reading:
    """With a remark where the counters hold more, or less, than these requests."""
    remarks = []
    for what, counted, parts in (
        ("generated tokens", run.completion_tokens, [request.completion_tokens for request in requests]),
        ("tokens of prompts", run.prompt_tokens, [request.prompt_tokens for request in requests]),
    ):
        ours = sum(part for part in parts if part is not None)
        if counted is None or None in parts:
            remarks.append(f"The {what} cannot be counted: other requests may be in these figures.")
        elif counted != ours:
            why = _why(counted - ours, unanswered)
            remarks.append(f"The counters gained {counted} {what}, the answers have {ours}: {why}.")
    return replace(run, remarks=(*run.remarks, *remarks))


def _why(surplus: int, unanswered: int) -> str:
    if surplus < 0:
        return "the server has not counted all of them"
    of_ours = f", or the {unanswered} of these without an answer," if unanswered else ""
    return f"other requests{of_ours} ran meanwhile"
