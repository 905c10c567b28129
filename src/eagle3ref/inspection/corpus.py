"""A corpus of target tokens, and the ceiling that the draft's vocabulary puts on acceptance there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.inspection.finding import Finding
from eagle3ref.statistics import RatioOfSums
from eagle3ref.trace import Trace, read_prompts
from eagle3ref.trace.format import HEADER_FILE

_DEPTHS = (1, 3, 5, 7)
_LISTED = 5
_MUCH_OUTSIDE = 0.1


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens that a target wrote or read.

    Args:
        source: what they are.
        answers: int64, of each sequence, the tokens that a draft would have to propose.
        texts: int64, of each sequence, all tokens: those that a draft's embedding is asked for.
        trace: where they come from, if from a trace.
    """

    source: str
    answers: tuple[Tensor, ...]
    texts: tuple[Tensor, ...]
    trace: Trace | None = None

    @classmethod
    def read(cls, path: str | Path, tokenizer_folder: str | Path) -> Corpus:
        """A trace folder, or a JSONL file as ``capture`` reads it.

        Args:
            path: of the corpus. Of a file, ``answer_tokens`` count; where there are none, the whole texts do.
            tokenizer_folder: for texts and messages.

        Raises:
            Eagle3RefError: an unreadable trace or file, or one without tokens to count.
        """
        if (Path(path) / HEADER_FILE).is_file():
            trace = Trace.open(path)
            sequences = [(sequence.answer, sequence.tokens) for sequence in trace]
            source = "generated tokens of the trace"
        else:
            trace, source = None, "tokens of the file"
            prompts = read_prompts(path, tokenizer_folder)[0]
            answered = [prompt for prompt in prompts if prompt.answer is not None]
            sequences = [
                (prompt.tokens if prompt.answer is None else prompt.answer, _joined(prompt.tokens, prompt.answer))
                for prompt in answered or prompts
            ]
            source = "answer tokens of the file" if answered else "tokens of the file, which has no answers"
        if not sequences:
            raise Eagle3RefError(
                f"reading the corpus {path}",
                found="no sequence",
                expected="tokens to count",
                action="Capture some answers first.",
            )
        answers, texts = zip(*sequences, strict=True)
        return cls(source, answers, texts, trace)


@dataclass(frozen=True, eq=False)
class Coverage:
    """How much of a corpus a draft can propose at all.

    Args:
        source: of the corpus.
        outside: tokens that are not in the draft's vocabulary, over all, by sequence.
        missing: the commonest of them, (token, count).
        ceilings: depth -> the acceptance length of a draft that is never wrong within its vocabulary, a chain or tree
            of that depth: the most that any draft with this vocabulary reaches on this corpus. Empty for short answers.
        unused_rows: draft tokens that do not occur as a token to propose.
        num_rows: draft tokens.
        unused_embeddings: target tokens that do not occur at all.
        best_outside: share outside the vocabulary of the same size that suits this corpus best.
    """

    source: str
    outside: RatioOfSums
    missing: tuple[tuple[int, int], ...]
    ceilings: dict[int, RatioOfSums]
    unused_rows: int
    num_rows: int
    unused_embeddings: int
    best_outside: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "source": self.source,
            "outside": self.outside.to_dict(),
            "missing": [{"token": token, "count": count} for token, count in self.missing],
            "ceilings": {str(depth): ratio.to_dict() for depth, ratio in self.ceilings.items()},
            "unused_rows": self.unused_rows,
            "num_rows": self.num_rows,
            "unused_embeddings": self.unused_embeddings,
            "best_outside": self.best_outside,
        }


def measure_coverage(corpus: Corpus, ids: Tensor, vocab_size: int) -> Coverage:
    """Count a corpus against a draft's vocabulary.

    Args:
        corpus: of target tokens.
        ids: int64 [Vd], the draft's vocabulary.
        vocab_size: V.

    Raises:
        Eagle3RefError: a token outside the target's vocabulary.
    """
    seen = torch.zeros(vocab_size, dtype=torch.int64)
    wanted = torch.zeros(vocab_size, dtype=torch.int64)
    for answer, text in zip(corpus.answers, corpus.texts, strict=True):
        _check_ids(text, vocab_size)
        seen += text.bincount(minlength=vocab_size)
        wanted += answer.bincount(minlength=vocab_size)
    inside = torch.zeros(vocab_size, dtype=torch.bool)
    inside[ids] = True
    covered = [inside[answer].tolist() for answer in corpus.answers]
    lengths = np.array([len(answer) for answer in covered])
    misses = np.array([len(answer) - sum(answer) for answer in covered])
    outside = RatioOfSums("outside", "tokens outside the draft's vocabulary", "tokens", misses, lengths)
    lost = wanted.where(~inside, 0)
    common = lost.argsort(descending=True, stable=True)[:_LISTED].tolist()
    best = int(wanted.sort(descending=True).values[len(ids) :].sum())
    return Coverage(
        source=corpus.source,
        outside=outside,
        missing=tuple((token, int(lost[token])) for token in common if lost[token]),
        ceilings={depth: ratio for depth in _DEPTHS if (ratio := ceiling(covered, depth)).denominators.any()},
        unused_rows=int((wanted[ids] == 0).sum()),
        num_rows=len(ids),
        unused_embeddings=int((seen == 0).sum()),
        best_outside=best / int(wanted.sum()),
    )


def ceiling(covered: list[list[bool]], num_steps: int) -> RatioOfSums:
    """The acceptance length of a draft that proposes every token of its vocabulary right.

    From a root, it keeps drafts up to the first token that it does not know or to ``num_steps``; the next token is the
    target's own. No other draft with this vocabulary needs fewer rounds: to keep fewer drafts puts the next root
    earlier, and from an earlier root no round reaches further. Rounds that look past the end are left out, as in a
    replay.

    Args:
        covered: of each sequence, whether the vocabulary holds each token.
        num_steps: depth of the chain or tree.
    """
    walks = [_walk(answer, num_steps) for answer in covered]
    tokens, rounds = (np.array(column, np.int64) for column in zip(*walks, strict=True))
    return RatioOfSums("acceptance_length ceiling", "covered drafts + rounds", "rounds", tokens, rounds)


def check_coverage(coverage: Coverage) -> Iterator[Finding]:
    """Many tokens that no training can make the draft propose."""
    share = coverage.outside.value
    if share > _MUCH_OUTSIDE:
        yield Finding(
            "d2t",
            f"leaves out {100 * share:.1f} % of the {coverage.source}",
            f"at most {100 * (1 - share):.1f} % of them can ever be accepted, whatever the draft learns; the best "
            f"{coverage.num_rows:,} tokens for this corpus leave out {100 * coverage.best_outside:.1f} %.",
            "If the corpus is what will be served, choose the vocabulary from it and train again; if it is not, count "
            "another one.",
            False,
        )


def _walk(covered: list[bool], num_steps: int) -> tuple[int, int]:
    tokens = rounds = root = 0
    while root + num_steps < len(covered):
        ahead = covered[root + 1 : root + 1 + num_steps]
        kept = ahead.index(False) if False in ahead else num_steps
        tokens, rounds, root = tokens + kept + 1, rounds + 1, root + kept + 1
    return tokens, rounds


def _joined(prompt: Tensor, answer: Tensor | None) -> Tensor:
    return prompt if answer is None else torch.cat([prompt, answer])


def _check_ids(tokens: Tensor, vocab_size: int) -> None:
    if bool((tokens >= vocab_size).any()):
        raise Eagle3RefError(
            "counting a corpus",
            found=f"token {int(tokens.max())}",
            expected=f"target ids below {vocab_size}, the draft's vocab_size",
            action="Use a corpus of this draft's target.",
        )
