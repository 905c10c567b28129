"""Many hypotheses for the price of a few replays: all on some sequences, then the better ones on twice as many."""

from __future__ import annotations

import bisect
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from eagle3ref.diagnose.hypothesis import RIGHT, Hypothesis
from eagle3ref.diagnose.laboratory import Laboratory
from eagle3ref.diagnose.likelihood import FITS
from eagle3ref.diagnose.near_ties import MOST_REQUESTS, REPLAYS, NearTies, in_other_arithmetic
from eagle3ref.diagnose.observation import Observation
from eagle3ref.diagnose.scoring import Scored, Scoring
from eagle3ref.diagnose.wiring import Wiring
from eagle3ref.trace.manifest import ManifestEntry

_SHARE_OF_SINGLES = 0.5  # of the budget; the rest is for pairs, and is not spent where a single wiring fits
_SHARE_OF_NEAR_TIES = 0.15  # of the budget; kept back until it is known what leads
_PLANNED = 0.95  # of the budget: what a stage costs is known from the lengths of its sequences only, and then paid
_FIRST_LOOK = 0.5  # of the budget of a race, for its first stage
_HOPELESS = 15.0  # this far below the best, a log-likelihood is not looked at again


class Race:
    """Replays hypotheses as far as they deserve it.

    Args:
        laboratory: which counts its own cost.
        observations: the evidence.
        budget: most that all of it may cost, in replays of the whole trace.
        on_stage: called with a sentence before each stage.

    Attributes:
        laboratory: that replays.
        right: the replay of every sequence with the right wiring.
        scoring: against the observations.
        order: places of the sequences that these can be held against, in the order in which they are taken.
    """

    def __init__(
        self,
        laboratory: Laboratory,
        observations: Sequence[Observation],
        budget: float,
        on_stage: Callable[[str], None],
    ) -> None:
        self.laboratory, self._on_stage = laboratory, on_stage
        self._limit, trace = _spent(laboratory) + _PLANNED * budget, laboratory.trace
        self._for_near_ties = _SHARE_OF_NEAR_TIES * budget
        self.right = laboratory.predict(RIGHT)
        self.scoring = Scoring(trace, observations, self.right)
        places, alone = self.scoring.informative()
        self.order = random.Random(0).sample(places, len(places))  # neighbours in a file of prompts are alike
        self.order.sort(key=lambda i: (i not in alone, _rows_per_answer_token(trace.entries[i])))
        self._scored: dict[str, Scored] = {}
        self._run([RIGHT], len(self.order))

    @property
    def _share(self) -> list[float]:
        """Of the trace, what the first 0, 1, 2, … sequences of the order make up."""
        trace = self.laboratory.trace
        rows = [trace.entries[i].num_tokens for i in self.order]
        return [part / trace.num_tokens for part in itertools.accumulate(rows, initial=0)]

    @property
    def ranked(self) -> list[Scored]:
        """All that ran, those that ran on more sequences first, and of these the best first."""
        return sorted(self._scored.values(), key=lambda one: (-one.sequences, -one.score.log_likelihood))

    def run_singles(self) -> None:
        """Every wiring alone."""
        self._run_stages(self.laboratory.hypotheses, _SHARE_OF_SINGLES * (self._limit - self.laboratory.cost))

    def named(self, names: Collection[str]) -> list[Scored]:
        """These of them."""
        return [one for one in self.ranked if one.hypothesis.name in names]

    def on_those_of(self, other: Scored, hypothesis: Hypothesis) -> Scored:
        """One that ran on more sequences, on those of another only."""
        names = {rounds.id for rounds in other.prediction.rounds}
        places = [place for place in self.order if self.laboratory.trace.ids[place] in names]
        return self.scoring.scored(self.laboratory.predict(hypothesis, places))

    def gap(self, one: Scored) -> float:
        """Its log-likelihood against the first one's, on the sequences that it ran on."""
        leader = self.ranked[0]
        theirs = leader if one.sequences == leader.sequences else self.on_those_of(one, leader.hypothesis)
        return one.score.log_likelihood - theirs.score.log_likelihood

    @property
    def unreached(self) -> list[Hypothesis]:
        """Single ones that the budget had nothing left for."""
        return [hypothesis for hypothesis in self.laboratory.hypotheses if hypothesis.name not in self._scored]

    def finish(self, names: Collection[str]) -> bool:
        """Replay these on every sequence, as far as the budget goes; what is exact so far needs no near-ties.

        Returns:
            Whether any was not there yet and is now.
        """
        before = self.laboratory.rows
        for one in self.named(names):
            missing = self._share[-1] - self._share[one.sequences]
            kept_back = 0.0 if one.score.equal == one.score.requests else self._for_near_ties
            if self.laboratory.cost + missing <= self._limit - kept_back:
                self._run([one.hypothesis], len(self.order))
        return self.laboratory.rows > before

    def look_at_near_ties(self, names: Collection[str]) -> None:
        """Replay the unequal requests of these in other arithmetic, as far as the budget goes."""
        for one in self.named(names):
            if one.score.equal < one.score.requests and one.score.p >= FITS:
                self._scored[one.hypothesis.name] = replace(one, near_ties=self._near_ties(one))

    def _near_ties(self, one: Scored) -> NearTies:
        """A request whose replays cannot be paid for is not explained."""
        unequal = {name for name, gap in self.scoring.distances(one.prediction).items() if gap}
        places = [place for place in self.order if self.laboratory.trace.ids[place] in unequal][:MOST_REQUESTS]
        unexplained = set(places)
        for seed, place in itertools.product(range(1, REPLAYS + 1), places):
            cost = self.laboratory.trace.entries[place].num_tokens / self.laboratory.trace.num_tokens
            if place in unexplained and self.laboratory.cost + cost <= self._limit:
                moved = self.laboratory.predict(in_other_arithmetic(one.hypothesis, seed), [place])
                unexplained -= set() if any(self.scoring.distances(moved).values()) else {place}
        return NearTies(len(places), len(unexplained))

    def run_pairs(self) -> None:
        """Pairs of single ones, the likeliest, as many as half of what is left pays for.

        A pair must explain what the best single one does not, so the requests that this one has wrong are looked at
        first. If it has most of them right, it is half of the truth: the pairs that it is part of come before others.
        """
        left = self._limit - self.laboratory.cost - self._for_near_ties
        known = [one for one in self.ranked if one.hypothesis != RIGHT]
        if not known:
            return
        gaps = {one.hypothesis.name: self.gap(one) for one in known}
        best = sorted((one.hypothesis for one in known), key=lambda hypothesis: -gaps[hypothesis.name])
        pairs = self.laboratory.plausible_pairs(best)
        first = known[0]
        is_half = 2 * first.score.equal > first.score.requests
        likeliest = sorted(
            pairs,
            key=lambda pair: (
                is_half and first.hypothesis.name not in pair.parts,
                -sum(gaps[part] for part in pair.parts),
            ),
        )
        wrong = self.scoring.distances(first.prediction)
        self.order.sort(key=lambda place: not wrong.get(self.laboratory.trace.ids[place]))
        affordable = int(_FIRST_LOOK * left / self._share[1])
        self._run_stages(likeliest[: max(0, affordable)], left)

    def _run_stages(self, hypotheses: Sequence[Hypothesis], budget: float) -> None:
        limit, every = self.laboratory.cost + budget, len(self.order)
        affordable = _FIRST_LOOK * budget / max(1, len(hypotheses))
        length, running = max(1, bisect.bisect_right(self._share, affordable) - 1), list(hypotheses)
        while running:
            self._on_stage(f"{len(running)} hypotheses on {length} of {every} sequences")
            found = [one for one in self._run(running, length) if one.sequences >= length]
            if length == every or not found:
                return
            length = min(every, 2 * length)
            running = self._survivors(found, length, limit)

    def _survivors(self, found: Sequence[Scored], length: int, limit: float) -> list[Hypothesis]:
        """The best, as many as half of what is left pays for: two at least, if anything is left."""
        ordered = sorted(found, key=lambda one: -one.score.log_likelihood)
        left = limit - self.laboratory.cost
        paid = left if length == len(self.order) else left / 2
        kept: list[Hypothesis] = []
        for one in ordered:
            paid -= self._share[length] - self._share[min(length, one.sequences)]
            if ordered[0].score.log_likelihood - one.score.log_likelihood > _HOPELESS or (paid < 0 and len(kept) >= 2):
                break
            kept.append(one.hypothesis)
        return kept if left > 0 else []

    def _run(self, hypotheses: Sequence[Hypothesis], length: int) -> list[Scored]:
        """Those that the budget pays for; what shares committed rows runs together."""
        known = {one.hypothesis.name for one in self._scored.values() if one.sequences >= length}
        groups: dict[Wiring, list[Hypothesis]] = defaultdict(list)
        for hypothesis in hypotheses:
            if hypothesis.name not in known:
                groups[hypothesis.wiring.prefix_only()].append(hypothesis)
        for group in groups.values():
            if group[0] == RIGHT or self.laboratory.cost + len(group) * self._share[length] <= self._limit:
                for prediction in self.laboratory.predict_all(group, self.order[:length]):
                    self._scored[prediction.hypothesis.name] = self.scoring.scored(prediction)
        return [self._scored[h.name] for h in hypotheses if h.name in self._scored]


def _spent(laboratory: Laboratory) -> float:
    """Before the race; a new laboratory has not replayed anything, and ``cost`` would begin with that."""
    return laboratory.cost if laboratory.rows else 0.0


def _rows_per_answer_token(entry: ManifestEntry) -> float:
    """What a sequence costs for what it tells."""
    return entry.num_tokens / (entry.num_tokens - entry.prompt_length)
