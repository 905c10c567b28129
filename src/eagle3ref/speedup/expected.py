"""From acceptance and times to tokens per second, the break-even length, and the term that is to blame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.config import TreeConfig
from eagle3ref.speedup.measured import GRAPHS_OFF
from eagle3ref.speedup.rate import rate_for_length
from eagle3ref.speedup.span import Quantity, Span, Verdict, length_span, positive, refuse
from eagle3ref.speedup.times import RoundTimes, Term, TermName

# What makes a term that dominates smaller.
REMEDIES: dict[TermName, str] = {
    "verify": "Fewer num_draft_tokens make the verify step cheaper. It should take little longer than a target step "
    "while reading the weights is what takes the time; a large batch, experts that only the drafts touch, and a long "
    "context end that.",
    "draft passes": "The passes run one after another: fewer num_steps, or a draft with a shorter pass. A pass of one "
    "layer that takes a large part of a target step is waiting for kernel launches, not computing.",
    "draft extend": "The draft reads every verified row after each round: fewer num_draft_tokens.",
    "overhead": "Nothing of this is a model: look for steps that run without a CUDA graph, for synchronization with "
    "the CPU between the passes, and for overlap scheduling that is switched off.",
    "not accounted for": "The given times do not explain it. Measure the draft pass and the verify step alone; what "
    "then remains is launching, synchronizing and scheduling.",
}


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """What a draft's acceptance is worth on given times; measured where a throughput was measured.

    Args:
        acceptance_length: tokens a round and request, bonus counted.
        times: that were given.
        tree: of the rounds; None if unknown.
        terms: the parts of a round, largest excess is what to work on.
        round_ms: their sum, or as measured.
        break_even: the round in target steps: the acceptance length at which speculation neither gains nor loses.
        tokens_per_second: of all requests together.
        speedup: over the target alone at the same batch size.
        is_measured: whether the round was timed as a whole.
    """

    acceptance_length: Span
    times: RoundTimes
    tree: TreeConfig | None
    terms: tuple[Term, ...]
    round_ms: Span
    break_even: Span
    tokens_per_second: Span
    speedup: Span
    is_measured: bool

    @property
    def baseline_tokens_per_second(self) -> Span:
        """The target alone, all requests together."""
        return Span.of(1000.0 * self.times.batch_size) / self.times.target_step

    @property
    def verdict(self) -> Verdict:
        """Whether speculation is faster than the target alone."""
        return self.speedup.verdict()

    @property
    def problem(self) -> Term | None:
        """The term with the largest excess; None if no term has one."""
        worst = max(self.terms, key=lambda term: term.excess_ms)
        return worst if worst.excess_ms > 0 else None

    @property
    def needed_rate(self) -> float | None:
        """The conditional acceptance rate, one for all depths, that gives the break-even length; None: none does."""
        return None if self.tree is None else rate_for_length(self.break_even.value, self.tree.num_steps)

    @property
    def parts_exceed_round(self) -> bool:
        """Whether the known times add up to more than a measured round took, so that they are not of this round."""
        return self.is_measured and sum(term.ms for term in self.terms if term.source != "what remains") > (
            self.round_ms.high
        )

    def without(self, term: Term) -> float | None:
        """The speed-up if this term had no excess; None if the times are not of this round."""
        if self.parts_exceed_round:
            return None
        return self.acceptance_length.value * self.times.target_step.value / (self.round_ms.value - term.excess_ms)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What follows from the numbers, for people, most important first."""
        return tuple(filter(None, (self._worth(), self._graphs(), self._blame(), self._needs(), *self._caveats())))

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; what is unknown is null."""
        spans = ("acceptance_length", "round_ms", "break_even", "baseline_tokens_per_second", "tokens_per_second")
        problem = self.problem
        return {
            "verdict": self.verdict,
            **{name: getattr(self, name).to_dict() for name in (*spans, "speedup")},
            "target_step_ms": self.times.target_step.to_dict(),
            "batch_size": self.times.batch_size,
            "cuda_graph": self.times.cuda_graph,
            "tree": None if self.tree is None else str(self.tree),
            "is_measured": self.is_measured,
            "terms": [
                {
                    "name": term.name,
                    "ms": term.ms,
                    "share": term.ms / self.round_ms.value,
                    "excess_ms": term.excess_ms,
                    "speedup_without_excess": self.without(term),
                    "source": term.source,
                }
                for term in self.terms
            ],
            "problem": None if problem is None else problem.name,
            "needed_conditional_rate": self.needed_rate,
            "sentences": list(self.sentences),
        }

    def _worth(self) -> str:
        steps = f"{self.break_even.value:.2f}"
        return (
            f"A round takes {self.round_ms.value:.1f} ms, as long as {steps} target steps: below {steps} tokens a "
            f"round speculation loses. It commits {self.acceptance_length.value:.2f}: {self.speedup.value:.2f} times "
            "the speed without."
        )

    def _blame(self) -> str:
        problem = self.problem
        if problem is None or (without := self.without(problem)) is None:
            return ""
        beyond = self.round_ms.value - self.times.target_step.value
        what = (
            f"the largest part is {problem.name}" if problem.source != "what remains" else "most is not accounted for"
        )
        return (
            f"Of the {beyond:.1f} ms beyond a target step, {what}: {problem.excess_ms:.1f} ms. Without them the "
            f"speed-up would be {without:.2f}. {REMEDIES[problem.name]}"
        )

    def _graphs(self) -> str:
        return GRAPHS_OFF if self.times.cuda_graph is False and self.verdict != "gains" else ""

    def _needs(self) -> str:
        if self.tree is None or self.verdict == "gains" or self.break_even.value < 1:
            return ""
        most, rate = self.tree.num_steps + 1, self.needed_rate
        if rate is None:
            return f"No acceptance pays for this round: {self.tree} commits at most {most} tokens. Shorten the round."
        return f"To break even, each depth would have to keep {100 * rate:.0f} % of the drafts that reach it."

    def _caveats(self) -> list[str]:
        found = []
        if self.parts_exceed_round:
            found.append(
                "The times of the parts add up to more than the measured round: the throughputs and the times are not "
                "of one batch size and context length, the length is not of these rounds, or the parts overlap."
            )
        if not self.is_measured and self.times.unknown:
            found.append(
                f"No time was given for {', '.join(self.times.unknown)}: counted as 0, so this is the most to hope for."
            )
        if self.times.verify_step_ms is None:
            found.append("No time was given for the verify step: taken as a target step, the least it can be.")
        return found


def speedup(
    acceptance: Quantity | AcceptanceCounts,
    times: RoundTimes,
    tree: TreeConfig | None = None,
    *,
    tokens_per_second: Quantity | None = None,
) -> Speedup:
    """What acceptance is worth.

    ``tokens/s = 1000 * batch_size * length / round_ms``, with ``round_ms = verify + (num_steps - 1) * draft pass +
    draft extend + overhead``, and ``speed-up = length * target step / round``. With a verify step as long as a target
    step, an extend as long as a pass, no overhead and one rate for all depths, this is Theorem 3.8 of Leviathan,
    Kalman and Matias 2023 (arXiv 2211.17192).

    Args:
        acceptance: counts of a replay, whose interval goes through; or a length, bonus counted.
        times: of a round.
        tree: of the rounds; that of the counts if there are any.
        tokens_per_second: as measured with speculation, of all requests together. The round is then as long as the
            clock says, and what the times do not explain becomes a term.

    Raises:
        Eagle3RefError: a length or a throughput that cannot be, counts without a complete round, a draft pass without
            a tree, or another tree than that of the counts.
    """
    quantity, tree = _length_and_tree(acceptance, tree)
    length = length_span(quantity, None if tree is None else tree.num_steps)
    terms, step = times.terms(tree), times.target_step
    if tokens_per_second is None:
        beyond_verify = sum(term.ms for term in terms[1:])
        rounds = [times.verify_ms(ms) + beyond_verify for ms in (step.value, step.low, step.high)]
        round_ms = Span(*rounds)
        # The step is in the round too where the verify step is assumed: both ends belong to one and the same step.
        break_even = Span(rounds[0] / step.value, rounds[2] / step.high, rounds[1] / step.low)
        speed, gain = length * (1000.0 * times.batch_size) / round_ms, length / break_even
    else:
        speed = positive("the throughput in tokens/s", tokens_per_second)
        round_ms = length * (1000.0 * times.batch_size) / speed
        break_even, gain = round_ms / step, speed / (Span.of(1000.0 * times.batch_size) / step)
        remainder = round_ms.value - sum(term.ms for term in terms)
        terms += (Term("not accounted for", remainder, remainder, "what remains"),) if remainder > 0 else ()
    return Speedup(
        acceptance_length=length,
        times=times,
        tree=tree,
        terms=terms,
        round_ms=round_ms,
        break_even=break_even,
        tokens_per_second=speed,
        speedup=gain,
        is_measured=tokens_per_second is not None,
    )


def _length_and_tree(
    acceptance: Quantity | AcceptanceCounts, tree: TreeConfig | None
) -> tuple[Quantity, TreeConfig | None]:
    if not isinstance(acceptance, AcceptanceCounts):
        return acceptance, tree
    if tree is not None and tree != acceptance.tree:
        refuse(f"counts of {acceptance.tree} and tree {tree}", "one tree", "Leave the tree out: the counts have one.")
    return acceptance.interval("acceptance_length"), acceptance.tree
