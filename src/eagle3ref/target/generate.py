"""Plain generation, one token per forward, for many prompts at once: the answers that traces are recorded on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.sampling import argmax_first, sample, target_probs
from eagle3ref.target.base import Target, device_of
from eagle3ref.target.prefill import prefill_states


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn. Temperature 0 is greedy, and the other settings then do nothing.

    Args:
        temperature: of the softmax.
        top_p: mass kept, 1 keeps all.
        top_k: tokens kept, 0 keeps all.
        seed: prompt i draws from its own stream (seed, i), whatever batch it is in.

    Raises:
        Eagle3RefError: a setting out of its range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        in_range = 0 <= self.temperature < math.inf and 0 < self.top_p <= 1 and self.top_k >= 0
        if not in_range or self.seed < 0:
            raise Eagle3RefError(
                "reading the sampling settings",
                found=f"temperature {self.temperature}, top_p {self.top_p}, top_k {self.top_k}, seed {self.seed}",
                expected="finite temperature >= 0 (0 = greedy), 0 < top_p <= 1, top_k >= 0 (0 = all), seed >= 0",
                action="Correct the setting that is out of its range.",
            )

    def uniforms(self, prompt: int, count: int, first: int = 0) -> Tensor:
        """fp64 [count], random numbers ``first``, ``first + 1``, ... of one prompt's answer."""
        # numpy mixes both numbers into its state; torch's CPU generator would use the low 32 bits of one.
        bits = np.random.PCG64([self.seed, prompt])
        bits.advance(first)
        return torch.from_numpy(np.random.Generator(bits).random(count))


def random_streams(num_prompts: int, prompt_indices: Sequence[int] | None) -> list[int]:
    """Which random stream each prompt draws from: its place when nothing else is said.

    Raises:
        Eagle3RefError: not one for each prompt, or a negative one.
    """
    streams = list(range(num_prompts) if prompt_indices is None else prompt_indices)
    if len(streams) != num_prompts or any(stream < 0 for stream in streams):
        raise Eagle3RefError(
            "reading which random stream each prompt uses",
            found=f"prompt indices {streams}" if len(streams) < 10 else f"{len(streams)} prompt indices",
            expected=f"{num_prompts} numbers, one for each prompt, none negative",
            action="Give one for each prompt, or none for their places.",
        )
    return streams


def check_prompts(prompts: Sequence[Tensor], max_new_tokens: int) -> None:
    """Refuse what cannot be answered.

    Raises:
        Eagle3RefError: a prompt that is empty or no ids, or no new tokens asked for.
    """
    for i, prompt in enumerate(prompts):
        if prompt.ndim != 1 or len(prompt) == 0 or prompt.is_floating_point() or max_new_tokens < 1:
            raise Eagle3RefError(
                f"decoding prompt {i}",
                found=f"a shape of {tuple(prompt.shape)}, {prompt.dtype}, and max_new_tokens {max_new_tokens}",
                expected="at least one token id, int64 [T], and at least one new token",
                action="Leave empty prompts out.",
            )


@torch.inference_mode()
def generate(
    target: Target,
    prompts: Sequence[Tensor],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    prompt_indices: Sequence[int] | None = None,
) -> list[Tensor]:
    """Answer every prompt until an end token or ``max_new_tokens``.

    Args:
        target: the model.
        prompts: int64 [T] each, not empty.
        max_new_tokens: of each answer, the end token included.
        sampling: greedy when None.
        prompt_indices: which random stream each prompt uses; its place in ``prompts`` when None.

    Returns:
        The answers, int64 [1 .. max_new_tokens] each.

    Raises:
        Eagle3RefError: an empty prompt, token ids outside the vocabulary, or not one stream for each prompt.
    """
    check_prompts(prompts, max_new_tokens)
    sampling, streams = sampling or Sampling(), random_streams(len(prompts), prompt_indices)
    if not prompts:
        return []
    uniforms = torch.stack([sampling.uniforms(stream, max_new_tokens) for stream in streams])
    cache = target.new_cache(len(prompts))
    device = device_of(target)
    last = prefill_states(target, prompts, cache).last
    first_row = torch.zeros(len(prompts), 1, dtype=torch.int64, device=device)
    ends = torch.tensor(target.config.eos_token_ids, dtype=torch.int64)
    answers: list[Tensor] = []
    finished = torch.zeros(len(prompts), dtype=torch.bool)
    for step in range(max_new_tokens):
        token = _next_token(target.logits(last), sampling, uniforms[:, step])
        answers.append(token.cpu())
        finished |= torch.isin(token.cpu(), ends)
        if step + 1 == max_new_tokens or bool(finished.all()):
            break
        last = target.forward(token[:, None], cache=cache).final_hidden_state[:, 0]
        cache.keep(first_row, torch.ones_like(first_row[:, 0]))
    return [_until_end(answer, ends) for answer in torch.stack(answers, 1)]


def _next_token(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Tensor:
    if sampling.temperature == 0:
        return argmax_first(logits)
    probs = target_probs(logits, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)
    return sample(probs, uniforms.to(device=logits.device, dtype=probs.dtype))


def _until_end(answer: Tensor, ends: Tensor) -> Tensor:
    at_end = torch.isin(answer, ends).nonzero()
    return answer if len(at_end) == 0 else answer[: int(at_end[0]) + 1]
