"""The random numbers of SGLang's ``--enable-deterministic-inference``, bit for bit.

Each request has a seed, and every number is a hash of the seed, a position and a column: 32-bit MurmurHash3 of the
seed's low and high word, the position and the column (SGLang 0.5.23, murmur_hash.py). So the numbers do not depend on
the batch. They are the numbers of target-only sampling, rejection and block verification; drafts that are drawn use
another stream.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.sampling import argmax_first

DEFAULT_SEED = 42  # of a request that names none
LARGEST_COIN = 1 - 2**-24  # the fp32 below 1
_WORD = 0xFFFFFFFF


def seeded_coins(seeds: Tensor, lengths: Tensor, num_draft_tokens: int) -> tuple[Tensor, Tensor]:
    """The uniforms of one verification round (SGLang 0.5.23, ``_seeded_verify_coins`` in eagle_utils.py).

    Args:
        seeds: int64 [B], ``sampling_seed`` of each request; 42 when it names none.
        lengths: int64 [B], committed tokens before the root, which is the root's token index.
        num_draft_tokens: N, nodes with the root.

    Returns:
        uniforms fp32 [B, N] and final_uniforms fp32 [B], in [0, 1).

    Raises:
        Eagle3RefError: seeds and lengths of different shapes.
    """
    hashed = _hashes(seeds, lengths, num_draft_tokens + 1)
    # The largest hashes would round to 1.
    coins = (hashed.double() / _WORD).float().clamp(max=LARGEST_COIN)
    return coins[:, :-1], coins[:, -1]


def seeded_token(probs: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """A token [B] that is no draft: the first one, drawn after the prompt (SGLang 0.5.23, sampler.py).

    Gumbel-max in fp64 over the token ids. Only for plain temperature sampling: with top-k or top-p that sampler
    numbers its columns by rank.

    Args:
        probs: [B, V], softmax of the logits over the temperature.
        seeds: int64 [B].
        positions: int64 [B], token index of the last token before the drawn one.

    Raises:
        Eagle3RefError: seeds and positions of different shapes, or a NaN.
    """
    uniforms = _hashes(seeds, positions, probs.shape[-1]).double() / _WORD
    # log 0 and log 1 would end in infinities: SGLang moves both to their neighbours.
    exponential = -uniforms.log().clamp(min=torch.finfo(torch.float64).min, max=-(2.0**-32))
    return argmax_first(probs.log().double() - exponential.log())


def _hashes(seeds: Tensor, positions: Tensor, num_columns: int) -> Tensor:
    """int64 [B, columns], each 0 to 2^32 - 1."""
    if seeds.dim() != 1 or seeds.shape != positions.shape:
        raise Eagle3RefError(
            "hashing seeds",
            found=f"seeds and positions of shapes {list(seeds.shape)} and {list(positions.shape)}",
            expected="one of each for every sequence, [B]",
            action="Repeat the seed for every sequence that shares it.",
        )
    state = torch.zeros_like(seeds)[:, None]
    columns = torch.arange(num_columns, device=seeds.device)
    for block in (seeds[:, None], seeds[:, None] >> 32, positions[:, None], columns):
        state = _mixed(state, block & _WORD)
    return _finished(state ^ 16)  # 16 bytes were hashed


def _mixed(state: Tensor, block: Tensor) -> Tensor:
    """One 32-bit block into the state. int64 products wrap, which leaves the low word right."""
    block = _rotated((block * 0xCC9E2D51) & _WORD, 15)
    block = (block * 0x1B873593) & _WORD
    return (_rotated(state ^ block, 13) * 5 + 0xE6546B64) & _WORD


def _rotated(word: Tensor, bits: int) -> Tensor:
    return ((word << bits) | (word >> (32 - bits))) & _WORD


def _finished(word: Tensor) -> Tensor:
    word = ((word ^ (word >> 16)) * 0x85EBCA6B) & _WORD
    word = ((word ^ (word >> 13)) * 0xC2B2AE35) & _WORD
    return word ^ (word >> 16)
