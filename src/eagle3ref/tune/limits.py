"""Which settings an engine would refuse, or run as something else, with these files and flags."""

from __future__ import annotations

from dataclasses import replace

from eagle3ref.config import TreeConfig
from eagle3ref.explain import Explanation, Trap
from eagle3ref.explain.trap import read_in
from eagle3ref.explain.traps import find_traps
from eagle3ref.explain.tree_settings import TreeSettings

_MOST_TOKENS = 1024  # SGLang's kernel that builds the tree runs one block of threads, a thread for each node


class EngineLimits:
    """What one engine says to a tree. ``limits(tree)`` is the trap that the tree runs into, or None.

    Args:
        explanation: of the engine with its files and its flags, among them attention backend and page size; whatever
            tree the flags make is put aside.
    """

    def __init__(self, explanation: Explanation) -> None:
        self.explanation = explanation
        self._of_any_tree = {trap.name for trap in self._traps(TreeConfig(1, 1, 2))}
        self._by_topk: dict[int, Trap | None] = {}

    def trap(self, tree: TreeConfig) -> Trap | None:
        """Why a server with this tree fails or does something else."""
        case = self.explanation.case
        if case.profile.engine == "SGLang" and tree.num_draft_tokens > _MOST_TOKENS:
            return Trap(
                "too-many-draft-tokens",
                "fails at first forward",
                f"num_draft_tokens {tree.num_draft_tokens} is more than {_MOST_TOKENS}",
                "a failed check in the kernel that builds the tree",
                f"Stay at {_MOST_TOKENS} or below.",
                read_in("SGLang", "kernels/jit/csrc/speculative/tree.cuh"),
            )
        if tree.topk not in self._by_topk:
            self._by_topk[tree.topk] = self._of_topk(tree)
        return self._by_topk[tree.topk]

    def refusal(self, tree: TreeConfig) -> str | None:
        """``trap`` in words."""
        found = self.trap(tree)
        return None if found is None else found.what

    def _of_topk(self, tree: TreeConfig) -> Trap | None:
        """Backends, pages and acceptance rules ask for topk, and for nothing else of a tree."""
        case = self.explanation.case
        if tree.topk > 1 and not case.profile.trees:
            return Trap(
                "no-trees",
                "fails at start",
                f"topk {tree.topk}: {case.profile.engine} has no trees",
                "there is no setting that asks for one",
                "Use topk 1.",
                case.source("trees"),
            )
        wrong = [trap for trap in self._traps(tree) if trap.name not in self._of_any_tree]
        return wrong[0] if wrong else None

    def _traps(self, tree: TreeConfig) -> list[Trap]:
        """At which a server with this tree fails, whatever tree the flags ask for."""
        wiring = replace(self.explanation.wiring, tree=TreeSettings(tree, str(tree), "tuned"))
        return [trap for trap in find_traps(wiring) if trap.severity.startswith("fails")]
