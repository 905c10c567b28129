"""The same answers: the reference's integers are the server's, one request at a time or all together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eagle3ref.crosscheck.comparison import Comparison, Correction, UnequalRequest, completion_corrections
from eagle3ref.crosscheck.matching import Match
from eagle3ref.crosscheck.more_data import MoreData, more_data
from eagle3ref.crosscheck.near_ties import NEAR_TIES_UNLIKELY, near_tie_probability
from eagle3ref.crosscheck.predict import LengthForm, PredictedRequest, plain_length
from eagle3ref.crosscheck.request_terms import by_prompt, form_of, ratio, rounds_of, server_terms, tells_length
from eagle3ref.servers import Reading
from eagle3ref.statistics import Criterion, Difference, RatioOfSums, Verdict, paired_difference


@dataclass(frozen=True)
class Pair:
    """A request and its prediction, cut to its own answer."""

    request: Reading
    predicted: PredictedRequest

    @property
    def unequal(self) -> tuple[str, ...]:
        """Fields that no last round explains, in words."""
        return self.predicted.unequal(self.request)

    @property
    def flips(self) -> int:
        """The fewest rounds that must have come out otherwise."""
        rounds = rounds_of(self.request)
        return max(1, 0 if rounds is None else abs(rounds - self.predicted.rounds)) if self.unequal else 0

    @property
    def nearest(self) -> int:
        """The reference's accepted drafts, the last round taken at that end of its bounds that suits the server."""
        accepted = self.request.accepted_drafts or 0
        return min(max(accepted, self.predicted.accepted_low), self.predicted.accepted_high)


@dataclass(frozen=True)
class Judged:
    """A verdict, the difference that it rests on, and what would settle it."""

    verdict: Verdict
    difference: Difference
    more: MoreData | None = None


def pairs_of(matches: Sequence[Match], predicted: Mapping[str, PredictedRequest]) -> list[Pair]:
    """The matches of the same answer, with what the reference has for exactly that answer."""
    pairs = []
    for match in matches:
        if match.how == "same answer" and match.sequence_id is not None and match.request.output_ids:
            cut = predicted[match.sequence_id].up_to(len(match.request.output_ids))
            pairs += [Pair(match.request, cut)] if cut is not None else []
    return pairs


def round_by_round(pairs: Sequence[Pair], criterion: Criterion) -> Comparison | None:
    """Every request that tells something of its own acceptance, against the reference's integers; None if none does.

    All equal: ``agrees``. Unequal ones that near-ties may explain: ``agrees`` if the sums of these requests are
    within the margin. Otherwise ``differs`` if the sums are outside of it, and else what the paired test says.
    """
    told = [pair for pair in pairs if tells_length(pair.request) and pair.predicted.rounds]
    if not told:
        return None
    form = form_of([pair.request for pair in told])
    server = server_terms([pair.request for pair in told], form)
    reference = _reference_terms(told, form)
    unequal = [pair for pair in told if pair.unequal]
    rounds = int(reference.denominators.sum())
    chance = near_tie_probability(sum(pair.flips for pair in unequal), rounds)
    census = _census(told, server, reference)
    paired = _by_prompt(told, server, reference).with_rounding(census.below, census.above)
    judged = judge_unequal(census, paired, chance, criterion) if unequal else Judged("agrees", census)
    plain = plain_length([pair.predicted for pair in told], reference.value)
    return Comparison(
        kind="same requests round by round",
        verdict=judged.verdict,
        of=f"{len(told)} requests",
        form=str(form),
        server=server.value,
        server_low=server.value,
        server_high=server.value,
        reference=reference.value,
        plain_reference=plain,
        difference=judged.difference,
        server_rounds=int(server.denominators.sum()),
        reference_rounds=rounds,
        corrections=_corrections(told, form, reference.value - plain),
        unequal=tuple(UnequalRequest(p.predicted.id, p.request.request_id, p.unequal) for p in unequal),
        num_requests=len(told),
        near_tie_probability=chance if unequal else None,
        more=judged.more,
    )


def judge_unequal(census: Difference, paired: Difference, chance: float, criterion: Criterion) -> Judged:
    """The verdict when some request is not equal.

    Args:
        census: of these requests; nothing was drawn.
        paired: the same, as a sample of requests; of unknown variance where there is one prompt, or only a sum.
        chance: that near-ties explain all of it.
        criterion: of the verdict.
    """
    low, high = census.ends(criterion.confidence)
    if chance < NEAR_TIES_UNLIKELY and (low > criterion.margin or high < -criterion.margin):
        return Judged("differs", census)
    if chance >= NEAR_TIES_UNLIKELY and -criterion.margin <= low and high <= criterion.margin:
        return Judged("agrees", census)
    if chance < NEAR_TIES_UNLIKELY and math.isfinite(paired.variance):
        return Judged(paired.verdict(*criterion), paired, more_data(paired, criterion, None, None))
    why = f"Near-ties may be all of it (chance {chance:.2f}), or a fault that few requests show: give more requests."
    return Judged("cannot tell", census, MoreData(None, math.inf, why))


def _reference_terms(pairs: Sequence[Pair], form: LengthForm) -> RatioOfSums:
    rounds = [pair.predicted.rounds for pair in pairs]
    if form.kind == "completion_per_round":
        tokens = [pair.predicted.completion_tokens for pair in pairs]
    else:
        tokens = [n + pair.nearest for n, pair in zip(rounds, pairs, strict=True)]
    return ratio(form, tokens, rounds)


def _census(pairs: Sequence[Pair], server: RatioOfSums, reference: RatioOfSums) -> Difference:
    """Of these requests. What the last round of an unequal one may have accepted stays open; an equal one's is told."""
    rounds, unequal = int(reference.denominators.sum()), [pair for pair in pairs if pair.unequal]
    if any(pair.request.accepted_drafts is None for pair in pairs):
        return Difference(server.value - reference.value, 0.0)
    below = sum(pair.predicted.accepted_high - pair.nearest for pair in unequal) / rounds
    above = sum(pair.nearest - pair.predicted.accepted_low for pair in unequal) / rounds
    return Difference(server.value - reference.value, 0.0, below=below, above=above)


def _by_prompt(pairs: Sequence[Pair], server: RatioOfSums, reference: RatioOfSums) -> Difference:
    """What other requests like these would show."""
    places = {sequence_id: i for i, sequence_id in enumerate(dict.fromkeys(pair.predicted.id for pair in pairs))}
    rows = [places[pair.predicted.id] for pair in pairs]
    return paired_difference(by_prompt(server, rows), by_prompt(reference, rows))


def _corrections(pairs: Sequence[Pair], form: LengthForm, moved: float) -> tuple[Correction, ...]:
    if form.kind == "completion_per_round":
        prefill = len(pairs) / sum(pair.predicted.rounds for pair in pairs)
        return completion_corrections(prefill, moved - prefill)
    open_ends = sum(pair.predicted.last_high > pair.predicted.num_accepted[-1] for pair in pairs)
    why = (
        "requests count their last rounds, an acceptance length only rounds with all their lookahead on record; "
        f"{open_ends} of {len(pairs)} last rounds run past the record, and any c from there on is taken as equal"
    )
    return (Correction("last rounds", moved, why),)
