"""The same answers: the reference's integers are the server's, one request at a time or all together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eagle3ref.crosscheck.comparison import Comparison, Correction, UnequalRequest, completion_corrections
from eagle3ref.crosscheck.matching import Match
from eagle3ref.crosscheck.more_data import MoreData, too_few_rounds
from eagle3ref.crosscheck.near_ties import MOST_NEAR_TIES, NEAR_TIES_UNLIKELY, near_tie_probability
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
        """The fewest rounds that must have come out otherwise.

        Where c of every round is told they are counted: at a root that both have, both saw the same text. Elsewhere
        only the numbers of rounds are there to compare.
        """
        rounds = rounds_of(self.request)
        if self.request.accepted_by_round and self.unequal:
            return max(1, self._others_at_common_roots())
        return max(1, 0 if rounds is None else abs(rounds - self.predicted.rounds)) if self.unequal else 0

    def _others_at_common_roots(self) -> int:
        mine = dict(zip(self.predicted.roots, self.predicted.num_accepted, strict=True))
        last = self.predicted.roots[-1] if self.predicted.roots else None
        root, others = next(iter(mine), 0), 0
        for c in self.request.accepted_by_round:
            most = self.predicted.last_high if root == last else mine.get(root, c)
            others += root in mine and not mine[root] <= c <= most
            root += c + 1
        return others

    @property
    def told_rounds(self) -> int:
        """Rounds whose c is known: all but a last one that runs past the record."""
        is_open = self.predicted.last_high > self.predicted.num_accepted[-1] if self.predicted.roots else False
        return self.predicted.rounds - is_open

    @property
    def nearest(self) -> int:
        """The reference's accepted drafts, the last round taken at that end of its bounds that suits the server."""
        accepted = self.request.accepted_drafts or 0
        return min(max(accepted, self.predicted.accepted_low), self.predicted.accepted_high)


@dataclass(frozen=True)
class Judged:
    """A verdict, and what would settle it."""

    verdict: Verdict
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

    All equal: ``agrees``, if the rounds are enough to have shown a difference of the margin. More unequal ones than
    near-ties explain: ``differs``, whatever that does to the length, because the answer determines its rounds. Fewer:
    ``agrees`` if the sums of these requests are within the margin, too.
    """
    told = [pair for pair in pairs if tells_length(pair.request) and pair.predicted.rounds]
    if not told:
        return None
    form = form_of([pair.request for pair in told])
    server = server_terms([pair.request for pair in told], form)
    reference = _reference_terms(told, form)
    unequal = [pair for pair in told if pair.unequal]
    rounds = int(reference.denominators.sum())
    chance = chance_of_near_ties(told) if unequal else None
    census = _census(told, server, reference)
    judged = judge_integers(census, chance, different_rounds(told), criterion)
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
        difference=census,
        as_sample=_by_prompt(told, server, reference).with_rounding(census.below, census.above) if unequal else None,
        server_rounds=int(server.denominators.sum()),
        reference_rounds=rounds,
        corrections=_corrections(told, form, reference.value - plain),
        unequal=tuple(UnequalRequest(p.predicted.id, p.request.request_id, p.unequal) for p in unequal),
        num_requests=len(told),
        compared_rounds=different_rounds(told),
        near_tie_probability=chance,
        more=judged.more,
    )


def chance_of_near_ties(pairs: Sequence[Pair]) -> float:
    """Each recorded answer counts once: a server that is asked again flips the same near-tie again."""
    flips: dict[str, int] = {}
    rounds: dict[str, int] = {}
    for pair in pairs:
        name = pair.predicted.id
        flips[name] = max(flips.get(name, 0), pair.flips)
        rounds[name] = max(rounds.get(name, 0), pair.predicted.rounds)
    return near_tie_probability(sum(flips.values()), sum(rounds.values()), MOST_NEAR_TIES)


def different_rounds(pairs: Sequence[Pair]) -> int:
    """Rounds that were compared: those of an answer that is asked again are no further ones."""
    told: dict[str, int] = {}
    for pair in pairs:
        told[pair.predicted.id] = max(told.get(pair.predicted.id, 0), pair.told_rounds)
    return sum(told.values())


def judge_integers(census: Difference, chance: float | None, rounds: int, criterion: Criterion) -> Judged:
    """The verdict on the same answers.

    Args:
        census: of these requests; nothing was drawn.
        chance: that near-ties explain all that is unequal; None if nothing is.
        rounds: that were compared.
        criterion: of the verdict.
    """
    if chance is not None and chance < NEAR_TIES_UNLIKELY:
        return Judged("differs")
    if chance is not None and census.verdict(*criterion) != "agrees":
        why = (
            f"Near-ties may be all of it (chance {chance:.2f}), or a fault that few requests show: give more requests."
        )
        return Judged("cannot tell", MoreData(None, math.inf, why))
    more = too_few_rounds(rounds, criterion)
    return Judged("agrees" if more is None else "cannot tell", more)


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
