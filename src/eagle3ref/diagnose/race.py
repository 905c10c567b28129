"""Many hypotheses for the price of a few replays: all on some sequences, then the better ones on twice as many."""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Collection, Sequence

from eagle3ref.diagnose.hypothesis import RIGHT, Hypothesis
from eagle3ref.diagnose.laboratory import Laboratory
from eagle3ref.diagnose.observation import Observation
from eagle3ref.diagnose.scoring import Scored, Scoring
from eagle3ref.trace.manifest import ManifestEntry

_SHARE_OF_SINGLES = 0.55  # of the budget; the rest is for pairs, and is not spent where a single wiring fits
_PLANNED = 0.95  # of the budget: what a stage costs is known from the lengths of its sequences only, and then paid
_FIRST_LOOK = 0.5  # of the budget of a race, for its first stage
_HOPELESS = 30.0  # this far below the best, a log-likelihood is not looked at again


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
        self.right = laboratory.predict(RIGHT)
        self.scoring = Scoring(trace, observations, self.right)
        self.order = self.scoring.informative()
        random.Random(0).shuffle(self.order)  # neighbours in a file of prompts are alike
        self.order.sort(key=lambda i: _rows_per_answer_token(trace.entries[i]))
        rows = [trace.entries[i].num_tokens for i in self.order]
        self._share = [part / trace.num_tokens for part in itertools.accumulate(rows, initial=0)]
        self._scored: dict[str, Scored] = {}
        self._run([RIGHT], len(self.order))

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

    def on_first(self, hypothesis: Hypothesis, length: int) -> Scored:
        """One that ran, on its first sequences only."""
        return self.scoring.scored(self.laboratory.predict(hypothesis, self.order[:length]))

    def finish(self, names: Collection[str]) -> None:
        """Replay these on every sequence, as far as the budget goes."""
        for one in self.named(names):
            missing = self._share[-1] - self._share[one.sequences]
            if self.laboratory.cost + missing <= self._limit:
                self._run([one.hypothesis], len(self.order))

    def run_pairs(self) -> None:
        """Pairs of single ones, which must have run: the likeliest, as many as half of what is left pays for."""
        left = self._limit - self.laboratory.cost
        known = [self._scored[h.name] for h in self.laboratory.hypotheses if h != RIGHT]
        looked_at = min(one.sequences for one in known)
        seen = self.laboratory.predict_all([one.hypothesis for one in known], self.order[:looked_at])
        best = sorted(map(self.scoring.scored, seen), key=lambda one: -one.score.log_likelihood)
        pairs = self.laboratory.plausible_pairs([one.hypothesis for one in best])
        place = {one.hypothesis.name: i for i, one in enumerate(best)}
        likeliest = sorted(pairs, key=lambda pair: sum(place[part] for part in pair.parts))
        affordable = int(_FIRST_LOOK * left / self._share[1])
        self._run_stages(likeliest[:affordable], left)

    def _run_stages(self, hypotheses: Sequence[Hypothesis], budget: float) -> None:
        limit, every = self.laboratory.cost + budget, len(self.order)
        affordable = _FIRST_LOOK * budget / max(1, len(hypotheses))
        length, running = max(1, bisect.bisect_right(self._share, affordable) - 1), list(hypotheses)
        while running:
            self._on_stage(f"{len(running)} hypotheses on {length} of {every} sequences")
            found = self._run(running, length)
            if length == every:
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
        known = {one.hypothesis.name: one for one in self._scored.values() if one.sequences >= length}
        new = [hypothesis for hypothesis in hypotheses if hypothesis.name not in known]
        for prediction in self.laboratory.predict_all(new, self.order[:length]):
            self._scored[prediction.hypothesis.name] = self.scoring.scored(prediction)
        return [self._scored[hypothesis.name] for hypothesis in hypotheses]


def _spent(laboratory: Laboratory) -> float:
    """Before the race; a new laboratory has not replayed anything, and ``cost`` would begin with that."""
    return laboratory.cost if laboratory.rows else 0.0


def _rows_per_answer_token(entry: ManifestEntry) -> float:
    """What a sequence costs for what it tells."""
    return entry.num_tokens / (entry.num_tokens - entry.prompt_length)
