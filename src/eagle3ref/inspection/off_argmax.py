"""Do the recorded answers look like the target's own? How far its first choices lie above the recorded tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3ref.trace import RecordedSampling, RecordedSequence

# Measured on the nano pair, 48 greedy answers of 48 tokens. Rounding alone (answers in fp32 and the record in bf16, or
# the other way) puts 0.5 to 0.9 % of the tokens off the argmax, by 0.47 at most. Answers of its all-INT4 copy: 4.4 %,
# by 1.6 at most; of weights with 3 % noise: 3.2 %, 0.6; to prompts that are cut or added to by a few tokens, as by
# another template: at least 3.6 %, 4.6. Its own answers of 2,000 tokens, all in bf16: 1.7 % (of one answer 2.2 %), 1.5.
_OWN_SHARE = 0.03
_OWN_GAP = 3.0
_FEWEST = 3  # tokens: fewer are no share
# Sampled at temperature t the mean gap is at most t times the entropy. On the nano pair it is 0.2 t to 2.1 t, for t
# from 0.3 to 1.3; random tokens give 10.
_SAMPLED_GAP = 4.0
_WORST = 3


@dataclass(frozen=True)
class OffArgmaxSequence:
    """Of one sequence: tokens off the argmax, all generated tokens, and the largest gap if gaps are recorded."""

    id: str
    tokens: int
    generated_tokens: int
    largest_gap: float | None

    @property
    def share(self) -> float:
        """Of its generated tokens."""
        return self.tokens / self.generated_tokens


@dataclass(frozen=True)
class OffArgmax:
    """Recorded tokens that are not the target's first choice.

    Args:
        judged_tokens: generated tokens of sequences with a recorded argmax.
        tokens: those of them that are not the argmax.
        median_gap: log p(argmax) - log p(token) of those, natural logarithm; None if none was recorded.
        largest_gap: likewise.
        worst: the sequences with the largest share of them.
        verdict: one sentence, when the answers do not look like the target's own.
    """

    judged_tokens: int
    tokens: int
    median_gap: float | None
    largest_gap: float | None
    worst: tuple[OffArgmaxSequence, ...]
    verdict: str | None

    @property
    def share(self) -> float | None:
        """Of the judged tokens; None when no argmax is recorded."""
        return self.tokens / self.judged_tokens if self.judged_tokens else None


class OffArgmaxCount:
    """Adds up the sequences of a trace, one at a time.

    Args:
        sampling: how the answers were chosen, by the trace's header.
    """

    def __init__(self, sampling: RecordedSampling) -> None:
        self._temperature = sampling.temperature
        self._judged = self._off = self._with_gap = 0
        self._gaps: list[Tensor] = []
        self._sequences: list[OffArgmaxSequence] = []

    def add(self, sequence: RecordedSequence) -> None:
        """Count the generated tokens of a sequence, if its argmax is recorded."""
        off, gaps = sequence.off_argmax_tokens, sequence.off_argmax_gaps
        if off is None:
            return
        self._judged, self._off = self._judged + len(sequence.answer), self._off + off
        if gaps is not None:
            self._gaps.append(gaps.clone())  # not a view of the file
            self._with_gap += len(sequence.answer)
        largest = None if gaps is None or not len(gaps) else float(gaps.max())
        if off:
            self._sequences.append(OffArgmaxSequence(sequence.id, off, len(sequence.answer), largest))

    def total(self) -> OffArgmax:
        """Of all sequences added."""
        gaps = torch.cat(self._gaps) if self._gaps else torch.empty(0)
        largest = float(gaps.max()) if len(gaps) else None
        worst = sorted(self._sequences, key=lambda found: found.share, reverse=True)[:_WORST]
        return OffArgmax(
            judged_tokens=self._judged,
            tokens=self._off,
            median_gap=float(gaps.median()) if len(gaps) else None,
            largest_gap=largest,
            worst=tuple(worst),
            verdict=self._sampled_verdict(gaps) if self._temperature > 0 else self._greedy_verdict(largest),
        )

    def _greedy_verdict(self, largest: float | None) -> str | None:
        many = self._off >= _FEWEST and self._off > _OWN_SHARE * self._judged
        far = largest is not None and largest > _OWN_GAP
        if not (many or far):
            return None
        share = f"{100 * self._off / self._judged:.1f} % of their tokens are not its first choice"
        gap = "" if largest is None else f", the farthest by {largest:.1f} nats"
        return (
            f"These do not look like this target's own greedy answers: {share}{gap}, where rounding explains about 2 % "
            f"and 2 nats; they may be another model's, chat template's or quantization's, or sampled."
        )

    def _sampled_verdict(self, gaps: Tensor) -> str | None:
        if not self._with_gap:
            return None
        mean = float(gaps.sum()) / self._with_gap
        if mean <= _SAMPLED_GAP * self._temperature:
            return None
        return (
            f"These do not look like this target's own answers at temperature {self._temperature}: its first choices "
            f"are likelier than the recorded tokens by {mean:.1f} nats on average, where at most "
            f"{_SAMPLED_GAP * self._temperature:.1f} is plausible; they may be another model's or chat template's, or "
            "sampled at a higher temperature."
        )
