"""What a server's counters gained between two readings of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eagle3ref.servers.reading import Reading
from eagle3ref.servers.rounded import Rounded

_COUNTED = ("rounds", "proposed_drafts", "accepted_drafts", "completion_tokens", "prompt_tokens")
_RESET = "A counter is smaller than before: the server was started anew, and only what followed counts."


def between(before: Reading, after: Reading) -> Reading:
    """What the counters gained from one reading of them to the next; scope ``"run"``.

    Args:
        before: a lifetime reading with integers.
        after: a later one of the same server.
    """
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in _COUNTED}
    was_reset = any(old is not None and new is not None and new < old for old, new in pairs.values())
    gained: dict[str, Any] = {name: new if was_reset else _gain(old, new) for name, (old, new) in pairs.items()}
    by_depth = after.accepted_drafts_at
    if not was_reset and before.accepted_drafts_at:
        by_depth = tuple(new - old for old, new in zip(before.accepted_drafts_at, by_depth, strict=False))
    rounds, completion = gained["rounds"], gained["completion_tokens"]
    per_round = Rounded.exactly(completion / rounds) if completion and rounds else None
    return replace(
        after,
        format=f"{after.format}, difference",
        scope="run",
        **gained,
        accept_length=per_round if after.length_kind == "completion_per_round" else None,
        accept_rate=None,
        accept_rate_at=(),
        accepted_drafts_at=by_depth,
        remarks=(*after.remarks, _RESET) if was_reset else after.remarks,
    )


def _gain(old: int | None, new: int | None) -> int | None:
    return None if old is None or new is None else new - old
