"""The named ratios: which sum is divided by which, for what was counted and for what was expected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from eagle3ref.config import TreeConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.statistics import Interval, Method, RatioOfSums

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
RatioName = Literal["acceptance_length", "node_acceptance_rate", "acceptance_rate_at", "conditional_acceptance_rate_at"]

RECOUNT = "Check the code that filled the counts."
REWRITE = "Use the data as to_dict wrote them."

# The definition of each ratio, of the counts or of what was expected of them: (numerator, denominator), both summed
# over prompts.
_DEFINITION: Mapping[RatioName, tuple[str, str]] = {
    "acceptance_length": ("accepted_drafts + rounds", "rounds"),
    "node_acceptance_rate": ("accepted_drafts", "rounds * (num_draft_tokens - 1)"),
    "acceptance_rate_at": ("accepted_at[depth]", "rounds"),
    "conditional_acceptance_rate_at": ("accepted_at[depth]", "accepted_at[depth - 1], or rounds at depth 1"),
}


class Terms(NamedTuple):
    """What every ratio is made of, for P prompts and depths d = 1..S at index d - 1.

    Args:
        rounds: int64 [P], verification rounds.
        accepted_at: [P, S], rounds that accepted the draft token at depth d; or how many of them should have.
        reached_at: int64 [P, S], rounds that decided on a draft token at depth d: those that accepted depth d - 1.
    """

    rounds: IntArray
    accepted_at: IntArray | FloatArray
    reached_at: IntArray


class AcceptanceRatios(ABC):
    """Every ratio of P prompts verified with one tree of depth S, from the terms that a subclass gives."""

    tree: TreeConfig
    prompt_ids: tuple[str, ...]

    @abstractmethod
    def terms(self) -> Terms:
        """By prompt and depth."""

    @property
    def total_rounds(self) -> int:
        """Verification rounds of all prompts."""
        return int(self.terms().rounds.sum())

    @property
    def acceptance_length(self) -> float:
        """Tokens committed per round, bonus included: ``1 + accepted_drafts / rounds``, between 1 and S + 1."""
        return self.ratio("acceptance_length").value

    @property
    def node_acceptance_rate(self) -> float:
        """Accepted draft tokens per draft node verified: ``accepted_drafts / (rounds * (num_draft_tokens - 1))``."""
        return self.ratio("node_acceptance_rate").value

    @property
    def acceptance_rate_at(self) -> FloatArray:
        """float64 [S], joint: the fraction of rounds that accepted at least d drafts."""
        return self._by_depth("acceptance_rate_at")

    @property
    def conditional_acceptance_rate_at(self) -> FloatArray:
        """float64 [S]: of the rounds that accepted d - 1 drafts, the fraction that accepted d; nan if none did."""
        return self._by_depth("conditional_acceptance_rate_at")

    def ratio(self, name: RatioName, depth: int | None = None) -> RatioOfSums:
        """A named ratio with its terms by prompt; the two rates by depth need ``depth`` 1..S.

        Raises:
            Eagle3RefError: an unknown name, a depth outside 1..S or out of place, or no complete round at all.
        """
        if name not in _DEFINITION:
            refuse(f"ratio {name!r}", f"one of {', '.join(_DEFINITION)}", "Use one of these names.")
        depths = self._depths(name)
        if depth not in depths:
            refuse(f"{name} at depth {depth}", f"depth {depths[0]} to {depths[-1]}", "Give it to rates by depth.")
        if not self.total_rounds:
            action = "Record more than num_steps + 1 tokens per prompt."
            refuse(self._without_rounds(), f"a complete round, to give {name}", action)
        return self._ratio(name, depth)

    def ratios(self) -> list[RatioOfSums]:
        """Every named ratio at every depth; the value of one that nothing was counted for is nan."""
        return [self._ratio(name, depth) for name in _DEFINITION for depth in self._depths(name)]

    def per_prompt(self, name: RatioName, depth: int | None = None) -> FloatArray:
        """float64 [P], the ratio of each prompt alone, nan where its denominator is 0. Raises as ``ratio``."""
        return self.ratio(name, depth).per_prompt

    def interval(
        self, name: RatioName, confidence: float = 0.95, method: Method = "linearized", *, depth: int | None = None
    ) -> Interval:
        """Confidence interval of a named ratio, clustered by prompt; raises as ``ratio`` and its ``interval``."""
        return self.ratio(name, depth).interval(confidence, method)

    def _without_rounds(self) -> str:
        return "no complete round"

    def _depths(self, name: RatioName) -> Sequence[int | None]:
        return range(1, self.tree.num_steps + 1) if name.endswith("_at") else (None,)

    def _ratio(self, name: RatioName, depth: int | None) -> RatioOfSums:
        rounds, accepted_at, reached_at = self.terms()
        drafts = accepted_at.sum(axis=1)
        if depth is not None:
            given = rounds if name == "acceptance_rate_at" else reached_at[:, depth - 1]
            above, below = accepted_at[:, depth - 1], given
        elif name == "acceptance_length":
            above, below = drafts + rounds, rounds
        else:
            above, below = drafts, rounds * (self.tree.num_draft_tokens - 1)
        label = name if depth is None else f"{name}[{depth}]"
        return RatioOfSums(label, *_DEFINITION[name], above, below)

    def _by_depth(self, name: RatioName) -> FloatArray:
        return np.array([self.ratio(name, depth).value for depth in self._depths(name)])


def check_keys(data: object, expected: Sequence[str]) -> None:
    """Refuse anything but an object with exactly these keys."""
    found = sorted(map(str, data)) if isinstance(data, Mapping) else type(data).__name__
    if found != sorted(expected):
        refuse(f"keys {found!s:.400}", f"exactly {sorted(expected)}", REWRITE)


def owned(name: str, values: Any, shape: tuple[int, ...], dtype: type[np.int64 | np.float64]) -> NDArray[Any]:
    """A read-only copy of non-negative numbers, so that no caller can change what was validated."""
    found = np.asarray(values)
    kind: Any = np.integer if dtype is np.int64 else np.floating
    if found.shape != shape or not np.issubdtype(found.dtype, kind):
        wanted = f"{'integers' if dtype is np.int64 else 'floats'} {list(shape)}"
        refuse(f"{name} {found.dtype} {list(found.shape)}", wanted, "Give one row per prompt.")
    copy = found.astype(dtype)
    if not (copy >= 0).all():
        refuse(f"{name} with minimum {copy.min()}", "counts, 0 or more", RECOUNT)
    copy.flags.writeable = False
    return copy


def summed_by_prompt(
    names: Sequence[str], left: AcceptanceRatios, right: AcceptanceRatios
) -> tuple[tuple[str, ...], dict[str, NDArray[Any]]]:
    """The ids of both sides, and the named arrays with the rows of each id added up."""
    both = left.prompt_ids + right.prompt_ids
    ids = tuple(dict.fromkeys(both))
    row_of = {prompt_id: row for row, prompt_id in enumerate(ids)}
    totals = {}
    for name in names:
        rows = np.concatenate([getattr(left, name), getattr(right, name)])
        totals[name] = np.zeros((len(ids), *rows.shape[1:]), rows.dtype)
        np.add.at(totals[name], [row_of[prompt_id] for prompt_id in both], rows)
    return ids, totals


def refuse(found: str, expected: str, action: str) -> NoReturn:
    """Raise what every complaint about counts looks like."""
    raise Eagle3RefError("counting acceptance", found=found, expected=expected, action=action)
