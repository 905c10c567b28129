"""Prompts that cannot be captured, found before the target runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch

from eagle3ref.config import TargetConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace.format import Trace
from eagle3ref.trace.prompts import Prompt


def check_prompts(prompts: Sequence[Prompt], config: TargetConfig, max_new_tokens: int) -> None:
    """Refuse prompts that the target cannot read, or whose answers would not fit.

    Raises:
        Eagle3RefError: no prompt, an empty one, an empty answer, an id that comes twice, ids outside the vocabulary, or
            more tokens than the model has positions.
    """
    if not prompts or max_new_tokens < 1:
        found = f"{len(prompts)} prompts and max_new_tokens {max_new_tokens}"
        raise Eagle3RefError(
            "capturing a trace", found=found, expected="at least one of each", action="Give prompts to run."
        )
    seen: set[str] = set()
    for prompt in prompts:
        _check_prompt(prompt, config, max_new_tokens)
        if prompt.id in seen:
            _refuse(prompt, "that id for the second time", "a different id for every prompt", "Give it another one.")
        seen.add(prompt.id)


def _check_prompt(prompt: Prompt, config: TargetConfig, max_new_tokens: int) -> None:
    answer = prompt.answer
    ids = prompt.tokens if answer is None else torch.cat((prompt.tokens, answer))
    new_tokens = max_new_tokens if answer is None else 0
    outside = ids[(ids < 0) | (ids >= config.vocab_size)]
    if len(prompt.tokens) == 0:
        _refuse(prompt, "no token", "at least one", "Leave empty prompts out.")
    if answer is not None and len(answer) == 0:
        _refuse(prompt, "an answer without tokens", "at least one", "Leave it out, or give None to have it generated.")
    if len(outside):
        action = "Tokenize with the target's own tokenizer; image placeholders have no embedding row."
        _refuse(prompt, f"token id {int(outside[0])}", f"ids 0 to {config.vocab_size - 1}", action)
    if len(ids) + new_tokens > config.max_position_embeddings:
        found = f"{len(ids)} tokens and up to {new_tokens} new ones"
        limit = f"at most {config.max_position_embeddings} positions (max_position_embeddings)"
        _refuse(prompt, found, limit, "Shorten the prompt or the answer.")


def check_recorded(trace: Trace, prompts: Sequence[Prompt], final_hidden_state: bool) -> None:
    """A prompt whose id is in the trace must be the one that was recorded, with as many states.

    Raises:
        Eagle3RefError: other tokens under a prompt's id, or a record with states where none are asked for, or without.
    """
    recorded = set(trace.ids)
    for prompt in prompts:
        if prompt.id in recorded:
            sequence = trace.sequence(prompt.id)
            same_answer = prompt.answer is None or torch.equal(sequence.answer, prompt.answer)
            if not torch.equal(sequence.tokens[: sequence.prompt_length], prompt.tokens) or not same_answer:
                action = "Give new prompts new ids, or record into another folder."
                _refuse(prompt, f"other tokens under this id in {trace.path}", "the same prompt", action)
            if (sequence.final_hidden_state is not None) != final_hidden_state:
                found = f"a record {'without' if final_hidden_state else 'with'} its final hidden state in {trace.path}"
                action = "Capture with the same final_hidden_state, or into another folder."
                _refuse(prompt, found, f"final_hidden_state = {final_hidden_state}, as is asked for now", action)


def _refuse(prompt: Prompt, found: str, expected: str, action: str) -> NoReturn:
    raise Eagle3RefError(f"capturing prompt {prompt.id!r}", found=found, expected=expected, action=action)
