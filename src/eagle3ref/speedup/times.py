"""What a round of speculative decoding spends its time on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eagle3ref.config import TreeConfig
from eagle3ref.speedup.span import Quantity, Span, positive, refuse

TermName = Literal["verify", "draft passes", "draft extend", "overhead", "not accounted for"]
TermSource = Literal["given", "assumed", "what remains"]


@dataclass(frozen=True)
class Term:
    """One part of a round.

    Args:
        name: which.
        ms: how long.
        excess_ms: how much of it a round without any cost of speculation would not have: all of it, but of the verify
            step only what it takes longer than a target step.
        source: given, assumed for want of a time, or what remains of a measured round.
    """

    name: TermName
    ms: float
    excess_ms: float
    source: TermSource


@dataclass(frozen=True)
class RoundTimes:
    """Times in milliseconds, all at one batch size and one context length.

    Args:
        target_step_ms: the target on one token a request: a decode step without speculation.
        verify_step_ms: the target on num_draft_tokens tokens a request. None: a target step, the least it can be.
        draft_pass_ms: one pass of the draft over topk rows a request; a round has num_steps - 1 of them. None: unknown.
        draft_extend_ms: the draft over the verified rows, which also gives the candidates of depth 1. None: a draft
            pass.
        overhead_ms: the rest: building the tree, sampling, launching kernels, scheduling. None: unknown.
        batch_size: requests decoded together.
        cuda_graph: whether the passes ran as graphs. None: unknown.

    Raises:
        Eagle3RefError: a time that is not a positive number (passes and overhead may be 0), or no positive batch size.
    """

    target_step_ms: Quantity
    verify_step_ms: float | None = None
    draft_pass_ms: float | None = None
    draft_extend_ms: float | None = None
    overhead_ms: float | None = None
    batch_size: int = 1
    cuda_graph: bool | None = None

    def __post_init__(self) -> None:
        positive("target_step_ms", self.target_step_ms)
        if self.verify_step_ms is not None:
            positive("verify_step_ms", self.verify_step_ms)
        for name in ("draft_pass_ms", "draft_extend_ms", "overhead_ms"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name), or_zero=True)
        check_batch_size(self.batch_size)

    @property
    def target_step(self) -> Span:
        """``target_step_ms`` with its bounds."""
        return Span.of(self.target_step_ms)

    def verify_ms(self, target_step: float) -> float:
        """The verify step, or a target step in its place."""
        return target_step if self.verify_step_ms is None else self.verify_step_ms

    def draft_ms(self, num_steps: int) -> float:
        """Draft passes and extend of a chain or tree of that depth; what is unknown counts as 0."""
        return (num_steps - 1) * (self.draft_pass_ms or 0.0) + self._extend_ms()

    def terms(self, tree: TreeConfig | None) -> tuple[Term, ...]:
        """The parts whose time is known or assumed, in the order of a round.

        Raises:
            Eagle3RefError: a draft pass has a time, and nothing says how many there are.
        """
        step = self.target_step.value
        verify = self.verify_ms(step)
        terms = [Term("verify", verify, verify - step, _source(self.verify_step_ms))]
        if self.draft_pass_ms is not None:
            if tree is None:
                refuse(
                    "a time for a draft pass, and no tree",
                    "num_steps, which says how many passes a round has",
                    "Give the tree settings (--num-steps, --topk, --num-draft-tokens), or the counts of a replay.",
                )
            passes = (tree.num_steps - 1) * self.draft_pass_ms
            terms.append(Term("draft passes", passes, passes, "given"))
        if self.draft_pass_ms is not None or self.draft_extend_ms is not None:
            terms.append(Term("draft extend", self._extend_ms(), self._extend_ms(), _source(self.draft_extend_ms)))
        if self.overhead_ms is not None:
            terms.append(Term("overhead", self.overhead_ms, self.overhead_ms, "given"))
        return tuple(terms)

    @property
    def unknown(self) -> tuple[TermName, ...]:
        """Parts of a round that have no time here."""
        no_pass = self.draft_pass_ms is None
        is_unknown: dict[TermName, bool] = {
            "draft passes": no_pass,
            "draft extend": no_pass and self.draft_extend_ms is None,
            "overhead": self.overhead_ms is None,
        }
        return tuple(name for name, unknown in is_unknown.items() if unknown)

    def _extend_ms(self) -> float:
        given = self.draft_pass_ms if self.draft_extend_ms is None else self.draft_extend_ms
        return 0.0 if given is None else given


def target_step_from(baseline_tokens_per_second: Quantity, batch_size: int = 1) -> Span:
    """Milliseconds of a target step, from a throughput without speculation: ``1000 * batch_size / baseline``.

    Raises:
        Eagle3RefError: a throughput that is not positive, or no positive batch size.
    """
    check_batch_size(batch_size)
    return Span.of(1000.0 * batch_size) / positive("the baseline in tokens/s", baseline_tokens_per_second)


def check_batch_size(batch_size: int) -> None:
    """Refuse what is no number of requests."""
    if type(batch_size) is not int or batch_size < 1:
        refuse(f"batch_size {batch_size!r}", "how many requests share a step, at least 1", "Correct it.")


def _source(given: float | None) -> TermSource:
    return "assumed" if given is None else "given"
