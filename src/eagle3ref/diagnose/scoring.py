"""One hypothesis against all evidence, from its replay of some or all sequences."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.crosscheck.predict import PredictedRequest, predict_requests
from eagle3ref.diagnose.hypothesis import Hypothesis
from eagle3ref.diagnose.laboratory import Prediction
from eagle3ref.diagnose.likelihood import Score, same_cut, score_figures, score_requests, score_sum, total
from eagle3ref.diagnose.moments import Predicted, predicted_figures
from eagle3ref.diagnose.near_ties import NearTies, distance
from eagle3ref.diagnose.observation import Figures, Observation, RequestByRequest
from eagle3ref.replay import count_rounds
from eagle3ref.trace import Trace


@dataclass(frozen=True)
class Scored:
    """A hypothesis with what is known of it so far.

    Args:
        prediction: on the sequences that it was replayed on.
        score: against all evidence that these sequences can be held against.
        near_ties: of the requests that are not equal; None as long as nobody looked at them.
    """

    prediction: Prediction
    score: Score
    near_ties: NearTies | None = None

    @property
    def hypothesis(self) -> Hypothesis:
        """Which."""
        return self.prediction.hypothesis

    @property
    def sequences(self) -> int:
        """How many it was replayed on."""
        return len(self.prediction.rounds)


class Scoring:
    """Scores predictions against observations.

    Args:
        trace: that was replayed.
        observations: the evidence.
        right: the replay of every sequence with the right wiring. What others do to some sequences is carried over to
            all of them by what it does to both.
    """

    def __init__(self, trace: Trace, observations: Sequence[Observation], right: Prediction) -> None:
        self._trace, self._observations, self._right = trace, observations, right

    def scored(self, prediction: Prediction) -> Scored:
        """With its score."""
        return Scored(prediction, total([self._score(observation, prediction) for observation in self._observations]))

    def informative(self) -> tuple[list[int], set[int]]:
        """Places of the sequences that the evidence can be held against, and of those with requests of their own."""
        wanted, alone = set[str](), set[str]()
        for seen in self._observations:
            wanted |= seen.ids if seen.ids is not None else set(self._trace.ids)
            alone |= seen.ids if isinstance(seen, RequestByRequest) else set()
        every, some = ([i for i, name in enumerate(self._trace.ids) if name in names] for names in (wanted, alone))
        return every, set(some)

    def figures(self, prediction: Prediction, ids: frozenset[str] | None = None) -> Predicted | None:
        """What a server would print, of all prompts or of these; None without a complete round of them.

        Where not all of these were replayed, those that were are a sample of them, as of any other prompts.
        """
        ran = {rounds.id for rounds in prediction.rounds}
        wanted = ran if ids is None else ran & ids
        same_prompts = ids is not None and ran >= ids
        mine = _figures(prediction, wanted, same_prompts)
        if mine is None or ran >= (ids or set(self._trace.ids)):
            return mine
        part = _figures(self._right, wanted, same_prompts)
        whole = _figures(self._right, ids or set(self._trace.ids), same_prompts)
        return mine if part is None or whole is None else mine.scaled(whole, part)

    def requests(self, prediction: Prediction) -> dict[str, PredictedRequest]:
        """The request fields of a server that runs so, by sequence."""
        goes_on = prediction.rule.name == "greedy"
        return predict_requests(self._trace, prediction.rounds, prediction.tree, goes_on=goes_on)

    def distances(self, prediction: Prediction) -> dict[str, float]:
        """How far each request is from what was predicted of its sequence, 0 where it is equal; by sequence."""
        requests, found = self.requests(prediction), dict[str, float]()
        for observation in self._observations:
            for match in observation.matches if isinstance(observation, RequestByRequest) else ():
                predicted = same_cut(match.request, requests, match.sequence_id)
                if predicted is not None:
                    found[predicted.id] = max(found.get(predicted.id, 0.0), distance(match.request, predicted))
        return found

    def _score(self, observation: Observation, prediction: Prediction) -> Score:
        if isinstance(observation, Figures):
            figures = self.figures(prediction, observation.ids)
            return Score() if figures is None else score_figures(observation, figures)
        requests = self.requests(prediction)
        if isinstance(observation, RequestByRequest):
            return score_requests(observation, requests)
        return score_sum(observation, requests, self.requests(self._right))


def counts_of(prediction: Prediction, ids: Collection[str]) -> AcceptanceCounts | None:
    """Counts of these sequences; None without a complete round."""
    rounds = [some for some in prediction.rounds if some.id in ids]
    if not any(bool(some.complete.any()) for some in rounds):
        return None
    return count_rounds(rounds, prediction.tree, prediction.counts.kind, prediction.rule)


def _figures(prediction: Prediction, ids: Collection[str], same_prompts: bool) -> Predicted | None:
    counts = counts_of(prediction, ids)
    return None if counts is None else predicted_figures(counts, same_prompts=same_prompts)
