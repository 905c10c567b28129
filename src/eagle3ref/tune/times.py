"""What a round of every tree takes: times by number of tokens and of branches, interpolated and never extrapolated."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eagle3ref.config import TreeConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.speedup import Quantity, RoundTimes, Span
from eagle3ref.speedup.span import positive


@dataclass(frozen=True)
class TimeTable:
    """Milliseconds by size, linear in between.

    Args:
        points: (size, ms), at least one, ascending; a single point without a size (None) is the same time for all.

    Raises:
        Eagle3RefError: no point, a size twice or below 1, or a time that is not a number of 0 or more.
    """

    points: tuple[tuple[int | None, float], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", tuple(sorted(self.points, key=lambda point: point[0] or 0)))
        sizes = [size for size, _ in self.points]
        named = [size for size in sizes if size is not None]
        is_table = len(named) == len(sizes) and len(set(named)) == len(named) and min(named, default=0) >= 1
        if not (sizes == [None] or is_table) or not all(math.isfinite(ms) and ms >= 0 for _, ms in self.points):
            written = ",".join(f"{ms:g}" if size is None else f"{size}:{ms:g}" for size, ms in self.points)
            expected = "one time, or times by size, each size once: 8:12.5,16:13,64:19"
            raise _refusal(written or "no time", expected, "Correct the times.")

    @classmethod
    def parse(cls, text: str) -> TimeTable:
        """``"1.2"``, or ``"8:12.5,16:13,64:19"``.

        Raises:
            Eagle3RefError: anything else.
        """
        try:
            pairs = [part.rpartition(":") for part in text.split(",")]
            return cls(tuple((int(size) if colon else None, float(ms)) for size, colon, ms in pairs))
        except ValueError as error:
            expected = "milliseconds, or milliseconds by size: 8:12.5,16:13,64:19"
            raise _refusal(f"{text!r}", expected, "Correct the times.") from error

    def at(self, size: int, what: str) -> float:
        """Milliseconds at a size.

        Args:
            size: tokens or branches.
            what: these times, for the message.

        Raises:
            Eagle3RefError: below the smallest size of the table, or above the largest.
        """
        (first, ms), *_ = self.points
        if first is None:
            return ms
        largest = self.points[-1][0] or 0
        if not first <= size <= largest:
            action = f"Measure {what} at {size}, or tune smaller trees: times are not extrapolated."
            raise _refusal(f"{what} at {size}", f"a size from {first} to {largest}, which were measured", action)
        below = [(at or 0, ms) for at, ms in self.points if (at or 0) <= size][-1]
        above = [(at or 0, ms) for at, ms in self.points if (at or 0) >= size][0]
        share = 0.0 if above == below else (size - below[0]) / (above[0] - below[0])
        return below[1] + share * (above[1] - below[1])


@dataclass(frozen=True)
class StepTimes:
    """Times of the steps that rounds are made of, at one batch size and one context length; ``RoundTimes`` of any tree.

    Args:
        target_step_ms: the target on one token a request; also the verify step's time at 1 token.
        verify_ms: the target on N tokens a request, by N = ``num_draft_tokens``. Without sizes in between the time is
            a straight line from the target step.
        draft_pass_ms: one pass of the draft over ``topk`` rows a request, by topk.
        draft_extend_ms: the draft over the N verified rows, by N. None: a draft pass.
        overhead_ms: everything else in a round. None: unknown, counted as 0.
        batch_size: requests decoded together.

    Raises:
        Eagle3RefError: as ``RoundTimes``, for each verify time; or one time for verify steps of every size, with which
            more draft tokens would cost nothing.
    """

    target_step_ms: Quantity
    verify_ms: TimeTable
    draft_pass_ms: TimeTable
    draft_extend_ms: TimeTable | None = None
    overhead_ms: float | None = None
    batch_size: int = 1

    def __post_init__(self) -> None:
        positive("target_step_ms", self.target_step_ms)
        for _, ms in self.verify_ms.points:
            positive("verify_ms", ms)
        sizes = [size for size, _ in self.verify_ms.points]
        if sizes == [None]:
            action = "Write --verify-ms 64:15: between a target step (1 token) and it, times are interpolated."
            raise _refusal("one verify time for all sizes", "times by num_draft_tokens", action)
        if 1 not in sizes:
            step = (1, Span.of(self.target_step_ms).value)
            object.__setattr__(self, "verify_ms", TimeTable((step, *self.verify_ms.points)))
        self.round_times(TreeConfig(1, 1, 2))  # refuses what RoundTimes would

    def round_times(self, tree: TreeConfig) -> RoundTimes:
        """The times of a round of this tree.

        Raises:
            Eagle3RefError: a size that lies outside what was measured.
        """
        extend = self.draft_extend_ms
        return RoundTimes(
            self.target_step_ms,
            self.verify_ms.at(tree.num_draft_tokens, "the verify step"),
            self.draft_pass_ms.at(tree.topk, "a draft pass"),
            None if extend is None else extend.at(tree.num_draft_tokens, "the draft extend"),
            self.overhead_ms,
            self.batch_size,
        )

    def round_ms(self, tree: TreeConfig) -> float:
        """How long a round of this tree takes. Raises as ``round_times``."""
        return sum(term.ms for term in self.round_times(tree).terms(tree))

    @property
    def baseline_tokens_per_second(self) -> float:
        """The target alone, all requests together."""
        return 1000.0 * self.batch_size / Span.of(self.target_step_ms).value


def _refusal(found: str, expected: str, action: str) -> Eagle3RefError:
    return Eagle3RefError("reading times of steps", found=found, expected=expected, action=action)
