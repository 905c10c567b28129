"""What a replay says of the figures that a server prints: mean, and how far a server with as many rounds may be off."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from eagle3ref.acceptance import AcceptanceCounts

_FEW_PROMPTS = 1.0  # degrees of freedom of two prompts; of one, nothing is known, and this is the widest t there is


@dataclass(frozen=True)
class Moments:
    """One ratio of counts: a mean of trials, or a mean over requests.

    Args:
        mean: predicted.
        own_variance: of ``mean``, from the trace's prompts being a sample.
        trial_variance: of one trial of the server, prompts being alike in themselves (the design effect is in it).
        degrees_of_freedom: of both.
        trials: that the prediction was made from.
    """

    mean: float
    own_variance: float
    trial_variance: float
    degrees_of_freedom: float
    trials: float

    def sd(self, trials: float) -> float:
        """Standard deviation of the difference between a server's figure over ``trials`` and ``mean``."""
        return math.sqrt(self.own_variance + self.trial_variance / trials)

    def scaled(self, whole: Moments, part: Moments, least: float) -> Moments:
        """These moments of some prompts, carried over to all of them.

        Another wiring was replayed on all prompts (``whole``), and on the same ones as this (``part``). What is easy
        for one is easy for the other, so the ratio of the two holds better than this mean itself.

        Args:
            whole: the other wiring, all prompts.
            part: the other wiring, these prompts.
            least: where the figure begins: 1 for lengths, 0 for rates.
        """
        if part.mean - least <= 0 or whole.mean - least <= 0:
            return self
        factor = (whole.mean - least) / (part.mean - least)
        spread = (self.mean - least) / (part.mean - least)
        own = max(whole.own_variance * spread**2, self.own_variance * (1 - self.trials / whole.trials) * factor**2)
        return replace(self, mean=least + (self.mean - least) * factor, own_variance=own)


@dataclass(frozen=True)
class Predicted:
    """All figures of one replay.

    Args:
        num_steps: depth of the tree; deeper drafts there are none.
        length: committed tokens per round, pooled over rounds.
        mean_length: mean over prompts of each one's length.
        conditional: of the rounds that accepted d - 1 drafts, the fraction that accepted d, for d = 1, 2, …; as far as
            any round got.
    """

    num_steps: int
    length: Moments
    mean_length: Moments
    conditional: tuple[Moments, ...]

    @property
    def joint(self) -> tuple[float, ...]:
        """The fraction of rounds that accepted at least d drafts, by depth."""
        rates, reached = [], 1.0
        for depth in range(self.num_steps):
            reached *= self.conditional[depth].mean if depth < len(self.conditional) else 0.0
            rates.append(reached)
        return tuple(rates)

    def scaled(self, whole: Predicted, part: Predicted) -> Predicted:
        """As ``Moments.scaled``, figure by figure."""
        rates = list(self.conditional)
        for depth, (mine, theirs, its) in enumerate(
            zip(self.conditional, whole.conditional, part.conditional, strict=False)
        ):
            moved = mine.scaled(theirs, its, 0)
            rates[depth] = replace(moved, mean=min(moved.mean, 1.0))
        return Predicted(
            self.num_steps,
            self.length.scaled(whole.length, part.length, 1),
            self.mean_length.scaled(whole.mean_length, part.mean_length, 1),
            tuple(rates),
        )


def predicted_figures(counts: AcceptanceCounts, *, same_prompts: bool = False) -> Predicted:
    """The figures of these counts.

    Args:
        counts: of a replay, at least one complete round in them.
        same_prompts: whether the server had these very prompts: then only what varies within a prompt is an error, and
            rounds are taken as independent within one.
    """
    rounds, accepted_at, reached_at = counts.terms()
    lengths = accepted_at.sum(1) + rounds
    squares = (counts.histogram * (np.arange(counts.tree.num_steps + 1) + 1.0) ** 2).sum(1)
    conditional = []
    for depth in range(counts.tree.num_steps):
        if not reached_at[:, depth].sum():
            break
        hits = accepted_at[:, depth].astype(float)
        conditional.append(_ratio(hits, hits, reached_at[:, depth].astype(float), same_prompts))
    pooled = _ratio(lengths.astype(float), squares.astype(float), rounds.astype(float), same_prompts)
    per_prompt = (lengths[rounds > 0] / rounds[rounds > 0]).astype(float)
    spread = float(per_prompt.var(ddof=1)) if len(per_prompt) > 1 else pooled.trial_variance
    # Prompts that agree by chance, or on which the draft is dead, still have rounds that may vary.
    spread = max(spread, pooled.trial_variance * len(per_prompt) / float(rounds.sum()))
    mean = Moments(
        float(per_prompt.mean()),
        spread / len(per_prompt),
        spread,
        max(_FEW_PROMPTS, len(per_prompt) - 1),
        len(per_prompt),
    )
    return Predicted(counts.tree.num_steps, pooled, mean, tuple(conditional))


def _ratio(
    sums: NDArray[np.float64], squares: NDArray[np.float64], trials: NDArray[np.float64], same_prompts: bool
) -> Moments:
    """Of a mean of trials, from the sum of values, of their squares, and of trials by prompt."""
    sums, squares, trials = sums[trials > 0], squares[trials > 0], trials[trials > 0]
    total, prompts = float(trials.sum()), len(trials)
    mean = float(sums.sum() / total)
    # Half an event more: what never happened in the record may happen on the server, about once in as many trials.
    least = 0.5 / (total + 1)
    variance = max(float(squares.sum() / total) - mean**2, 0.0)
    within = max(float((squares - sums**2 / trials).sum()) / max(total - prompts, 1.0), 0.0)
    df = max(_FEW_PROMPTS, prompts - 1.0)
    if same_prompts:
        trial = max(within, least)
        return Moments(mean, trial / total, trial, max(df, total - prompts), total)
    residuals = sums - mean * trials
    clustered = prompts / (prompts - 1) * float(residuals @ residuals) / total**2 if prompts > 1 else variance / total
    own = max(clustered, variance / total, least / total)
    return Moments(mean, own, own * total, df, total)
