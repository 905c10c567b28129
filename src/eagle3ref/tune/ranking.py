"""The settings in order of one figure, the set that may hold the best, and the cheapest of that set."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eagle3ref.config import TreeConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.statistics import DEFAULT_CONFIDENCE, BestOf, best_of
from eagle3ref.tune.surface import Surface
from eagle3ref.tune.times import StepTimes

Figure = Literal["acceptance_length", "tokens_per_second"]
NEARLY = 0.02
"""A recommended setting may be estimated to lose so much to the best, whatever the noise allows."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """K settings compared by one figure.

    Args:
        figure: tokens a round, or tokens per second of all requests together.
        settings: those that were compared, K of them.
        comparison: of their figures, paired by prompt.
    """

    figure: Figure
    settings: tuple[TreeConfig, ...]
    comparison: BestOf

    @property
    def best(self) -> TreeConfig:
        """The setting with the largest figure."""
        return self.settings[self.comparison.best]

    @property
    def recommended(self) -> TreeConfig:
        """The cheapest that cannot be told from the best: fewest num_draft_tokens, then num_steps, then topk.

        With few prompts next to nothing can be told apart. So it must not be estimated more than 2 % behind, either.
        """
        values = self.comparison.values
        near = self.comparison.may_be_best & (values >= (1 - NEARLY) * values.max())
        chosen = [tree for tree, is_near in zip(self.settings, near, strict=True) if is_near]
        return min(chosen, key=lambda tree: (tree.num_draft_tokens, tree.num_steps, tree.topk))

    def value(self, tree: TreeConfig) -> float:
        """The figure of a setting."""
        return float(self.comparison.values[self._place[tree]])

    def may_be_best(self, tree: TreeConfig) -> bool:
        """Whether a setting is in the set that holds the best."""
        return bool(self.comparison.may_be_best[self._place[tree]])

    def behind(self, tree: TreeConfig) -> tuple[float, float]:
        """How far a setting lies behind the best: as estimated, and at most."""
        at = self._place[tree]
        return float(self.comparison.behind[at]), float(self.comparison.at_most_behind[at])

    def __contains__(self, tree: TreeConfig) -> bool:
        """Whether a setting was compared."""
        return tree in self._place

    @cached_property
    def _place(self) -> dict[TreeConfig, int]:
        return {tree: place for place, tree in enumerate(self.settings)}


def rank(
    surface: Surface,
    times: StepTimes | None = None,
    *,
    refused: Container[TreeConfig] = (),
    confidence: float = DEFAULT_CONFIDENCE,
) -> Ranking:
    """Compare the settings by acceptance length, or with times by tokens per second.

    Times are taken as exact: a constant for each setting, so that tokens per second are as uncertain as lengths.

    Args:
        surface: of the settings.
        times: of the steps of a round.
        refused: settings that the engine does not run; they are not compared.
        confidence: that the set holds the best.

    Raises:
        Eagle3RefError: no setting is left with a complete round, or times that do not reach it.
    """
    has_rounds = surface.rounds.sum(0) > 0
    kept = [k for k, tree in enumerate(surface.settings) if has_rounds[k] and tree not in refused]
    if not kept:
        raise Eagle3RefError(
            "ranking the settings",
            found=f"{len(surface.settings)} settings, {int(has_rounds.sum())} of them with a complete round"
            f"{', which the engine refuses' if has_rounds.any() else ''}",
            expected="one that the engine runs, on answers longer than its num_steps",
            action="Record longer answers, or tune settings that the engine takes.",
        )
    settings = tuple(surface.settings[k] for k in kept)
    above, below = speed_terms(surface, times, kept)
    figure: Figure = "acceptance_length" if times is None else "tokens_per_second"
    return Ranking(figure, settings, best_of(above, below, confidence))


def speed_terms(
    surface: Surface, times: StepTimes | None, chosen: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What a setting's figure is the ratio of: tokens of all requests over seconds, or over rounds without times.

    Returns:
        numerators, denominators: float64 [P, len(chosen)].
    """
    tokens, rounds = surface.tokens[:, chosen].astype(np.float64), surface.rounds[:, chosen].astype(np.float64)
    if times is None:
        return tokens, rounds
    seconds = np.array([times.round_ms(surface.settings[k]) for k in chosen]) / 1000.0
    return tokens * times.batch_size, rounds * seconds
