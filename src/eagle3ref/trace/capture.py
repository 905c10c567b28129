"""Capture: run a target over prompts and its own answers, and record what a draft would have seen."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.sampling import argmax_first
from eagle3ref.target import Target
from eagle3ref.target.generate import Sampling, generate
from eagle3ref.target.prefill import prefill
from eagle3ref.trace.format import Trace
from eagle3ref.trace.header import RecordedSampling, TargetIdentity, TraceHeader
from eagle3ref.trace.prompts import Prompt
from eagle3ref.trace.sequence import RecordedSequence
from eagle3ref.trace.writer import TraceWriter
from eagle3ref.version import __version__

DEFAULT_BATCH_SIZE = 32
_LOGITS_ROWS = 512  # rows whose logits are held at a time


def capture(
    target: Target,
    prompts: Sequence[Prompt | Tensor],
    path: str | Path,
    *,
    capture_points: Sequence[int],
    max_new_tokens: int = 256,
    sampling: Sampling | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    final_hidden_state: bool = False,
    tokenizer_sha256: str | None = None,
    on_sequence: Callable[[RecordedSequence], None] = lambda _: None,
) -> Trace:
    """Record a trace; one that is there already and was made with the same settings is continued.

    Every prompt without an answer is answered by the target. Then prompt and answer run through the target once more,
    as a server's prefill does, and the states of that pass are recorded.

    Args:
        target: the model.
        prompts: ``Prompt`` objects, or int64 [T] tensors, named by their place.
        path: the trace folder.
        capture_points: residual streams to record: ``draft.capture_points``, and neighbours for a later diagnosis.
        max_new_tokens: of each generated answer.
        sampling: greedy when None.
        batch_size: prompts that run together. Prompts keep their batch when a capture is resumed.
        final_hidden_state: record it too; rules that need the target's probabilities take them from it.
        tokenizer_sha256: from ``read_prompts``.
        on_sequence: called after each recorded sequence.

    Raises:
        Eagle3RefError: an empty prompt, ids outside the vocabulary, a prompt and answer longer than the model's
            positions, capture points that the target does not have, or a folder that holds something else: another
            trace, or under a prompt's id another prompt or answer.
    """
    named = [p if isinstance(p, Prompt) else Prompt(f"prompt-{i}", p) for i, p in enumerate(prompts)]
    _check_prompts(named, target, max_new_tokens)
    sampling = sampling or Sampling()
    limit = max_new_tokens if any(prompt.answer is None for prompt in named) else None
    header = TraceHeader(
        target=_identity(target),
        tokenizer_sha256=tokenizer_sha256,
        capture_points=tuple(capture_points),
        dtype=str(target.embedding().dtype).removeprefix("torch."),
        sampling=RecordedSampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed, limit),
        engine=f"eagle3ref {__version__}",
        provenance=_provenance(),
    )
    with TraceWriter.open(path, header) as writer:
        _check_recorded(Trace.open(path), named, final_hidden_state)
        for start in range(0, len(named), batch_size):
            batch = named[start : start + batch_size]
            if all(prompt.id in writer.done for prompt in batch):
                continue
            sequences = _answers(target, batch, range(start, start + len(batch)), sampling, max_new_tokens)
            for recorded in _record(target, batch, sequences, header, final_hidden_state):
                if recorded.id not in writer.done:
                    writer.add(recorded)
                    on_sequence(recorded)
    return Trace.open(path)


def _answers(
    target: Target, batch: list[Prompt], indices: Sequence[int], sampling: Sampling, max_new_tokens: int
) -> list[Tensor]:
    """Prompt and answer of each, int64 [T]."""
    open_ones = [i for i, prompt in enumerate(batch) if prompt.answer is None]
    answers = {i: prompt.answer for i, prompt in enumerate(batch) if prompt.answer is not None}
    if open_ones:
        generated = generate(
            target,
            [batch[i].tokens for i in open_ones],
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            prompt_indices=[indices[i] for i in open_ones],
        )
        answers |= dict(zip(open_ones, generated, strict=True))
    return [torch.cat((prompt.tokens, answers[i])) for i, prompt in enumerate(batch)]


@torch.inference_mode()
def _record(
    target: Target, batch: list[Prompt], sequences: list[Tensor], header: TraceHeader, final_hidden_state: bool
) -> Iterator[RecordedSequence]:
    """One teacher-forced pass over all of them, as a server's prefill."""
    cache = target.new_cache(len(sequences))
    blocks = list(prefill(target, sequences, cache, capture_points=header.capture_points))
    states = {point: torch.cat([b.aux_hidden_states[point] for b in blocks], 1) for point in header.capture_points}
    final_states = torch.cat([block.final_hidden_state for block in blocks], 1)
    for i, (prompt, tokens) in enumerate(zip(batch, sequences, strict=True)):
        length = len(tokens)
        final = final_states[i, :length]
        yield RecordedSequence(
            id=prompt.id,
            tokens=tokens,
            prompt_length=len(prompt.tokens),
            aux_hidden_states={point: state[i, :length].cpu() for point, state in states.items()},
            argmax=torch.cat([argmax_first(target.logits(rows)).cpu() for rows in final.split(_LOGITS_ROWS)]),
            final_hidden_state=final.cpu() if final_hidden_state else None,
        )


def _check_prompts(prompts: list[Prompt], target: Target, max_new_tokens: int) -> None:
    if not prompts or max_new_tokens < 1:
        found = f"{len(prompts)} prompts and max_new_tokens {max_new_tokens}"
        raise Eagle3RefError(
            "capturing a trace", found=found, expected="at least one of each", action="Give prompts to run."
        )
    for prompt in prompts:
        ids = prompt.tokens if prompt.answer is None else torch.cat((prompt.tokens, prompt.answer))
        new_tokens = max_new_tokens if prompt.answer is None else 0
        outside = ids[(ids < 0) | (ids >= target.config.vocab_size)]
        if len(prompt.tokens) == 0:
            _refuse_prompt(prompt, "no token", "at least one", "Leave empty prompts out.")
        if len(outside):
            action = "Tokenize with the target's own tokenizer; image placeholders have no embedding row."
            _refuse_prompt(prompt, f"token id {int(outside[0])}", f"ids 0 to {target.config.vocab_size - 1}", action)
        if len(ids) + new_tokens > target.config.max_position_embeddings:
            found = f"{len(ids)} tokens and up to {new_tokens} new ones"
            limit = f"at most {target.config.max_position_embeddings} positions (max_position_embeddings)"
            _refuse_prompt(prompt, found, limit, "Shorten the prompt or the answer.")


def _check_recorded(trace: Trace, prompts: list[Prompt], final_hidden_state: bool) -> None:
    """A prompt whose id is in the trace must be the one that was recorded, with as many states."""
    recorded = set(trace.ids)
    for prompt in prompts:
        if prompt.id in recorded:
            sequence = trace.sequence(prompt.id)
            same_answer = prompt.answer is None or torch.equal(sequence.answer, prompt.answer)
            if not torch.equal(sequence.tokens[: sequence.prompt_length], prompt.tokens) or not same_answer:
                action = "Give new prompts new ids, or record into another folder."
                _refuse_prompt(prompt, f"other tokens under this id in {trace.path}", "the same prompt", action)
            if (sequence.final_hidden_state is not None) != final_hidden_state:
                found = f"a record {'without' if final_hidden_state else 'with'} its final hidden state in {trace.path}"
                action = "Capture with the same final_hidden_state, or into another folder."
                _refuse_prompt(prompt, found, f"final_hidden_state = {final_hidden_state}, as is asked for now", action)


def _refuse_prompt(prompt: Prompt, found: str, expected: str, action: str) -> None:
    raise Eagle3RefError(f"capturing prompt {prompt.id!r}", found=found, expected=expected, action=action)


def _identity(target: Target) -> TargetIdentity:
    config = target.config
    return TargetIdentity(
        name=config.name,
        path=config.path,
        model_type=config.model_type,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        config_sha256=config.config_sha256,
    )


def _provenance() -> dict[str, str]:
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
