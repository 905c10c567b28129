"""What was accepted, as integers that add; every ratio is derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, cast

import numpy as np

from eagle3ref.acceptance.expected import ExpectedAcceptance
from eagle3ref.acceptance.ratios import (
    RECOUNT,
    REWRITE,
    AcceptanceRatios,
    IntArray,
    Terms,
    check_keys,
    owned,
    refuse,
    summed_by_prompt,
)
from eagle3ref.config import AcceptanceRule, TreeConfig

Kind = Literal["exact", "unbiased", "estimate", "positions"]

KIND_MEANING: Mapping[Kind, str] = {
    "exact": "The trajectory is greedy and was recorded by the same target: these are the rounds it would have run.",
    "unbiased": "The trajectory was sampled from the same target: the expectation is right, this sample has its noise.",
    "estimate": "Not every recorded token is known to be the target's first choice. A few that are not are near-ties "
    "of the dtype and matter little; many mean that another model or template wrote them.",
    "positions": "One round from every position, whether a walk comes to it or not: means over positions. No server "
    "reports them; it visits more positions where little is accepted.",
}

_INTEGERS = ("histogram", "proposed_at", "censored_rounds", "off_argmax_tokens", "recorded_tokens")


@dataclass(frozen=True, eq=False)
class AcceptanceCounts(AcceptanceRatios):
    """Integers of P prompts verified with one tree of depth S. ``a + b`` merges; depth d = 1..S is index d - 1.

    Args:
        tree: the tree settings of every round.
        prompt_ids: P different names.
        histogram: int64 [P, S+1], complete rounds by accepted drafts c = 0..S (the bonus token is not in c).
        proposed_at: int64 [P, S], draft tokens offered at each depth, summed over complete rounds; all depths
            together offer ``num_draft_tokens - 1`` a round. None where it is not known at which depth a tree has its
            nodes: a replay that looks only at what decides acceptance does not.
        censored_rounds: int64 [P], rounds whose lookahead of ``num_steps`` tokens runs past the recorded end. They
            are in no ratio: their c is only known to be at least something.
        off_argmax_tokens: int64 [P], recorded tokens that are not the target's argmax.
        recorded_tokens: int64 [P], generated tokens recorded.
        kind: ``"exact"``, ``"unbiased"``, ``"estimate"`` or ``"positions"``; ``KIND_MEANING`` says what each claims.
        rule: that decided which drafts were kept.
        expected: the same acceptance with each outcome replaced by its probability; None without probabilities.

    Raises:
        Eagle3RefError: a shape, dtype or sign is wrong, or the integers contradict each other.
    """

    tree: TreeConfig
    prompt_ids: tuple[str, ...]
    histogram: IntArray
    proposed_at: IntArray | None
    censored_rounds: IntArray
    off_argmax_tokens: IntArray
    recorded_tokens: IntArray
    kind: Kind
    rule: AcceptanceRule = AcceptanceRule()
    expected: ExpectedAcceptance | None = None

    def __post_init__(self) -> None:
        ids, steps = self.prompt_ids, self.tree.num_steps
        are_names = isinstance(ids, tuple | list) and all(isinstance(name, str) for name in ids)
        if not are_names or not 0 < len(set(ids)) == len(ids):
            refuse(f"prompt_ids {ids!r:.200}", "at least one name, all different strings", "Name each prompt once.")
        if self.kind not in tuple(KIND_MEANING):
            refuse(f"kind {self.kind!r}", f"one of {', '.join(KIND_MEANING)}", "Say which one these numbers are.")
        object.__setattr__(self, "prompt_ids", tuple(ids))
        widths = {"histogram": (steps + 1,), "proposed_at": (steps,)}
        for name in self._known:
            values = owned(name, getattr(self, name), (len(ids), *widths.get(name, ())), np.int64)
            object.__setattr__(self, name, values)
        if self.proposed_at is not None:
            self._check_proposed(self.proposed_at)
        if (self.off_argmax_tokens > self.recorded_tokens).any():
            refuse("more off_argmax_tokens than recorded_tokens", "at most as many", RECOUNT)
        if self.expected and (self.expected.tree, self.expected.prompt_ids) != (self.tree, self.prompt_ids):
            refuse("expected acceptance of another tree or of other prompts", "the same ones", RECOUNT)

    @property
    def rounds(self) -> IntArray:
        """int64 [P], complete verification rounds."""
        return self._at_least[:, 0]

    @property
    def accepted_at(self) -> IntArray:
        """int64 [P, S], rounds that accepted the draft token at depth d (c >= d)."""
        return self._at_least[:, 1:]

    @property
    def accepted_drafts(self) -> IntArray:
        """int64 [P], accepted draft tokens, bonus tokens not counted."""
        return cast(IntArray, self.accepted_at.sum(axis=1))

    def terms(self) -> Terms:
        """By prompt and depth."""
        return Terms(self.rounds, self.accepted_at, self._at_least[:, :-1])

    def __add__(self, other: AcceptanceCounts) -> AcceptanceCounts:
        """Merge two disjoint sets of rounds; a prompt on both sides has its integers summed.

        ``proposed_at`` of the sum is None if it is on one side.
        """
        if self._settings() != other._settings():
            refuse(
                f"{self.kind} counts of {self._settings()} + {other.kind} counts of {other._settings()}",
                "one tree, one kind and one rule, both with expected acceptance or both without",
                "Report them side by side: pooled, they describe neither.",
            )
        ids, merged = summed_by_prompt([name for name in self._known if name in other._known], self, other)
        expected = self.expected + other.expected if self.expected and other.expected else None
        return AcceptanceCounts(
            tree=self.tree,
            prompt_ids=ids,
            kind=self.kind,
            rule=self.rule,
            expected=expected,
            proposed_at=merged.pop("proposed_at", None),
            **merged,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AcceptanceCounts):
            return NotImplemented
        mine, its = ((counts._settings(), counts.prompt_ids, counts.expected) for counts in (self, other))
        return (mine, self._known) == (its, other._known) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self._known
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: the integers, and the ratios that follow from them (null where undefined)."""
        return {
            "tree": asdict(self.tree),
            "rule": asdict(self.rule),
            "kind": self.kind,
            "kind_meaning": KIND_MEANING[self.kind],
            "prompt_ids": list(self.prompt_ids),
            **{name: getattr(self, name).tolist() if name in self._known else None for name in _INTEGERS},
            "ratios": [ratio.to_dict() for ratio in self.ratios()],
            "expected": self.expected and self.expected.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AcceptanceCounts:
        """What ``to_dict`` wrote. The integers are read; ratios must be the ones that follow from them.

        Raises:
            Eagle3RefError: a key or a type is wrong, the integers contradict each other, or a ratio is not theirs.
        """
        check_keys(data, ["tree", "rule", "kind", "kind_meaning", "prompt_ids", *_INTEGERS, "ratios", "expected"])
        check_keys(data["tree"], [field.name for field in fields(TreeConfig)])
        check_keys(data["rule"], [field.name for field in fields(AcceptanceRule)])
        try:
            integers: dict[str, Any] = {
                name: None if data[name] is None else np.asarray(data[name]) for name in _INTEGERS
            }
        except ValueError as error:
            refuse(f"lists that make no array ({error})", "rows of one length", REWRITE)
        tree = TreeConfig(**data["tree"])
        counts = cls(
            tree=tree,
            prompt_ids=data["prompt_ids"],
            **integers,
            kind=data["kind"],
            rule=AcceptanceRule(**data["rule"]),
            expected=None
            if data["expected"] is None
            else ExpectedAcceptance.from_dict(data["expected"], tree, data["prompt_ids"]),
        )
        if counts.to_dict()["ratios"] != data["ratios"]:
            refuse("ratios that the integers do not give", "the derived ratios", REWRITE)
        return counts

    @property
    def _known(self) -> tuple[str, ...]:
        """The names of the arrays; of them only ``proposed_at`` may be unknown."""
        return tuple(name for name in _INTEGERS if name != "proposed_at" or self.proposed_at is not None)

    @property
    def _at_least(self) -> IntArray:
        """int64 [P, S+1], rounds with c >= d for d = 0..S."""
        return cast(IntArray, self.histogram[:, ::-1].cumsum(axis=1)[:, ::-1])

    def _check_proposed(self, proposed_at: IntArray) -> None:
        if (proposed_at < self.accepted_at).any():
            refuse("more rounds accepted than tokens proposed at a depth", "proposed_at >= accepted_at", RECOUNT)
        if (proposed_at.sum(axis=1) != self.rounds * (self.tree.num_draft_tokens - 1)).any():
            found = f"{proposed_at.sum()} draft tokens proposed in {self.total_rounds} rounds"
            refuse(found, f"{self.tree.num_draft_tokens - 1} in each round", RECOUNT)

    def _settings(self) -> tuple[object, ...]:
        return self.tree, self.kind, self.rule, self.expected is not None

    def _without_rounds(self) -> str:
        return f"no complete round and {self.censored_rounds.sum()} censored"
