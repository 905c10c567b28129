"""What was accepted, as integers that add; every ratio is derived and named by its numerator and denominator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from eagle3ref.config import TreeConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.statistics import Interval, Method, RatioOfSums

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Kind = Literal["exact", "unbiased", "estimate"]
RatioName = Literal["acceptance_length", "node_acceptance_rate", "acceptance_rate_at", "conditional_acceptance_rate_at"]

KIND_MEANING: Mapping[Kind, str] = {
    "exact": "The trajectory is greedy and was recorded by the same target: these are the rounds it would have run.",
    "unbiased": "The trajectory was sampled from the same target: the expectation is right, this sample has its noise.",
    "estimate": "Not every recorded token is known to be the target's first choice. A few that are not are near-ties "
    "of the dtype and matter little; many mean that another model or template wrote them.",
}

# The definition of each ratio in terms of the fields below: (numerator, denominator), both summed over prompts.
_DEFINITION: Mapping[RatioName, tuple[str, str]] = {
    "acceptance_length": ("accepted_drafts + rounds", "rounds"),
    "node_acceptance_rate": ("accepted_drafts", "rounds * (num_draft_tokens - 1)"),
    "acceptance_rate_at": ("accepted_at[depth]", "rounds"),
    "conditional_acceptance_rate_at": ("accepted_at[depth]", "accepted_at[depth - 1], or rounds at depth 1"),
}
_RECOUNT = "Check the code that filled the counts."
_REWRITE = "Use the data as to_dict wrote them."
_INTEGERS = ("histogram", "proposed_at", "censored_rounds", "off_argmax_tokens", "recorded_tokens")


@dataclass(frozen=True, eq=False)
class AcceptanceCounts:
    """Integers of P prompts verified with one tree of depth S. ``a + b`` merges; depth d = 1..S is index d - 1.

    Args:
        tree: the tree settings of every round.
        prompt_ids: P different names.
        histogram: int64 [P, S+1], complete rounds by accepted drafts c = 0..S (the bonus token is not in c).
        proposed_at: int64 [P, S], draft tokens offered at each depth, summed over complete rounds; all depths
            together offer ``num_draft_tokens - 1`` a round.
        censored_rounds: int64 [P], rounds whose lookahead of ``num_steps`` tokens runs past the recorded end. They
            are in no ratio: their c is only known to be at least something.
        off_argmax_tokens: int64 [P], recorded tokens that are not the target's argmax.
        recorded_tokens: int64 [P], generated tokens recorded.
        kind: ``"exact"``, ``"unbiased"`` or ``"estimate"``; ``KIND_MEANING`` says what each one claims.

    Raises:
        Eagle3RefError: a shape, dtype or sign is wrong, or the integers contradict each other.
    """

    tree: TreeConfig
    prompt_ids: tuple[str, ...]
    histogram: IntArray
    proposed_at: IntArray
    censored_rounds: IntArray
    off_argmax_tokens: IntArray
    recorded_tokens: IntArray
    kind: Kind

    def __post_init__(self) -> None:
        ids, steps = self.prompt_ids, self.tree.num_steps
        are_names = isinstance(ids, tuple | list) and all(isinstance(name, str) for name in ids)
        if not are_names or not 0 < len(set(ids)) == len(ids):
            _refuse(f"prompt_ids {ids!r:.200}", "at least one name, all different strings", "Name each prompt once.")
        if self.kind not in tuple(KIND_MEANING):
            _refuse(f"kind {self.kind!r}", f"one of {', '.join(KIND_MEANING)}", "Say which one these numbers are.")
        object.__setattr__(self, "prompt_ids", tuple(ids))
        widths = {"histogram": (steps + 1,), "proposed_at": (steps,)}
        for name in _INTEGERS:
            values = _owned_counts(name, getattr(self, name), (len(ids), *widths.get(name, ())))
            object.__setattr__(self, name, values)
        if (self.proposed_at < self.accepted_at).any():
            _refuse("more rounds accepted than tokens proposed at a depth", "proposed_at >= accepted_at", _RECOUNT)
        if (self.proposed_at.sum(axis=1) != self.rounds * (self.tree.num_draft_tokens - 1)).any():
            found = f"{self.proposed_at.sum()} draft tokens proposed in {self.total_rounds} rounds"
            _refuse(found, f"{self.tree.num_draft_tokens - 1} in each round", _RECOUNT)
        if (self.off_argmax_tokens > self.recorded_tokens).any():
            _refuse("more off_argmax_tokens than recorded_tokens", "at most as many", _RECOUNT)

    @property
    def rounds(self) -> IntArray:
        """int64 [P], complete verification rounds."""
        return self._reached[:, 0]

    @property
    def accepted_at(self) -> IntArray:
        """int64 [P, S], rounds that accepted the draft token at depth d (c >= d)."""
        return self._reached[:, 1:]

    @property
    def accepted_drafts(self) -> IntArray:
        """int64 [P], accepted draft tokens, bonus tokens not counted."""
        return cast(IntArray, self.accepted_at.sum(axis=1))

    @property
    def total_rounds(self) -> int:
        """Complete verification rounds of all prompts."""
        return int(self.rounds.sum())

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
        """A named ratio with its integer terms by prompt; the two rates by depth need ``depth`` 1..S.

        Raises:
            Eagle3RefError: an unknown name, a depth outside 1..S or out of place, or no complete round at all.
        """
        if name not in _DEFINITION:
            _refuse(f"ratio {name!r}", f"one of {', '.join(_DEFINITION)}", "Use one of these names.")
        depths = self._depths(name)
        if depth not in depths:
            _refuse(f"{name} at depth {depth}", f"depth {depths[0]} to {depths[-1]}", "Give it to rates by depth.")
        if not self.total_rounds:
            found = f"no complete round and {self.censored_rounds.sum()} censored"
            _refuse(found, f"a complete round, to give {name}", "Record more than num_steps + 1 tokens per prompt.")
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

    def __add__(self, other: AcceptanceCounts) -> AcceptanceCounts:
        """Merge two disjoint sets of rounds; a prompt on both sides has its integers summed."""
        if (self.tree, self.kind) != (other.tree, other.kind):
            found = f"{self.kind} counts of {self.tree!r} + {other.kind} counts of {other.tree!r}"
            _refuse(found, "one tree and one kind", "Report them side by side: pooled, they describe neither.")
        ids = tuple(dict.fromkeys(self.prompt_ids + other.prompt_ids))
        row_of = {name: row for row, name in enumerate(ids)}
        rows = [row_of[name] for name in self.prompt_ids + other.prompt_ids]
        merged = {}
        for name in _INTEGERS:
            both = np.concatenate([getattr(self, name), getattr(other, name)])
            merged[name] = np.zeros((len(ids), *both.shape[1:]), np.int64)
            np.add.at(merged[name], rows, both)
        return AcceptanceCounts(tree=self.tree, prompt_ids=ids, kind=self.kind, **merged)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AcceptanceCounts):
            return NotImplemented
        same_names = (self.tree, self.kind, self.prompt_ids) == (other.tree, other.kind, other.prompt_ids)
        return same_names and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in _INTEGERS)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: the integers, and the ratios that follow from them (null where undefined)."""
        return {
            "tree": asdict(self.tree),
            "kind": self.kind,
            "kind_meaning": KIND_MEANING[self.kind],
            "prompt_ids": list(self.prompt_ids),
            **{name: getattr(self, name).tolist() for name in _INTEGERS},
            "ratios": [ratio.to_dict() for ratio in self.ratios()],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AcceptanceCounts:
        """What ``to_dict`` wrote. The integers are read; ratios must be the ones that follow from them.

        Raises:
            Eagle3RefError: a key or a type is wrong, the integers contradict each other, or a ratio is not theirs.
        """
        _check_keys(data, ["tree", "kind", "kind_meaning", "prompt_ids", *_INTEGERS, "ratios"])
        _check_keys(data["tree"], [field.name for field in fields(TreeConfig)])
        try:
            integers = {name: np.asarray(data[name]) for name in _INTEGERS}
        except ValueError as error:
            _refuse(f"lists that make no array ({error})", "rows of one length", _REWRITE)
        counts = cls(TreeConfig(**data["tree"]), data["prompt_ids"], **integers, kind=data["kind"])
        if counts.to_dict()["ratios"] != data["ratios"]:
            _refuse("ratios that the integers do not give", "the derived ratios", _REWRITE)
        return counts

    @property
    def _reached(self) -> IntArray:
        """int64 [P, S+1], rounds with c >= d for d = 0..S."""
        return cast(IntArray, self.histogram[:, ::-1].cumsum(axis=1)[:, ::-1])

    def _depths(self, name: RatioName) -> Sequence[int | None]:
        return range(1, self.tree.num_steps + 1) if name.endswith("_at") else (None,)

    def _ratio(self, name: RatioName, depth: int | None) -> RatioOfSums:
        if depth is not None:
            given = 0 if name == "acceptance_rate_at" else depth - 1
            terms = self._reached[:, depth], self._reached[:, given]
        elif name == "acceptance_length":
            terms = self.accepted_drafts + self.rounds, self.rounds
        else:
            terms = self.accepted_drafts, self.rounds * (self.tree.num_draft_tokens - 1)
        label = name if depth is None else f"{name}[{depth}]"
        return RatioOfSums(label, *_DEFINITION[name], *terms)

    def _by_depth(self, name: RatioName) -> FloatArray:
        return np.array([self.ratio(name, depth).value for depth in self._depths(name)])


def _owned_counts(name: str, values: IntArray, shape: tuple[int, ...]) -> IntArray:
    """A read-only int64 copy, so that no caller can change what was validated."""
    found = np.asarray(values)
    if found.shape != shape or not np.issubdtype(found.dtype, np.integer):
        _refuse(f"{name} {found.dtype} {list(found.shape)}", f"integers {list(shape)}", "Give one row per prompt.")
    owned = found.astype(np.int64)
    if (owned < 0).any():
        _refuse(f"{name} with minimum {owned.min()}", "counts, 0 or more", _RECOUNT)
    owned.flags.writeable = False
    return owned


def _check_keys(data: object, expected: Sequence[str]) -> None:
    found = sorted(map(str, data)) if isinstance(data, Mapping) else type(data).__name__
    if found != sorted(expected):
        _refuse(f"keys {found!s:.400}", f"exactly {sorted(expected)}", _REWRITE)


def _refuse(found: str, expected: str, action: str) -> NoReturn:
    raise Eagle3RefError("counting acceptance", found=found, expected=expected, action=action)
