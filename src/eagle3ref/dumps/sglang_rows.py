"""Which token each row of a server's forwards belongs to, and which rows are of drafts that were rejected."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from eagle3ref.dumps.sglang_parts import Part
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace import Prompt

_ONE_AT_A_TIME = "Record one request at a time, and without a draft if it drafts trees."


class Placed(NamedTuple):
    """The rows of one sequence.

    Args:
        kept: of each forward, in their order, how many rows from its first; the others are of rejected drafts.
        parts: the forwards in that order.
        first_row: the token of the first row.
        tokens: int64 [T]; None when they are not known.
        prompt_length: None when nothing tells.
    """

    kept: list[int]
    parts: list[Part]
    first_row: int
    tokens: Tensor | None
    prompt_length: int | None


def place_rows(parts: list[Part], prompt: Prompt | None, doing: str) -> Placed:
    """Put the rows of forwards in the order of the tokens.

    With positions these decide: a forward that begins where an earlier one went already overwrites it, as rounds of a
    drafted chain do. Without them the forwards follow each other as their names do.

    Args:
        parts: of one sequence, in the order of their names.
        prompt: the ids of the prompt, and of the answer, as far as they are given.
        doing: for errors.

    Raises:
        Eagle3RefError: forwards of several requests, or of trees; positions that are missing; other tokens than those
            that are given; more rows than tokens.
    """
    if all(part.positions is not None for part in parts):
        return _by_position(parts, prompt, doing)
    kept = [part.num_rows for part in parts]
    ids = _ids(parts, kept)
    first_row = 0 if prompt is None else _offset(parts, ids, prompt, doing)
    return Placed(kept, parts, first_row, _tokens(ids, first_row, prompt), _prompt_length(parts, first_row, prompt))


def _by_position(parts: list[Part], prompt: Prompt | None, doing: str) -> Placed:
    starts: dict[int, Part] = {}
    for part in parts:
        positions = part.positions
        assert positions is not None  # the caller asked
        start = int(positions[0])
        if not torch.equal(positions, torch.arange(start, start + len(positions))):
            found = f"positions {positions[:6].tolist()}… in {part.name}, of several requests or of a tree"
            _refuse(doing, found, "the positions of one request, one after the other", _ONE_AT_A_TIME)
        if start in starts:
            found = f"position {start} as the first of {starts[start].name} and of {part.name}"
            _refuse(doing, found, "forwards of one request", _ONE_AT_A_TIME)
        starts[start] = part
    order = sorted(starts)
    ordered = [starts[start] for start in order]
    for start, part, later in zip(order, ordered, order[1:], strict=False):
        if later > start + part.num_rows:
            found = f"no rows of positions {start + part.num_rows} to {later - 1}, behind {part.name}"
            _refuse(doing, found, "every position", "Dump that sequence again: a forward is missing.")
    kept = [min(part.num_rows, later - start) for start, part, later in zip(order, ordered, order[1:], strict=False)]
    kept.append(_last_kept(order[-1], ordered[-1], prompt))
    ids, first_row = _ids(ordered, kept), order[0]
    if prompt is not None:
        _check_tokens(ids, _given(prompt), first_row, doing)
    tokens, prompt_length = _tokens(ids, first_row, prompt), _prompt_length(ordered, first_row, prompt)
    return Placed(kept, ordered, first_row, tokens, prompt_length)


def _tokens(ids: Tensor | None, first_row: int, prompt: Prompt | None) -> Tensor | None:
    """Those given, or those that went in with what the prompt has before them."""
    if prompt is not None and prompt.answer is not None:
        return _given(prompt)
    if ids is None or (prompt is None and first_row > 0):
        return None
    return ids if prompt is None else torch.cat([prompt.tokens[:first_row], ids])


def _last_kept(start: int, part: Part, prompt: Prompt | None) -> int:
    """Of the last forward: behind the prompt only the root is sure, unless the answer says what was accepted."""
    if prompt is None or start < len(prompt.tokens):
        return part.num_rows
    known = _given(prompt)[start : start + part.num_rows]
    if prompt.answer is None or part.ids is None:
        return 1
    agrees = (part.ids[: len(known)] == known).int().cumprod(0).sum()
    return max(int(agrees), 1)


def _given(prompt: Prompt) -> Tensor:
    return prompt.tokens if prompt.answer is None else torch.cat([prompt.tokens, prompt.answer])


def _ids(parts: list[Part], kept: list[int]) -> Tensor | None:
    ids = [part.ids[:number] for part, number in zip(parts, kept, strict=True) if part.ids is not None]
    return torch.cat(ids) if len(ids) == len(parts) else None


def _offset(parts: list[Part], ids: Tensor | None, prompt: Prompt, doing: str) -> int:
    """The token of the first row, of forwards that do not say it."""
    given, num_rows = _given(prompt), sum(part.num_rows for part in parts)
    if prompt.answer is None:
        ends = list(accumulate(part.num_rows for part in parts))
        # A forward ends where the prompt does: a row of the prompt's last token is always computed.
        candidates = [0, *(len(given) - end for end in ends if end < len(given))]
    else:
        # A server has a row for each token but the last; what is missing then is a cached prefix.
        candidates = [max(len(given) - 1 - num_rows, 0), max(len(given) - num_rows, 0), 0]
    if prompt.answer is not None and num_rows > len(given):
        found = f"{num_rows} rows for {len(given)} tokens"
        action = "Leave out the warm-up's and other requests' forwards, and the rows of rejected drafts."
        _refuse(doing, found, f"{len(given) - 1}, one for each token but the last", action)
    fitting = [first for first in candidates if ids is None or _first_difference(ids, given, first) is None]
    if not fitting:
        _check_tokens(ids, given, candidates[0], doing)
    return fitting[0]


def _first_difference(ids: Tensor, given: Tensor, first_row: int) -> int | None:
    """The first row whose token is not the given one, if its rows begin at this token."""
    overlap = given[first_row : first_row + len(ids)]
    differs = (ids[: len(overlap)] != overlap).nonzero().flatten()
    return int(differs[0]) if len(differs) else None


def _check_tokens(ids: Tensor | None, given: Tensor, first_row: int, doing: str) -> None:
    at = None if ids is None else _first_difference(ids, given, first_row)
    if ids is not None and at is not None:
        position = first_row + at
        action = "The forwards are in another order or of another request; or give the prompts that were recorded."
        _refuse(doing, f"token {int(ids[at])} at position {position}", f"{int(given[position])}, as given", action)


def _prompt_length(parts: list[Part], first_row: int, prompt: Prompt | None) -> int | None:
    """Given, or what the names call prefill, or what comes before forwards of one row each."""
    if prompt is not None:
        return len(prompt.tokens)
    if any(part.is_prefill for part in parts):
        return first_row + sum(part.num_rows for part in parts if part.is_prefill)
    single = [part.num_rows == 1 for part in parts]
    num_prefills = single.index(True) if True in single else len(parts)
    if 0 < num_prefills < len(parts) and all(single[num_prefills:]):
        return first_row + sum(part.num_rows for part in parts[:num_prefills])
    return None


def _refuse(doing: str, found: str, expected: str, action: str) -> NoReturn:
    raise Eagle3RefError(doing, found=found, expected=expected, action=action)
