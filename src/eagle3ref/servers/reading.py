"""One statement about acceptance that some tool made, field by field and with what it is a statement about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from eagle3ref.servers.rounded import Rounded

# Over which rounds a figure was taken.
Scope = Literal["request", "window", "lifetime", "run", "reference"]
SCOPE_MEANING: Mapping[Scope, str] = {
    "request": "one request",
    "window": "all requests since the line before",
    "lifetime": "everything since the server started or was flushed: warm-up and earlier traffic too",
    "run": "all requests of one benchmark",
    "reference": "a value to compare with: a baseline, a model card, a training log",
}
# What a printed length counts per round.
LengthKind = Literal["with_bonus", "without_bonus", "completion_per_round"]
LENGTH_MEANING: Mapping[LengthKind, str] = {
    "with_bonus": "(accepted drafts + rounds) / rounds",
    "without_bonus": "accepted drafts / rounds",
    "completion_per_round": "completion tokens / rounds: the token of the prefill is in it, and the last round is cut",
}
# What is averaged: pooled over rounds (micro), or the mean of one figure a request (macro).
Average = Literal["rounds", "requests"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one line, JSON object, metrics page or table row says. A field that it does not give is None or empty.

    Args:
        tool: who printed it: ``"SGLang"``, ``"vLLM"``, ``"TensorRT-LLM"``, ``"llama.cpp"``, …
        format: which of its formats, e.g. ``"decode log"``, ``"meta_info"``, ``"SpecDecoding log"``.
        scope: over which rounds.
        average: pooled over rounds, or a mean over requests.
        time: of the line.
        source: which rank, engine or benchmark of several: ``"DP0 TP0"``, ``"engine 6"``, ``"mtbench"``; "" if one.
        line: line number, from 1, of the first line; 0 if it did not come from lines.
        raw: the text, cut to 2,000 characters.

        accept_length: as printed, or from integers; ``length_kind`` says what it counts.
        accept_rate: as printed, a fraction. What it divides by what is inferred (``infer_rate``), never assumed.
        accept_rate_at: joint rates, the fraction of rounds that accepted at least d = 1, 2, … drafts.
        conditional_accept_rate_at: of the rounds that accepted d - 1 drafts, the fraction that accepted d.
        histogram: rounds by accepted drafts c = 0, 1, ….
        accepted_by_round: c of every round of one request, in their order.
        rounds: verification rounds.
        accepted_drafts: accepted draft tokens, bonus tokens not counted.
        proposed_drafts: draft tokens verified, the root not counted.
        accepted_drafts_at: accepted draft tokens at depth d = 1, 2, ….
        completion_tokens: generated tokens.
        prompt_tokens: tokens of the prompt.
        cached_tokens: tokens of the prompt that came from a prefix cache.
        num_steps: where the text states it, or its figures leave one value.
        topk: likewise.
        num_draft_tokens: likewise, the root counted.

        request_id: of a request.
        prompt_ids: token ids that were sent.
        output_ids: token ids that came back.
        finish_reason: ``"length"``, ``"stop"``, ….

        gen_throughput: generated tokens per second.
        running_requests: requests that shared the batch.
        cuda_graph: whether the decode step ran as a graph; False for "cpu graph: False" too.
        other: every further field, by the name that the text gave it, in lower case.
        remarks: what a reader of these figures must know; one sentence each.
    """

    tool: str
    format: str
    scope: Scope
    average: Average = "rounds"
    time: datetime | None = None
    source: str = ""
    line: int = 0
    raw: str = ""

    accept_length: Rounded | None = None
    length_kind: LengthKind = "with_bonus"
    accept_rate: Rounded | None = None
    accept_rate_at: tuple[Rounded, ...] = ()
    conditional_accept_rate_at: tuple[Rounded, ...] = ()
    histogram: tuple[int, ...] = ()
    accepted_by_round: tuple[int, ...] = ()
    rounds: int | None = None
    accepted_drafts: int | None = None
    proposed_drafts: int | None = None
    accepted_drafts_at: tuple[int, ...] = ()
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    num_steps: int | None = None
    topk: int | None = None
    num_draft_tokens: int | None = None

    request_id: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None

    gen_throughput: Rounded | None = None
    running_requests: int | None = None
    cuda_graph: bool | None = None
    other: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def length_with_bonus(self) -> Rounded | None:
        """Committed tokens per round, bonus counted, prefill not: from integers where there are any.

        None where only the figure ``completion_per_round`` is known, which does not determine it, or nothing is; and
        where it is below 1, which no rounds give.
        """
        if self.rounds and self.accepted_drafts is not None:
            return Rounded.exactly(1 + self.accepted_drafts / self.rounds)
        printed = self.accept_length
        if printed is None or self.length_kind == "completion_per_round":
            return None
        if self.length_kind == "without_bonus":
            return Rounded(printed.value + 1, printed.low + 1, printed.high + 1)
        return printed if printed.high >= 1 else None


@dataclass(frozen=True)
class NotAcceptance:
    """A line that was recognized and says nothing about acceptance: a prefill, a timing, a timestamp metric.

    Args:
        tool: who printed it.
        what: a word for it, e.g. ``"prefill log"``.
        line: line number, from 1.
        raw: the text.
        fields: what it does say, by name; a prefill line's ``#cached-token`` explains drops of acceptance.
    """

    tool: str
    what: str
    line: int = 0
    raw: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
