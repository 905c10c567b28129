"""From the counts on a command line to the tree that an engine runs."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3ref.config import TreeConfig
from eagle3ref.config.tree import num_candidates
from eagle3ref.engines import EngineProfile
from eagle3ref.explain.flags import ServerFlags

_ADAPTIVE_START = 3  # the middle one of SGLang's candidate steps, if no --speculative-adaptive-config has others


@dataclass(frozen=True)
class TreeSettings:
    """What became of the three counts.

    Args:
        tree: what runs; None if the server does not come that far.
        asked: as typed, ``num_steps/topk/num_draft_tokens``, with ``-`` for what was not said; "" if nothing was.
        how: where the settings come from, in words.
        problem: why nothing runs, in the engine's own terms; "" if something does.
        starts: False if that problem shows at start and not at the first draft.
    """

    tree: TreeConfig | None
    asked: str
    how: str
    problem: str = ""
    starts: bool = True


def resolve_tree(profile: EngineProfile, flags: ServerFlags, architecture: str) -> TreeSettings:
    """The tree that the engine runs for these flags.

    Args:
        profile: of the engine's version.
        flags: as typed.
        architecture: of the target, which chooses the defaults.
    """
    steps, topk, width = flags.num_steps, flags.topk, flags.num_draft_tokens
    asked = _listed(steps, topk, width)
    if not profile.trees:
        return _chain(profile, steps, asked)
    if flags.adaptive and topk in (None, 1):  # with another topk it is switched off
        return _adaptive(profile, steps, asked)
    if steps is None:
        if topk is not None or width is not None:
            return _refused(asked, "num_steps is missing: AssertionError, without a message")
        defaults = profile.default_trees
        chosen = defaults.get(architecture, defaults.get("*"))
        if chosen is None:
            return TreeSettings(None, asked, "no flags, and the engine's defaults are not established")
        return TreeSettings(_tree(profile, *chosen), asked, f"the engine's default for {architecture or 'this target'}")
    if topk is None:
        return _refused(asked, "topk is missing: TypeError, None is compared with a number")
    if topk == 1 and profile.forces_chain_width and width != steps + 1:
        how = "as asked" if width is None else f"{asked} was asked for; a chain always has num_steps + 1"
        return _checked(profile, (steps, topk, steps + 1), asked, how)
    if width is None:
        return _refused(asked, "num_draft_tokens is missing: TypeError, None is used as a number")
    return _checked(profile, (steps, topk, width), asked, "as asked")


def _chain(profile: EngineProfile, steps: int | None, asked: str) -> TreeSettings:
    """An engine without trees: k speculative tokens are a chain of k steps."""
    if steps is None:
        return TreeSettings(None, asked, "the number of speculative tokens was not given")
    return _checked(profile, (steps, 1, steps + 1), asked, f"a chain of {steps} speculative tokens")


def _adaptive(profile: EngineProfile, steps: int | None, asked: str) -> TreeSettings:
    """SGLang 0.5.23, srt/arg_groups/speculative_hook.py: nothing is asserted, and the width follows the steps."""
    start = _ADAPTIVE_START if steps is None else steps
    return _checked(profile, (start, 1, start + 1), asked, "where --speculative-adaptive starts")


def _checked(profile: EngineProfile, counts: tuple[int, int, int], asked: str, how: str) -> TreeSettings:
    steps, topk, width = counts
    if min(steps, topk) < 1 or width < 2:
        return _refused(asked, "a count below 1: there is nothing to draft")
    candidates = num_candidates(steps, topk)
    if width > candidates + 1:
        problem = f"num_draft_tokens {width} is more than the root and {candidates} candidates"
        return TreeSettings(None, asked, how, problem)
    return TreeSettings(_tree(profile, *counts), asked, how)


def _tree(profile: EngineProfile, steps: int, topk: int, width: int) -> TreeConfig:
    return TreeConfig(steps, topk, width, profile.tree_kv or "ancestor")


def _refused(asked: str, problem: str) -> TreeSettings:
    return TreeSettings(None, asked, "as asked", problem, starts=False)


def _listed(*counts: int | None) -> str:
    return "" if counts == (None, None, None) else "/".join("-" if count is None else str(count) for count in counts)
