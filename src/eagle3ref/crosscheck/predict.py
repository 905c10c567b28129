"""What an engine would print for replayed rounds: a request's integers, and lengths in each engine's own terms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

import numpy as np

from eagle3ref.config import TreeConfig
from eagle3ref.replay import SequenceRounds
from eagle3ref.servers import Reading
from eagle3ref.statistics import RatioOfSums
from eagle3ref.trace import Trace


@dataclass(frozen=True)
class PredictedRequest:
    """The rounds of one answer as the reference has them; the request fields of an engine follow.

    The last round of an answer is the only one that is not known whole: what it accepted behind the end of the record
    no record tells.

    Args:
        id: of the sequence in the trace.
        prompt_length: tokens of the prompt.
        completion_tokens: generated tokens, the prefill's included.
        tree: of every round.
        roots: token index of the root of each round.
        num_accepted: drafts c of each round, as far as the record goes.
        complete: whether ``num_steps`` recorded tokens follow each root.
        goes_on: whether the tokens behind the answer's end are what a server saw there too. True for greedy answers;
            sampled ones are drawn anew.
        recorded_end: index of the last token of which it is known what it is.
    """

    id: str
    prompt_length: int
    completion_tokens: int
    tree: TreeConfig
    roots: tuple[int, ...]
    num_accepted: tuple[int, ...]
    complete: tuple[bool, ...]
    goes_on: bool
    recorded_end: int

    @property
    def rounds(self) -> int:
        """Verification rounds."""
        return len(self.roots)

    @property
    def last_high(self) -> int:
        """The most that the last round may have accepted; its c where that is known."""
        if not self.roots:
            return 0
        stopped_before_the_end = self.roots[-1] + self.num_accepted[-1] < self.recorded_end
        return self.num_accepted[-1] if stopped_before_the_end or self.complete[-1] else self.tree.num_steps

    @property
    def accepted_low(self) -> int:
        """Accepted drafts at the least."""
        return sum(self.num_accepted)

    @property
    def accepted_high(self) -> int:
        """Accepted drafts at the most."""
        return self.accepted_low + (self.last_high - self.num_accepted[-1] if self.roots else 0)

    def histograms(self) -> list[list[int]]:
        """Every histogram of c that the rounds allow, [S + 1] each: one, or one for each c of the last round."""
        before = np.bincount(np.array(self.num_accepted[:-1], int), minlength=self.tree.num_steps + 1)
        if not self.roots:
            return [before.tolist()]
        lasts = range(self.num_accepted[-1], self.last_high + 1)
        return [[int(n) + (c == last) for c, n in enumerate(before)] for last in lasts]

    def up_to(self, num_completion_tokens: int) -> PredictedRequest | None:
        """The same text, ended after that many tokens; None if the record ends before that."""
        if num_completion_tokens > self.completion_tokens or num_completion_tokens < 1:
            return None
        last = self.prompt_length + num_completion_tokens - 1
        roots = tuple(root for root in self.roots if root < last)
        end = self.recorded_end if self.goes_on else last
        return replace(
            self,
            completion_tokens=num_completion_tokens,
            roots=roots,
            num_accepted=tuple(min(c, end - root) for root, c in zip(roots, self.num_accepted, strict=False)),
            complete=tuple(root + self.tree.num_steps <= end for root in roots),
            recorded_end=end,
        )

    def compared(self, reading: Reading) -> tuple[str, ...]:
        """Fields of the reading that can be held against these rounds."""
        return tuple(name for name, is_equal in self._held_against(reading).items() if is_equal is not None)

    def unequal(self, reading: Reading) -> tuple[str, ...]:
        """The compared fields that no last round explains, in words: ``"rounds 18, not 16"``; () if all are equal."""
        described = {
            "rounds": f"rounds {reading.rounds}, not {self.rounds}",
            "accepted_drafts": f"accepted drafts {reading.accepted_drafts}, not {self._accepted_in_words()}",
            "histogram": f"histogram {list(reading.histogram)}, not {self.histograms()[0]}",
            "accepted_by_round": f"round {self._first_other(reading)} and on",
            "accept_length": f"completion tokens / rounds, not {self._completion_per_round:g}",
        }
        return tuple(described[name] for name, is_equal in self._held_against(reading).items() if is_equal is False)

    def _held_against(self, reading: Reading) -> dict[str, bool | None]:
        """By field, whether it is equal; None where the reading does not give it."""
        accepted, length, by_round = reading.accepted_drafts, reading.accept_length, reading.accepted_by_round
        only_length = reading.rounds is None and length is not None and reading.length_kind == "completion_per_round"
        return {
            "rounds": None if reading.rounds is None else reading.rounds == self.rounds,
            "accepted_drafts": None if accepted is None else self.accepted_low <= accepted <= self.accepted_high,
            "histogram": _trimmed(reading.histogram) in map(_trimmed, self.histograms()) if reading.histogram else None,
            "accepted_by_round": self._first_other(reading) is None if by_round else None,
            "accept_length": length.holds(self._completion_per_round) if only_length and length is not None else None,
        }

    @property
    def _completion_per_round(self) -> float:
        return self.completion_tokens / max(1, self.rounds)

    def _first_other(self, reading: Reading) -> int | None:
        """The first round, from 0, that accepted another number of drafts; None if there is none."""
        theirs, last = reading.accepted_by_round, self.rounds - 1
        if len(theirs) == self.rounds and theirs and self.num_accepted[-1] <= theirs[-1] <= self.last_high:
            theirs = (*theirs[:-1], self.num_accepted[-1])
        pairs = enumerate(zip_longest(theirs, self.num_accepted))
        return next((min(i, last) for i, (their, own) in pairs if their != own), None)

    def _accepted_in_words(self) -> str:
        low, high = self.accepted_low, self.accepted_high
        return str(low) if low == high else f"{low} to {high}"


def predict_requests(
    trace: Trace, rounds: Iterable[SequenceRounds], tree: TreeConfig, *, goes_on: bool = True
) -> dict[str, PredictedRequest]:
    """What a server's request fields are for each recorded answer, by sequence id.

    Args:
        trace: that was replayed.
        rounds: of its sequences.
        tree: of the replay.
        goes_on: whether the rule is the greedy one; see ``PredictedRequest``.
    """
    entries = dict(zip(trace.ids, trace.entries, strict=True))
    return {
        sequence.id: PredictedRequest(
            id=sequence.id,
            prompt_length=entries[sequence.id].prompt_length,
            completion_tokens=entries[sequence.id].num_tokens - entries[sequence.id].prompt_length,
            tree=tree,
            roots=tuple(sequence.roots.tolist()),
            num_accepted=tuple(sequence.num_accepted.tolist()),
            complete=tuple(sequence.complete.tolist()),
            goes_on=goes_on,
            recorded_end=entries[sequence.id].num_tokens - 1,
        )
        for sequence in rounds
    }


@dataclass(frozen=True)
class LengthForm:
    """Which length: what is divided by what.

    Args:
        kind: ``with_bonus``: (accepted drafts + rounds) / rounds; ``completion_per_round``: completion tokens / rounds,
            the prefill's token included and the last round cut at the end of the text.
        cut: of ``with_bonus``: leave out what the last round commits behind the end.
    """

    kind: Literal["with_bonus", "completion_per_round"] = "with_bonus"
    cut: bool = False

    def __str__(self) -> str:
        if self.kind == "completion_per_round":
            return "completion tokens / rounds"
        return "(accepted drafts + rounds) / rounds" + (", cut at the end of the text" if self.cut else "")


def length_terms(predicted: Sequence[PredictedRequest], form: LengthForm | None = None) -> RatioOfSums:
    """Tokens over rounds of each sequence: pooled it is ``.value``, the mean over requests that of ``.per_prompt``.

    ``with_bonus`` is over complete rounds, which are an unbiased choice (docs/acceptance.md); the other two are over
    all rounds, whose tokens end with the text.
    """
    form = form or LengthForm()
    if form.kind == "with_bonus" and not form.cut:
        tokens = [sum(c + 1 for c, whole in _rounds(request) if whole) for request in predicted]
        rounds = [sum(request.complete) for request in predicted]
    else:
        prefill = 1 if form.kind == "completion_per_round" else 0
        tokens = [r.completion_tokens - 1 + prefill if r.rounds else 0 for r in predicted]
        rounds = [request.rounds for request in predicted]
    return RatioOfSums(str(form), "tokens", "rounds", np.array(tokens, np.int64), np.array(rounds, np.int64))


def plain_length(predicted: Sequence[PredictedRequest], otherwise: float) -> float:
    """The acceptance length; ``otherwise`` where the answers are too short for a single complete round."""
    terms = length_terms(predicted)
    return terms.value if terms.denominators.any() else otherwise


def accepted_at(requests: Sequence[PredictedRequest], depth: int) -> tuple[int, int]:
    """Rounds of all requests that accepted at least ``depth`` drafts, at the least and at the most."""
    low = sum(c >= depth for request in requests for c in request.num_accepted)
    open_ones = sum(bool(r.roots) and r.num_accepted[-1] < depth <= r.last_high for r in requests)
    return low, low + open_ones


def _rounds(request: PredictedRequest) -> Iterable[tuple[int, bool]]:
    return zip(request.num_accepted, request.complete, strict=True)


def _trimmed(histogram: Sequence[int]) -> list[int]:
    """Without the zeros at its end: engines print as many columns as they saw, or as many as there may be."""
    last = max((c for c, n in enumerate(histogram) if n), default=-1)
    return list(histogram[: last + 1])
