"""Replay: what a draft would have had accepted on a recorded trajectory, under a rule. No target forward is needed."""

from eagle3ref.replay.probabilities import gives_probabilities
from eagle3ref.replay.replay import DEFAULT_BATCH_TOKENS, replay, replay_rounds
from eagle3ref.replay.replayability import Replayability, replayability
from eagle3ref.replay.rounds import SequenceRounds, count_rounds

__all__ = [
    "DEFAULT_BATCH_TOKENS",
    "Replayability",
    "SequenceRounds",
    "count_rounds",
    "gives_probabilities",
    "replay",
    "replay_rounds",
    "replayability",
]
