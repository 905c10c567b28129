"""The inverse: from a measured throughput and an acceptance length to the time of a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle3ref.speedup.span import Quantity, Span, Verdict, length_span, positive
from eagle3ref.speedup.times import check_batch_size, target_step_from

GRAPHS_OFF = (
    "CUDA graphs are off: each pass of target and draft launches its kernels one by one from the CPU, and a round has "
    "num_steps + 1 passes. Suspect this first: turn graphs on and measure both throughputs again."
)


@dataclass(frozen=True)
class MeasuredRound:
    """What a round takes, by the clock.

    Args:
        acceptance_length: tokens a round and request, bonus counted.
        tokens_per_second: measured with speculation, of all requests together.
        round_ms: ``1000 * batch_size * acceptance_length / tokens_per_second``.
        baseline_tokens_per_second: measured without speculation; None if it was not.
        batch_size: requests that shared each step, with speculation and without.
        cuda_graph: whether the steps ran as graphs; None if unknown.
    """

    acceptance_length: Span
    tokens_per_second: Span
    round_ms: Span
    baseline_tokens_per_second: Span | None
    batch_size: int
    cuda_graph: bool | None

    @property
    def target_step_ms(self) -> Span | None:
        """A step without speculation, ``1000 * batch_size / baseline``; None without a baseline."""
        baseline = self.baseline_tokens_per_second
        return None if baseline is None else target_step_from(baseline, self.batch_size)

    @property
    def break_even(self) -> Span | None:
        """The round in target steps: the acceptance length at which speculation neither gains nor loses."""
        return None if self.target_step_ms is None else self.round_ms / self.target_step_ms

    @property
    def speedup(self) -> Span | None:
        """Throughput with speculation over throughput without; the acceptance length is not in it."""
        baseline = self.baseline_tokens_per_second
        return None if baseline is None else self.tokens_per_second / baseline

    @property
    def verdict(self) -> Verdict | None:
        """None without a baseline."""
        return None if self.speedup is None else self.speedup.verdict()

    @property
    def sentences(self) -> tuple[str, ...]:
        """What follows from the numbers, for people."""
        graphs = (GRAPHS_OFF,) if self.cuda_graph is False and self.verdict != "gains" else ()
        if self.break_even is None or self.speedup is None:
            return f"One round takes {self.round_ms.value:.1f} ms.", *graphs
        length, steps = self.acceptance_length.value, self.break_even.value
        if self.break_even.high < 1:
            return (
                f"A round would take {steps:.2f} target steps, and none is shorter than one: the two throughputs are "
                "not of one batch size and context length, or the length is not of these rounds.",
            )
        return (
            f"One round takes {self.round_ms.value:.1f} ms, as long as {steps:.2f} target steps. Below {steps:.2f} "
            f"tokens a round speculation loses; this one commits {length:.2f}: {self.speedup.value:.2f} times the "
            "speed without.",
            *graphs,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; what is unknown is null."""
        spans = ("acceptance_length", "tokens_per_second", "round_ms", "baseline_tokens_per_second", "target_step_ms")
        found = {name: getattr(self, name) for name in (*spans, "break_even", "speedup")}
        return {
            **{name: None if span is None else span.to_dict() for name, span in found.items()},
            "batch_size": self.batch_size,
            "cuda_graph": self.cuda_graph,
            "verdict": self.verdict,
            "sentences": list(self.sentences),
        }


def measured_round(
    acceptance_length: Quantity,
    tokens_per_second: Quantity,
    *,
    baseline_tokens_per_second: Quantity | None = None,
    batch_size: int = 1,
    num_steps: int | None = None,
    cuda_graph: bool | None = None,
) -> MeasuredRound:
    """How long a round takes, and what length it would need, from what a server prints.

    Take the throughput of the decode phase: with the prefill in it, a round looks longer than it is.

    Args:
        acceptance_length: bonus counted; a printed number (``Rounded``) or an interval keeps its bounds.
        tokens_per_second: of all requests together, e.g. SGLang's ``gen throughput``.
        baseline_tokens_per_second: the same without speculation, at the same batch size and context length.
        batch_size: requests that shared each step.
        num_steps: depth of the tree; checks the length.
        cuda_graph: whether the steps ran as graphs.

    Raises:
        Eagle3RefError: a length that cannot be, a throughput that is not positive, or no positive batch size.
    """
    check_batch_size(batch_size)
    length = length_span(acceptance_length, num_steps)
    speed = positive("the throughput in tokens/s", tokens_per_second)
    baseline = None
    if baseline_tokens_per_second is not None:
        baseline = positive("the baseline in tokens/s", baseline_tokens_per_second)
    return MeasuredRound(length, speed, length * (1000.0 * batch_size) / speed, baseline, batch_size, cuda_graph)
