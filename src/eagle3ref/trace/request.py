"""What a capture was asked for, checked, and cut into passes."""

from __future__ import annotations

import datetime
import hashlib
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.decode import answering_bytes_per_token
from eagle3ref.draft import Eagle3Draft
from eagle3ref.target import Target
from eagle3ref.target.base import dtype_of
from eagle3ref.target.generate import Sampling
from eagle3ref.target.streaming import StreamedTarget
from eagle3ref.trace.header import RecordedSampling, TargetIdentity, TraceHeader
from eagle3ref.trace.passes import longest_lengths, split_passes
from eagle3ref.trace.prompt_checks import check_prompts
from eagle3ref.trace.prompts import Prompt
from eagle3ref.version import __version__

_RESIDENT_BATCH_SIZE = 32


@dataclass(frozen=True)
class CaptureRequest:
    """The arguments of ``capture``, which says what they mean.

    Args:
        target: the model.
        prompts: named.
        capture_points: residual streams to record.
        max_new_tokens: of each generated answer.
        sampling: of them.
        batch_size: prompts that run together, at most.
        final_hidden_state: record it too.
        tokenizer_sha256: of the vocabulary file.
        draft, tree: speculate while answering.
    """

    target: Target
    prompts: tuple[Prompt, ...]
    capture_points: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    batch_size: int | None
    final_hidden_state: bool
    tokenizer_sha256: str | None
    draft: Eagle3Draft | None = None
    tree: TreeConfig | None = None

    def __post_init__(self) -> None:
        check_prompts(self.prompts, self.target.config, self.max_new_tokens)

    def header(self) -> TraceHeader:
        """Of the trace."""
        target, sampling = self.target, self.sampling
        limit = self.max_new_tokens if any(prompt.answer is None for prompt in self.prompts) else None
        dtype = dtype_of(target)
        return TraceHeader(
            target=TargetIdentity.of(target.config),
            tokenizer_sha256=self.tokenizer_sha256,
            capture_points=self.capture_points,
            dtype=str(dtype).removeprefix("torch."),
            sampling=RecordedSampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed, limit),
            engine=f"eagle3ref {__version__}",
            provenance={
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
        )

    def groups(self) -> list[range]:
        """Places of the prompts that share a pass.

        Raises:
            Eagle3RefError: a sequence that does not fit the target's memory bound even alone.
        """
        target, lengths = self.target, self.lengths()
        if not isinstance(target, StreamedTarget):
            return list(split_passes(len(lengths), self.batch_size or _RESIDENT_BATCH_SIZE, lambda _: True))
        groups = list(split_passes(len(lengths), self.batch_size, self._memory_test(target, lengths)))
        for places in groups:
            target.memory_parts([lengths[i] for i in places])
        return groups

    def _memory_test(self, target: StreamedTarget, lengths: list[int]) -> Callable[[range], bool]:
        """Whether a pass over these places fits the memory bound, its answers included."""
        max_tokens = cache(target.max_tokens)  # what the process holds may change while it is asked again and again
        per_token = answering_bytes_per_token(target.architecture, target.dtype, self.draft)
        nodes = 1 if self.tree is None else self.tree.num_draft_tokens
        rows = [
            length + nodes if prompt.answer is None else 0 for prompt, length in zip(self.prompts, lengths, strict=True)
        ]

        def fits(places: range) -> bool:
            of_pass, unanswered = slice(places.start, places.stop), rows[places.start : places.stop]
            longest = max(unanswered)
            num_rows = (len(unanswered) - unanswered.count(0)) * longest  # in the cache, all are as long as the longest
            can_answer = longest == 0 or num_rows <= max_tokens(longest, per_token=per_token)
            return can_answer and sum(lengths[of_pass]) <= max_tokens(max(lengths[of_pass]))

        return fits

    def lengths(self) -> list[int]:
        """Tokens of each prompt and its answer; one that is to be generated counts with all it may have."""
        return longest_lengths(self.prompts, self.max_new_tokens)

    def cut_from(self) -> dict[str, Any]:
        """All that the cut into passes should follow from."""
        digest = hashlib.sha256()
        for prompt in self.prompts:
            digest.update(repr((prompt.id, prompt.tokens.tolist())).encode())
            digest.update(repr(None if prompt.answer is None else prompt.answer.tolist()).encode())
        memory = self.target.memory if isinstance(self.target, StreamedTarget) else None
        nodes = None if self.tree is None else self.tree.num_draft_tokens
        settings = {"memory": memory, "batch_size": self.batch_size, "num_draft_tokens": nodes}
        return {"prompts": digest.hexdigest(), **settings}


def named_prompts(prompts: Sequence[Prompt | Tensor]) -> tuple[Prompt, ...]:
    """Tensors become prompts that are named by their place."""
    return tuple(p if isinstance(p, Prompt) else Prompt(f"prompt-{i}", p) for i, p in enumerate(prompts))
