"""Inputs for the compiled twins, and how their answers are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels.native_library import why_not
from eagle3ref.tree import Candidates, DraftTree, extend_beams
from eagle3ref.verify import Verification

built = pytest.mark.skipif(why_not("cpu") is not None, reason=f"run make native: {why_not('cpu')}")


def drafted(seed: int, batch: int, topk: int, steps: int, levels: int, dtype: torch.dtype) -> Candidates:
    """What a draft loop scores when it knows ``levels`` different probabilities, 0 and 1 among them."""
    random = torch.Generator().manual_seed(seed)

    def probs(*shape: int) -> Tensor:
        drawn = torch.randint(0, levels + 1, (*shape, topk), generator=random) / levels
        return drawn.sort(-1, descending=True).values

    beams = probs(batch)
    flat = torch.arange(topk).expand(batch, topk)
    parts = [(beams, torch.full_like(flat, -1))]
    for step in range(steps - 1):
        scores, chosen = extend_beams(beams, probs(batch, topk))
        parts.append((scores, flat.repeat_interleave(topk, 1)))
        beams, flat = scores.gather(1, chosen), topk + step * topk**2 + chosen
    scores, parents = (torch.cat(part, 1) for part in zip(*parts, strict=True))
    return Candidates(scores.to(dtype), torch.randint(0, 99, parents.shape, generator=random), parents)


def random_tree(batch: int, size: int, vocab_size: int, seed: int) -> DraftTree:
    """Any shape at all; siblings hold different tokens, cousins may hold the same."""
    random = torch.Generator().manual_seed(seed)
    nodes = torch.arange(size).clamp(min=1)
    parents = (torch.rand(batch, size, generator=random, dtype=torch.float64) * nodes).long()
    parents[:, 0] = -1
    rank = torch.stack([(parents[:, :node] == parents[:, node : node + 1]).sum(1) for node in range(size)], 1)
    shift = torch.randint(0, vocab_size, (batch, size), generator=random)
    tokens = (shift.gather(1, parents.clamp(min=0)) + rank) % vocab_size
    return DraftTree.from_parents(tokens, parents, torch.arange(batch))


def assert_same(mine: DraftTree | Verification, reference: DraftTree | Verification) -> None:
    """Every field of a dataclass of tensors: values, dtypes and shapes."""
    for field in dataclasses.fields(reference):
        ours, its = getattr(mine, field.name), getattr(reference, field.name)
        assert ours.dtype == its.dtype, field.name
        assert torch.equal(ours, its), field.name


def refusal(function: Callable[[], object]) -> str:
    with pytest.raises(Eagle3RefError) as caught:
        function()
    return str(caught.value)
