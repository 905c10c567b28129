"""What to serve: the ranking, what the engine refuses, and whether anything finer than one fixed setting would pay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from eagle3ref.config import TreeConfig
from eagle3ref.speedup import Speedup, speedup
from eagle3ref.statistics import DEFAULT_CONFIDENCE
from eagle3ref.tune.adaptive import Adaptive, adaptive
from eagle3ref.tune.categories import ByCategory, by_category
from eagle3ref.tune.limits import EngineLimits
from eagle3ref.tune.ranking import NEARLY, Ranking, rank
from eagle3ref.tune.surface import Surface
from eagle3ref.tune.times import StepTimes

Mark = Literal["best", "may be best", "behind", "refused", "no complete round"]
_WIDE = 0.05  # a bound beyond this share of the best says that the prompts are too few
_FEW = 10  # prompts, below which what happened on none of them is still likely elsewhere


@dataclass(frozen=True, eq=False)
class Advice:
    """A surface, and what follows from it.

    Args:
        surface: of all settings.
        by_length: those that the engine runs, by acceptance length.
        by_speed: the same by tokens per second; None without times.
        times: of the steps; None if not given.
        refused: settings that the engine does not run, and why.
        adaptive: adaptive num_steps; None if it could not be replayed.
        categories: a setting for each category; None without categories or times.
        confidence: of every set and interval.
    """

    surface: Surface
    by_length: Ranking
    by_speed: Ranking | None
    times: StepTimes | None
    refused: dict[TreeConfig, str]
    adaptive: Adaptive | None
    categories: ByCategory | None
    confidence: float

    @property
    def ranking(self) -> Ranking:
        """By tokens per second if there are times, else by acceptance length."""
        return self.by_speed or self.by_length

    @cached_property
    def worth(self) -> Speedup | None:
        """The speed-up of the recommended setting over the target alone; None without times."""
        if self.times is None:
            return None
        recommended = self.ranking.recommended
        return speedup(self.surface.counts(recommended), self.times.round_times(recommended))

    def mark(self, tree: TreeConfig) -> Mark:
        """How a setting fared."""
        if tree in self.refused:
            return "refused"
        if tree not in self.ranking:
            return "no complete round"
        if tree == self.ranking.best:
            return "best"
        return "may be best" if self.ranking.may_be_best(tree) else "behind"

    @property
    def sentences(self) -> tuple[str, ...]:
        """What follows, for people, most important first."""
        found = (self._best(), self._recommended(), self._by_length(), self._without_draft(), self._too_few())
        given = (self._no_times(), self._unknown())
        finer = (self._adaptive(), self._categories())
        return tuple(filter(None, (*found, *given, *finer, *self._refusals())))

    def _best(self) -> str:
        ranking = self.ranking
        count, total = int(ranking.comparison.may_be_best.sum()), len(ranking.settings)
        few = {1: "no other can be the best", 2: "one other cannot be told from it"}
        others = few.get(count, f"{count - 1} others cannot be told from it")
        return (
            f"{ranking.best} is the best of {total} settings, with {self._figure(ranking.value(ranking.best))}; on "
            f"{_prompts(ranking.comparison.clusters)} {others} ({100 * self.confidence:g} %, all comparisons together)."
        )

    def _recommended(self) -> str:
        ranking, recommended = self.ranking, self.ranking.recommended
        if recommended == ranking.best:
            return f"It is the cheapest of those that are estimated within {100 * NEARLY:g} % of it, too."
        behind, at_most = ranking.behind(recommended)
        return (
            f"{recommended} is the cheapest of these that is estimated within {100 * NEARLY:g} %: "
            f"{self._figure(ranking.value(recommended))}, {self._share(behind)} behind"
            f"{'' if math.isinf(at_most) else f', at most {self._share(at_most)}'}."
        )

    def _by_length(self) -> str:
        if self.by_speed is None:
            return ""
        best = self.by_length.best
        return f"By acceptance alone {best} is the best, with {self.by_length.value(best):.2f} tokens a round."

    def _without_draft(self) -> str:
        if self.times is None or self.worth is None or self.worth.verdict == "gains":
            return ""
        alone = f"{self.times.baseline_tokens_per_second:.1f} tokens/s"
        if self.worth.verdict == "loses":
            return f"The target alone is faster: {alone}. Serve without a draft."
        return f"It cannot be told whether the recommended setting is faster than the target alone, {alone}."

    def _too_few(self) -> str:
        ranking = self.ranking
        if ranking.comparison.clusters < _FEW:
            return f"Fewer than {_FEW} prompts are too few for any of these bounds: record more."
        if ranking.behind(ranking.recommended)[1] <= _WIDE * ranking.value(ranking.best):
            return ""
        return f"That leaves more than {100 * _WIDE:g} % open: record more prompts; longer answers help less."

    def _no_times(self) -> str:
        if self.times is not None:
            return ""
        return (
            "That is no setting to serve: acceptance grows with the tree, and so does the time of a round. Give "
            "--target-step-ms, --verify-ms and --draft-pass-ms to weigh one against the other."
        )

    def _unknown(self) -> str:
        if self.worth is None or not self.worth.times.unknown:
            return ""
        return f"No time was given for {', '.join(self.worth.times.unknown)}: counted as 0."

    def _adaptive(self) -> str:
        found = self.adaptive
        if found is None:
            return ""
        steps = ", ".join(map(str, found.rule.candidate_steps))
        ends = [(gain.estimate, gain.low, gain.high) for gain in (found.over_all, found.over_chain)]
        return (
            f"Adaptive num_steps of {steps} (chains, by SGLang's rule) {_verb(*ends[0])} the best fixed setting, "
            f"{_gain(*ends[0])}, and {_verb(*ends[1])} the best fixed chain, {_gain(*ends[1])}."
        )

    def _categories(self) -> str:
        found = self.categories
        if found is None:
            return ""
        ends = (found.gain.estimate, *found.gain.ends(self.confidence))
        return (
            f"A setting for each of {len(found.choices)} categories {_verb(*ends)} one for all, {_gain(*ends)}; each "
            "is chosen on other prompts than it is judged on."
        )

    def _refusals(self) -> list[str]:
        by_reason: dict[str, int] = {}
        for reason in self.refused.values():
            by_reason[reason] = by_reason.get(reason, 0) + 1
        return [f"The engine refuses {count} settings: {reason}." for reason, count in by_reason.items()]

    def _figure(self, value: float) -> str:
        return f"{value:.2f} tokens a round" if self.by_speed is None else f"{value:.1f} tokens/s"

    def _share(self, behind: float) -> str:
        return f"{100 * behind / self.ranking.value(self.ranking.best):.1f} %"


def advise(
    surface: Surface,
    times: StepTimes | None = None,
    *,
    limits: EngineLimits | None = None,
    categories: Sequence[str] | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
) -> Advice:
    """Rank the settings, and look whether adaptive num_steps or a setting for each category would pay.

    Args:
        surface: of all settings.
        times: of the steps of a round. Without them only acceptance is compared, and nothing else is looked at.
        limits: of the engine that will serve; without, every setting is taken to run.
        categories: a name for each prompt.
        confidence: of every set and interval.

    Raises:
        Eagle3RefError: as ``rank``.
    """
    trapped = [(tree, limits.refusal(tree)) for tree in surface.settings] if limits is not None else []
    refused = {tree: reason for tree, reason in trapped if reason is not None}
    by_length = rank(surface, refused=refused, confidence=confidence)
    if times is None:
        return Advice(surface, by_length, None, None, refused, None, None, confidence)
    by_speed = rank(surface, times, refused=refused, confidence=confidence)
    is_sglang = limits is None or limits.explanation.case.profile.engine == "SGLang"
    steps = adaptive(surface, times, refused=refused, confidence=confidence) if is_sglang else None
    groups = None
    if categories is not None:
        groups = by_category(surface, categories, times, refused=refused, confidence=confidence)
    return Advice(surface, by_length, by_speed, times, refused, steps, groups, confidence)


def _prompts(count: int) -> str:
    return "one prompt" if count == 1 else f"{count} prompts"


def _verb(estimate: float, low: float, high: float) -> str:
    """What an interval of a gain says of the two sides."""
    if low <= 0 <= high:
        return "cannot be told from"
    return "gains over" if estimate > 0 else "loses to"


def _gain(estimate: float, low: float, high: float) -> str:
    ends = "one prompt" if math.isinf(low) else f"{low:+.1f}, {high:+.1f}"
    return f"{estimate:+.1f} tokens/s [{ends}]"
