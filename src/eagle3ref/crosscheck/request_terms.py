"""Tokens and rounds of a server's own requests, from the fields that they have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eagle3ref.crosscheck.predict import LengthForm
from eagle3ref.servers import Reading
from eagle3ref.statistics import RatioOfSums


def tells_length(request: Reading) -> bool:
    """Whether it tells rounds, and what they gave."""
    return bool(rounds_of(request)) and (request.accepted_drafts is not None or completion_tokens(request) is not None)


def rounds_of(request: Reading) -> int | None:
    """Verification rounds: told, or completion tokens / (completion tokens / rounds); None if neither is."""
    length, tokens = request.accept_length, completion_tokens(request)
    if request.rounds is not None or length is None or tokens is None:
        return request.rounds
    if request.length_kind != "completion_per_round" or length.value <= 0:
        return None
    return round(tokens / length.value)


def completion_tokens(request: Reading) -> int | None:
    """Generated tokens: told, or counted."""
    if request.completion_tokens is not None or request.output_ids is None:
        return request.completion_tokens
    return len(request.output_ids)


def form_of(requests: Sequence[Reading]) -> LengthForm:
    """The length that all of them have the numbers for; the one without the prefill's token if possible."""
    has_drafts = all(request.accepted_drafts is not None for request in requests)
    return LengthForm("with_bonus" if has_drafts else "completion_per_round")


def server_terms(requests: Sequence[Reading], form: LengthForm) -> RatioOfSums:
    """Tokens over rounds of each request, in that form; every request must tell them."""
    rounds = [rounds_of(request) or 0 for request in requests]
    if form.kind == "with_bonus":
        tokens = [n + (request.accepted_drafts or 0) for n, request in zip(rounds, requests, strict=True)]
    else:
        tokens = [completion_tokens(request) or 0 for request in requests]
    return ratio(form, tokens, rounds)


def ratio(form: LengthForm, tokens: Sequence[int], rounds: Sequence[int]) -> RatioOfSums:
    """Under the name of its form."""
    return RatioOfSums(str(form), "tokens", "rounds", np.array(tokens, np.int64), np.array(rounds, np.int64))


def by_prompt(terms: RatioOfSums, rows: Sequence[int]) -> RatioOfSums:
    """The terms of requests added up by prompt; ``rows`` has the place of each request's prompt, from 0."""
    tokens, rounds = (np.zeros(max(rows) + 1, np.int64) for _ in range(2))
    np.add.at(tokens, rows, terms.numerators)
    np.add.at(rounds, rows, terms.denominators)
    return RatioOfSums(terms.name, terms.numerator, terms.denominator, tokens, rounds)
