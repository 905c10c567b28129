"""Expected acceptance: each outcome of a round replaced by the probability that it had. Same mean, less noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagle3ref.acceptance.ratios import (
    RECOUNT,
    REWRITE,
    AcceptanceRatios,
    FloatArray,
    IntArray,
    Terms,
    check_keys,
    owned,
    refuse,
    summed_by_prompt,
)
from eagle3ref.config import TreeConfig
from eagle3ref.statistics import RatioOfSums

_SUMS = ("rounds", "reached_at", "observed_at", "accepted_at")


@dataclass(frozen=True, eq=False)
class ExpectedAcceptance(AcceptanceRatios):
    """Sums over the rounds of P prompts whose root is at least S tokens before the length limit of the answer.

    That is known when a round begins, whatever it then draws; so the expectations are those of a server. An answer
    that ended by itself has its last rounds in here, up to its end. ``AcceptanceCounts`` leaves those out; the two
    cover the same rounds when no answer ended by itself (docs/acceptance.md).

    Args:
        tree: the tree settings of every round.
        prompt_ids: P different names.
        rounds: int64 [P].
        reached_at: int64 [P, S], rounds that decided on a draft token at depth d: the token before was accepted, and
            did not end the answer.
        observed_at: int64 [P, S], of those, the rounds that accepted it.
        accepted_at: float64 [P, S], of those, the sum of the probabilities that it would be accepted.

    Raises:
        Eagle3RefError: a shape, dtype or sign is wrong, or the numbers contradict each other.
    """

    tree: TreeConfig
    prompt_ids: tuple[str, ...]
    rounds: IntArray
    reached_at: IntArray
    observed_at: IntArray
    accepted_at: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_ids", tuple(self.prompt_ids))
        by_depth = (len(self.prompt_ids), self.tree.num_steps)
        object.__setattr__(self, "rounds", owned("rounds", self.rounds, by_depth[:1], np.int64))
        for name in ("reached_at", "observed_at"):
            object.__setattr__(self, name, owned(name, getattr(self, name), by_depth, np.int64))
        object.__setattr__(self, "accepted_at", owned("accepted_at", self.accepted_at, by_depth, np.float64))
        before = np.concatenate([self.rounds[:, None], self.observed_at[:, :-1]], axis=1)
        if (self.reached_at > before).any() or (self.observed_at > self.reached_at).any():
            refuse("more rounds at a depth than at the one before", "at most as many", RECOUNT)
        if (self.accepted_at > self.reached_at * (1 + 1e-6)).any():
            refuse("a probability above 1", "accepted_at <= reached_at", RECOUNT)

    def terms(self) -> Terms:
        """By prompt and depth."""
        return Terms(self.rounds, self.accepted_at, self.reached_at)

    @property
    def surplus(self) -> RatioOfSums:
        """Accepted drafts per round, observed minus expected.

        Its mean is 0 if the answers are draws from the probabilities that were used. One 95 %
        interval in 20 misses 0 by chance, and more with few prompts; one that is far from 0 says that another model,
        temperature or template wrote them.
        """
        difference = (self.observed_at - self.accepted_at).sum(axis=1)
        return RatioOfSums("surplus", "observed_at - accepted_at, all depths", "rounds", difference, self.rounds)

    def __add__(self, other: ExpectedAcceptance) -> ExpectedAcceptance:
        """Merge two disjoint sets of rounds; a prompt on both sides has its sums added."""
        if self.tree != other.tree:
            refuse(f"{self.tree!r} + {other.tree!r}", "one tree", "Report them side by side.")
        ids, sums = summed_by_prompt(_SUMS, self, other)
        return ExpectedAcceptance(self.tree, ids, **sums)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ExpectedAcceptance):
            return NotImplemented
        same = (self.tree, self.prompt_ids) == (other.tree, other.prompt_ids)
        return same and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in _SUMS)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: the sums by prompt, and the ratios that follow from them (null where undefined)."""
        return {
            **{name: getattr(self, name).tolist() for name in _SUMS},
            "ratios": [ratio.to_dict() for ratio in self.ratios()],
            "surplus": self.surplus.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], tree: TreeConfig, prompt_ids: tuple[str, ...]) -> ExpectedAcceptance:
        """What ``to_dict`` wrote, of that tree and those prompts.

        Raises:
            Eagle3RefError: a key or a type is wrong, the sums contradict each other, or a ratio is not theirs.
        """
        check_keys(data, [*_SUMS, "ratios", "surplus"])
        try:
            sums = {name: np.asarray(data[name]) for name in _SUMS}
        except ValueError as error:
            refuse(f"lists that make no array ({error})", "rows of one length", REWRITE)
        expected = cls(tree, prompt_ids, **sums)
        if expected.to_dict() != data:
            refuse("ratios that the sums do not give", "the derived ratios", REWRITE)
        return expected
