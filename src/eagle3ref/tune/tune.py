"""From a trace and a draft to the whole surface: the draft runs once for each topk, whatever the number of settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagle3ref.config import AcceptanceRule, TreeConfig, default_rule
from eagle3ref.config.tree import TreeKV, num_candidates
from eagle3ref.draft import Eagle3Draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.positions import SequenceRanks, rank_positions
from eagle3ref.replay.replay import DEFAULT_BATCH_TOKENS
from eagle3ref.replay.rounds import kind_of
from eagle3ref.trace import Trace
from eagle3ref.tune.surface import Surface
from eagle3ref.tune.walk import Counts, walk_settings

_MOST_STEPS = 64
_MOST_SETTINGS = 10_000


def tune(
    trace: Trace,
    draft: Eagle3Draft,
    *,
    topks: Sequence[int] = (1,),
    max_num_steps: int,
    max_num_draft_tokens: int,
    tree_kv: TreeKV = "slot",
    rule: AcceptanceRule | None = None,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    on_sequence: Callable[[SequenceRanks], None] = lambda _: None,
) -> Surface:
    """Count what every setting would have had accepted on a trace: the integers of one ``replay`` for each of them.

    Candidates do not depend on num_draft_tokens, and those of depth <= s do not depend on num_steps. So the ranks of
    the true tokens at every position (``rank_positions``), taken once at the largest tree of a topk, answer all smaller
    ones, and their walks are integers.

    Args:
        trace: recorded at the draft's capture points.
        draft: on any device.
        topks: to try; 1 is a chain.
        max_num_steps: depths 1 to this one are tried.
        max_num_draft_tokens: trees of 2 to so many nodes are tried, the root counted; of a chain, those that it has.
        tree_kv: as in ``TreeConfig``.
        rule: as in ``replay``; only rules whose drafts are the draft's first choices.
        batch_tokens: bound on the memory.
        on_sequence: called for each sequence and topk as it is ranked.

    Raises:
        Eagle3RefError: no topk or one twice, settings that allow no tree, more than 64 steps or 10,000 settings, or as
            ``rank_positions``.
    """
    largest = [largest_tree(topk, max_num_steps, max_num_draft_tokens, tree_kv) for topk in topks]
    if not largest or len(set(topks)) < len(topks):
        raise Eagle3RefError(
            "tuning the draft tree",
            found=f"topk {', '.join(map(str, topks)) or 'of no value'}",
            expected="at least one, and each once",
            action="Write --topk 1,4,8.",
        )
    _check_size(largest)
    walked: dict[int, tuple[Counts, Counts]] = {}
    ranks: list[SequenceRanks] = []
    runs: tuple[NDArray[np.unsignedinteger[Any]], ...] = ()
    # What is refused of any topk is refused of the largest: before the work of the others.
    for tree in sorted(largest, key=lambda tree: tree.topk, reverse=True):
        ranks = rank_positions(trace, draft, tree, rule=rule, batch_tokens=batch_tokens, on_sequence=on_sequence)
        walked[tree.topk] = walk_settings(ranks, settings_within(tree))
        if tree.topk == 1:
            longest = [sequence.num_accepted(tree.num_steps, tree.num_draft_tokens) for sequence in ranks]
            runs = tuple(run.numpy().astype(np.min_scalar_type(tree.num_steps)) for run in longest)
    widest = max(tree.num_steps for tree in largest) + 1
    parts = [walked[topk] for topk in topks]
    padded = [np.pad(rounds, ((0, 0), (0, 0), (0, widest - rounds.shape[-1]))) for rounds, _ in parts]
    decided = rule or default_rule(trace.header.sampling.temperature)
    return Surface(
        settings=tuple(setting for tree in largest for setting in settings_within(tree)),
        prompt_ids=trace.ids,
        histogram=np.concatenate(padded),
        censored_rounds=np.concatenate([censored for _, censored in parts]),
        off_argmax_tokens=np.array([sequence.off_argmax_tokens or 0 for sequence in ranks]),
        recorded_tokens=np.array([sequence.recorded_tokens for sequence in ranks]),
        kind=kind_of(decided, ranks),
        rule=decided,
        chain_runs=runs,
    )


def largest_tree(topk: int, max_num_steps: int, max_num_draft_tokens: int, tree_kv: TreeKV = "slot") -> TreeConfig:
    """The setting that contains all others of a topk.

    Raises:
        Eagle3RefError: there is none.
    """
    if topk == 1:
        steps = min(max_num_steps, max_num_draft_tokens - 1)
        return TreeConfig(steps, 1, steps + 1, tree_kv)
    most = num_candidates(max_num_steps, topk) + 1 if min(topk, max_num_steps) >= 1 else max_num_draft_tokens
    return TreeConfig(max_num_steps, topk, min(max_num_draft_tokens, most), tree_kv)


def _check_size(largest: Sequence[TreeConfig]) -> None:
    """A rank table grows with num_steps squared, and comparing all with all with the settings squared."""
    deepest = max(tree.num_steps for tree in largest)
    count = sum(
        len(_widths(tree, steps)) for tree in largest for steps in range(1, min(tree.num_steps, _MOST_STEPS) + 1)
    )
    if deepest > _MOST_STEPS or count > _MOST_SETTINGS:
        raise Eagle3RefError(
            "tuning the draft tree",
            found=f"{deepest:,} steps" if deepest > _MOST_STEPS else f"{count:,} settings",
            expected=f"at most {_MOST_STEPS} steps and {_MOST_SETTINGS:,} settings",
            action="Lower --max-num-steps or --max-num-draft-tokens, or tune fewer topk at a time.",
        )


def settings_within(tree: TreeConfig) -> list[TreeConfig]:
    """Every setting of the same topk with at most its num_steps and num_draft_tokens."""
    depths = range(1, tree.num_steps + 1)
    return [TreeConfig(steps, tree.topk, width, tree.tree_kv) for steps in depths for width in _widths(tree, steps)]


def _widths(tree: TreeConfig, steps: int) -> range:
    """The num_draft_tokens of these settings at one depth."""
    if tree.topk == 1:
        return range(steps + 1, steps + 2)
    return range(2, min(tree.num_draft_tokens, num_candidates(steps, tree.topk) + 1) + 1)
