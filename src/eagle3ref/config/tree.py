"""The shape of the draft tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eagle3ref.errors import Eagle3RefError

TreeKV = Literal["slot", "ancestor"]


def num_candidates(num_steps: int, topk: int) -> int:
    """Candidates that the draft loop makes: ``topk + (num_steps - 1) * topk**2``."""
    return topk + (num_steps - 1) * topk**2


@dataclass(frozen=True)
class TreeConfig:
    """The shape of the draft tree, in SGLang's terms.

    Args:
        num_steps: depth of the tree, ``--speculative-num-steps``.
        topk: children kept per beam, ``--speculative-eagle-topk``. 1 is a chain.
        num_draft_tokens: nodes verified per round *including the root*, ``--speculative-num-draft-tokens``.
        tree_kv: which earlier tree rows a draft row attends to when ``topk > 1``. ``"slot"`` is what SGLang
            0.5.23 does (the rows of its own branch slot, whoever the parent was); ``"ancestor"`` is the true path.

    Raises:
        Eagle3RefError: a count is not a positive integer, a chain whose ``num_draft_tokens`` is not ``num_steps + 1``,
            or more ``num_draft_tokens`` than the draft loop makes candidates for.
    """

    num_steps: int
    topk: int
    num_draft_tokens: int
    tree_kv: TreeKV = "slot"

    def __post_init__(self) -> None:
        if any(type(count) is not int for count in (self.num_steps, self.topk, self.num_draft_tokens)):
            self._refuse("three integers", "Write them without quotes or decimals.")
        if min(self.num_steps, self.topk) < 1 or self.num_draft_tokens < 2:
            self._refuse("num_steps >= 1, topk >= 1, num_draft_tokens >= 2", "Raise the setting that is too small.")
        if self.tree_kv not in ("slot", "ancestor"):
            self._refuse("tree_kv 'slot' (SGLang) or 'ancestor' (true path)", "Choose one of the two.")
        if self.topk == 1 and self.num_draft_tokens != self.num_steps + 1:
            self._refuse(
                f"num_draft_tokens = num_steps + 1 = {self.num_steps + 1} for a chain (topk 1)",
                f"SGLang would silently run {self.num_steps}/1/{self.num_steps + 1} instead; "
                "ask for that if it is what you want.",
            )
        if self.num_draft_tokens > self.num_candidates + 1:
            self._refuse(
                f"at most {self.num_candidates + 1}: the root and topk + (num_steps - 1) * topk^2 = "
                f"{self.num_candidates} candidates",
                f"Use num_draft_tokens {self.num_candidates + 1} or less, or raise topk or num_steps.",
            )

    @property
    def num_candidates(self) -> int:
        """Candidates that the draft loop makes."""
        return num_candidates(self.num_steps, self.topk)

    def __str__(self) -> str:
        return f"{self.num_steps}/{self.topk}/{self.num_draft_tokens}"

    def _refuse(self, expected: str, action: str) -> None:
        found = f"num_steps/topk/num_draft_tokens = {self} with tree_kv {self.tree_kv!r}"
        raise Eagle3RefError("reading the tree settings", found=found, expected=expected, action=action)
