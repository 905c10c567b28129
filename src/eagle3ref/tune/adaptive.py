"""num_steps chosen before each round from what a server knows by then: SGLang's adaptive speculation, replayed."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagle3ref.acceptance.ratios import IntArray
from eagle3ref.config import TreeConfig
from eagle3ref.statistics import DEFAULT_CONFIDENCE, Interval, over_the_best
from eagle3ref.tune.ranking import rank, speed_terms
from eagle3ref.tune.surface import Surface
from eagle3ref.tune.times import StepTimes


@dataclass(frozen=True)
class AdaptiveRule:
    """How SGLang 0.5.23 changes the depth of a chain (srt/speculative/adaptive_spec_params.py, batch size 1).

    A moving average of accepted drafts decides: deeper where it is above num_steps - 0.5 + ``up_hysteresis``, shallower
    where it is at most the next shallower candidate - 0.5 + ``down_hysteresis``.

    Args:
        candidate_steps: ascending.
        start: num_steps to begin with; where it is no candidate, the middle one.
        ema_alpha: weight of the newest round.
        warmup_rounds: before the first decision.
        update_interval: rounds from one decision to the next.
        up_hysteresis: added to the threshold of going deeper.
        down_hysteresis: added to the threshold of going shallower.
    """

    candidate_steps: tuple[int, ...] = (1, 3, 5, 7)
    start: int = 3
    ema_alpha: float = 0.2
    warmup_rounds: int = 10
    update_interval: int = 5
    up_hysteresis: float = 0.0
    down_hysteresis: float = -0.25

    def first(self) -> int:
        """Index of the candidate that a server starts with."""
        steps = self.candidate_steps
        return steps.index(self.start) if self.start in steps else len(steps) // 2

    def next(self, at: int, average: float) -> int:
        """Index of the candidate that follows number ``at`` for this average of accepted drafts."""
        steps, deeper = self.candidate_steps, at
        while deeper > 0 and average <= steps[deeper - 1] - 0.5 + self.down_hysteresis:
            deeper -= 1
        if deeper < at:
            return deeper
        while deeper < len(steps) - 1 and average > steps[deeper] - 0.5 + self.up_hysteresis:
            deeper += 1
        return deeper


@dataclass(frozen=True, eq=False)
class Adaptive:
    """What an adaptive chain would have done, against fixed settings.

    Args:
        rule: with the candidates that were ranked deep enough.
        tokens_per_second: of it.
        shares: of its complete rounds, by candidate.
        over_chain: its gain over the best fixed chain, in tokens per second.
        over_all: its gain over the best fixed setting of all.
    """

    rule: AdaptiveRule
    tokens_per_second: float
    shares: tuple[float, ...]
    over_chain: Interval
    over_all: Interval

    @property
    def pays(self) -> bool:
        """Whether it is faster than the best fixed setting by more than the interval."""
        return self.over_all.low > 0


def adaptive(
    surface: Surface,
    times: StepTimes,
    rule: AdaptiveRule | None = None,
    *,
    refused: Container[TreeConfig] = (),
    confidence: float = DEFAULT_CONFIDENCE,
) -> Adaptive | None:
    """Replay adaptive num_steps on the ranked chain, one request at a time in the order of the trace.

    The average goes on from one answer to the next, as it does in a server. A decision acts on the next round; with
    overlap scheduling it acts one round later. The intervals allow for all the fixed settings that it is held against
    (``over_the_best``).

    Args:
        surface: with chains among its settings.
        times: of the steps of a round.
        rule: SGLang's when None; candidates deeper than the longest chain are left out.
        refused: as in ``rank``.
        confidence: of the intervals.

    Returns:
        None where it cannot be replayed: fewer than two candidates that were ranked, no answer longer than the first of
        them, or more than one request at a time, whose acceptances SGLang averages.

    Raises:
        Eagle3RefError: as ``rank``.
    """
    chains = {tree.num_steps: k for k, tree in enumerate(surface.settings) if tree.topk == 1}
    asked = rule or AdaptiveRule()
    rule = replace(asked, candidate_steps=tuple(steps for steps in asked.candidate_steps if steps in chains))
    if len(rule.candidate_steps) < 2 or times.batch_size > 1 or not surface.chain_runs:
        return None
    tokens, rounds = walk_adaptively(surface.chain_runs, rule)
    if not rounds.any():
        return None
    seconds = np.array([times.round_ms(surface.settings[chains[steps]]) for steps in rule.candidate_steps]) / 1000.0
    own = tokens[:, None].astype(np.float64), (rounds @ seconds)[:, None]
    settings = rank(surface, times, refused=refused, confidence=confidence).settings
    gains = []
    for fixed in ([tree for tree in settings if tree.topk == 1], settings):
        above, below = speed_terms(surface, times, [surface.index(tree) for tree in fixed])
        gains.append(over_the_best(np.hstack([own[0], above]), np.hstack([own[1], below]), confidence))
    shares = rounds.sum(0) / rounds.sum()
    return Adaptive(rule, float(own[0].sum() / own[1].sum()), tuple(map(float, shares)), gains[0], gains[1])


def walk_adaptively(
    chain_runs: Sequence[NDArray[np.unsignedinteger[Any]]], rule: AdaptiveRule
) -> tuple[IntArray, NDArray[np.int64]]:
    """Walk the answers one after the other, each round as deep as the rule says before it begins.

    Args:
        chain_runs: for each of P answers [R], drafts in a row that are right from each root, of the deepest candidate
            or a deeper chain.
        rule: of the depth.

    Returns:
        tokens: int64 [P], committed by complete rounds, bonus counted.
        rounds: int64 [P, candidates], complete rounds by depth.
    """
    tokens = np.zeros(len(chain_runs), np.int64)
    rounds = np.zeros((len(chain_runs), len(rule.candidate_steps)), np.int64)
    at, seen = rule.first(), 0
    average = rule.candidate_steps[at] - 1.0
    for answer, runs in enumerate(chain_runs):
        right, root = runs.tolist(), 0
        while root < len(right):
            steps = rule.candidate_steps[at]
            accepted = min(right[root], steps)
            if root + steps <= len(right):  # else the record ends within the lookahead: nobody knows what was accepted
                tokens[answer] += accepted + 1
                rounds[answer, at] += 1
                seen += 1
                average = (1 - rule.ema_alpha) * average + rule.ema_alpha * accepted
                if seen > rule.warmup_rounds and (seen - rule.warmup_rounds) % rule.update_interval == 0:
                    at = rule.next(at, average)
            root += accepted + 1
    return tokens, rounds
