"""Plain generation, one token per forward, for many prompts at once: the answers that traces are recorded on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3ref.sampling import argmax_first, sample, target_probs
from eagle3ref.target.base import Target


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn. Temperature 0 is greedy, and the other settings then do nothing.

    Args:
        temperature: of the softmax.
        top_p: mass kept, 1 keeps all.
        top_k: tokens kept, 0 keeps all.
        seed: prompt i draws from its own stream (seed, i), whatever batch it is in.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def uniforms(self, prompt: int, count: int) -> Tensor:
        """fp64 [count], the random numbers of one prompt's answer."""
        generator = torch.Generator().manual_seed((self.seed << 32) + prompt)
        return torch.rand(count, dtype=torch.float64, generator=generator)


@torch.inference_mode()
def generate(
    target: Target,
    prompts: Sequence[Tensor],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    prompt_indices: Sequence[int] | None = None,
    on_token: Callable[[], None] = lambda: None,
) -> list[Tensor]:
    """Answer every prompt until an end token or ``max_new_tokens``.

    Args:
        target: the model.
        prompts: int64 [T] each, not empty.
        max_new_tokens: of each answer, the end token included.
        sampling: greedy when None.
        prompt_indices: which random stream each prompt uses; its place in ``prompts`` when None.
        on_token: called after every forward.

    Returns:
        The answers, int64 [1 .. max_new_tokens] each.
    """
    sampling = sampling or Sampling()
    indices = range(len(prompts)) if prompt_indices is None else prompt_indices
    uniforms = torch.stack([sampling.uniforms(index, max_new_tokens) for index in indices])
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    padded = torch.nn.utils.rnn.pad_sequence(list(prompts), batch_first=True)
    cache = target.new_cache(len(prompts))
    device = target.embedding().device
    state = target.forward(padded.to(device), cache=cache).final_hidden_state
    cache.keep(torch.arange(padded.shape[1], device=device).expand(padded.shape), lengths.to(device))
    last = state[torch.arange(len(prompts)), lengths - 1]
    first_row = torch.zeros(len(prompts), 1, dtype=torch.int64, device=device)
    ends = torch.tensor(target.config.eos_token_ids, dtype=torch.int64)
    answers: list[Tensor] = []
    finished = torch.zeros(len(prompts), dtype=torch.bool)
    for step in range(max_new_tokens):
        token = _next_token(target.logits(last), sampling, uniforms[:, step])
        answers.append(token.cpu())
        on_token()
        finished |= torch.isin(token.cpu(), ends)
        if step + 1 == max_new_tokens or bool(finished.all()):
            break
        last = target.forward(token[:, None], cache=cache).final_hidden_state[:, 0]
        cache.keep(first_row, torch.ones_like(first_row[:, 0]))
    return [_until_end(answer, ends) for answer in torch.stack(answers, 1)]


def _next_token(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Tensor:
    if sampling.temperature == 0:
        return argmax_first(logits)
    probs = target_probs(
        logits, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p
    )
    return sample(probs, uniforms.to(device=logits.device, dtype=probs.dtype))


def _until_end(answer: Tensor, ends: Tensor) -> Tensor:
    at_end = torch.isin(answer, ends).nonzero()
    return answer if len(at_end) == 0 else answer[: int(at_end[0]) + 1]
