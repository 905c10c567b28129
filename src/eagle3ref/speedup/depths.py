"""Which depth of a chain is fastest, from the counts of one that is at least as deep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.config import TreeConfig
from eagle3ref.speedup.expected import Speedup, speedup
from eagle3ref.speedup.span import Span, refuse
from eagle3ref.speedup.times import RoundTimes
from eagle3ref.statistics import Interval, RatioOfSums, ratio_interval


@dataclass(frozen=True)
class ChainDepth:
    """A chain cut to ``num_steps``.

    Args:
        num_steps: its depth.
        expected: what it is worth.
        behind: how much slower than the fastest depth, tokens/s: difference of the same prompts, with its interval.
    """

    num_steps: int
    expected: Speedup
    behind: Interval

    @property
    def may_be_fastest(self) -> bool:
        """Whether the counts leave it open that no depth is faster."""
        return self.behind.low <= 0

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        spans = ("acceptance_length", "round_ms", "tokens_per_second", "speedup")
        return {
            "num_steps": self.num_steps,
            **{name: getattr(self.expected, name).to_dict() for name in spans},
            "tokens_per_second_behind": Span.of(self.behind).to_dict(),
            "may_be_fastest": self.may_be_fastest,
        }


def chain_depths(counts: AcceptanceCounts, times: RoundTimes) -> tuple[ChainDepth, ...]:
    """Every depth from 1 to that of the counted chain, deeper levels dropped: ``sum(min(c, depth))`` drafts are kept.

    The rounds stay where the counted chain put them, so this is an estimate for the shallower ones; replay with that
    ``num_steps`` for the number itself. Between a target step (1 token) and the given verify step (num_draft_tokens
    tokens) the verify time is interpolated linearly.

    Args:
        counts: of a chain.
        times: with a draft pass: without one, deeper would cost nothing and always be best.

    Raises:
        Eagle3RefError: counts of a tree, without a complete round, or no time for the draft pass.
    """
    if counts.tree.topk > 1:
        refuse(f"counts of tree {counts.tree}", "counts of a chain (topk 1)", "A tree of less depth is another tree.")
    if times.draft_pass_ms is None:
        refuse("no time for a draft pass", "one, to weigh a deeper chain", "Give --draft-pass-ms.")
    depths = range(1, counts.tree.num_steps + 1)
    kept = {depth: _length_at(counts, depth) for depth in depths}
    values = {
        depth: speedup(kept[depth].interval(), _times_at(counts.tree, times, depth), TreeConfig(depth, 1, depth + 1))
        for depth in depths
    }
    best = max(depths, key=lambda depth: values[depth].tokens_per_second.value)
    # tokens/s of a prompt's rounds: linear in its tokens, so a difference of depths is a ratio of sums again.
    speed = {d: 1000.0 * times.batch_size * kept[d].numerators / values[d].round_ms.value for d in depths}
    return tuple(
        ChainDepth(depth, values[depth], ratio_interval(speed[best] - speed[depth], counts.rounds)) for depth in depths
    )


def _length_at(counts: AcceptanceCounts, depth: int) -> RatioOfSums:
    tokens = counts.accepted_at[:, :depth].sum(axis=1) + counts.rounds
    return RatioOfSums("acceptance_length", "accepted_drafts + rounds", "rounds", tokens, counts.rounds)


def _times_at(tree: TreeConfig, times: RoundTimes, depth: int) -> RoundTimes:
    step = times.target_step.value
    verify = None if times.verify_step_ms is None else step + (times.verify_step_ms - step) * depth / tree.num_steps
    return replace(times, verify_step_ms=verify)
