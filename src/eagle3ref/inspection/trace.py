"""What a trace holds, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from eagle3ref.inspection.off_argmax import OffArgmax, OffArgmaxCount
from eagle3ref.trace import Trace, TraceHeader

_NGRAM = 4


@dataclass(frozen=True)
class TraceSummary:
    """The numbers of a trace.

    Args:
        path: its folder.
        header: what all sequences have in common.
        num_sequences: recorded prompts with their answers.
        prompt_tokens: of all prompts.
        generated_tokens: of all answers.
        longest: tokens of the longest sequence, prompt included.
        num_bytes: of the sequence files.
        off_argmax: the recorded tokens that are not the target's first choice.
        ngrams: windows of 4 generated tokens.
        distinct_ngrams: different ones, counted within each answer.
        has_final_hidden_state: every sequence can give the target's probabilities back.
    """

    path: Path
    header: TraceHeader
    num_sequences: int
    prompt_tokens: int
    generated_tokens: int
    longest: int
    num_bytes: int
    off_argmax: OffArgmax
    ngrams: int
    distinct_ngrams: int
    has_final_hidden_state: bool

    @property
    def distinct_ngram_share(self) -> float | None:
        """1 = no answer repeats itself, near 0 = loops; None when no answer is 4 tokens long."""
        return self.distinct_ngrams / self.ngrams if self.ngrams else None


def summarize_trace(trace: Trace) -> TraceSummary:
    """Read the tokens of every sequence; the states are only mapped.

    Raises:
        Eagle3RefError: a file that does not hold what header and manifest say.
    """
    ngrams = distinct = with_final = 0
    off_argmax = OffArgmaxCount(trace.header.sampling)
    for sequence in trace:
        off_argmax.add(sequence)
        total, different = _count_ngrams(sequence.answer)
        ngrams, distinct = ngrams + total, distinct + different
        with_final += sequence.final_hidden_state is not None
    entries = trace.entries
    prompt_tokens = sum(entry.prompt_length for entry in entries)
    return TraceSummary(
        path=trace.path,
        header=trace.header,
        num_sequences=len(trace),
        prompt_tokens=prompt_tokens,
        generated_tokens=trace.num_tokens - prompt_tokens,
        longest=max((entry.num_tokens for entry in entries), default=0),
        num_bytes=sum(entry.bytes for entry in entries),
        off_argmax=off_argmax.total(),
        ngrams=ngrams,
        distinct_ngrams=distinct,
        has_final_hidden_state=bool(entries) and with_final == len(entries),
    )


def _count_ngrams(answer: Tensor) -> tuple[int, int]:
    if len(answer) < _NGRAM:
        return 0, 0
    windows = answer.unfold(0, _NGRAM, 1)
    return len(windows), len(windows.unique(dim=0))
