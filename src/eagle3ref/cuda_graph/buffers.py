"""Buffers of a fixed size that batches of any size are run in: made neutral, filled, and cut back to the batch."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from eagle3ref.config import MLAConfig
from eagle3ref.cuda_graph.loop import Drafted, LoopStart
from eagle3ref.draft import Eagle3Draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import Rows
from eagle3ref.tree import Candidates, DraftTree


def start_buffers(draft: Eagle3Draft, batch: int, topk: int) -> LoopStart:
    """A neutral start of ``batch`` sequences: zeros, which no row of another sequence sees."""
    state = draft.fc.weight.new_zeros(batch, draft.config.hidden_size)
    ids = draft.target_ids
    return LoopStart(
        state,
        state.new_zeros(batch, topk, dtype=torch.float32),
        ids.new_zeros(batch, topk),
        ids.new_zeros(batch),
        ids.new_zeros(batch),
    )


def prefix_buffers(draft: Eagle3Draft, batch: int, max_prefix: int) -> list[Rows]:
    """Per layer, rows of zeros for ``batch`` sequences: latents and roped keys (MLA), or keys and values (GQA)."""
    buffers = []
    for index in range(len(draft.layers)):
        attention = draft.config.layer_attention(index)
        if isinstance(attention, MLAConfig):
            shapes = [[attention.kv_lora_rank], [attention.qk_rope_head_dim]]
        else:
            shapes = [[attention.num_kv_heads, attention.head_dim]] * 2
        buffers.append(Rows(*(draft.fc.weight.new_zeros(batch, max_prefix, *shape) for shape in shapes)))
    return buffers


def smallest_bucket(buckets: tuple[int, ...], batch: int) -> int:
    """The smallest of ascending buckets that holds ``batch`` sequences.

    Raises:
        Eagle3RefError: none, or more than the largest holds.
    """
    for bucket in buckets:
        if 1 <= batch <= bucket:
            return bucket
    action = "Split the batch, or capture a larger bucket."
    return _refuse(f"{batch} sequences", f"1 to {buckets[-1]}, the largest bucket", action)


def fill(buffers: LoopStart, start: LoopStart) -> None:
    """Copy a start of B sequences into buffers of a bucket, and zeros behind it.

    Raises:
        Eagle3RefError: a field of another shape, dtype or device than its buffer's.
    """
    batch = len(start.state)
    for name, buffer, value in zip(LoopStart._fields, buffers, start, strict=True):
        wanted, found = (_described(one) for one in (buffer[:batch], value))
        if found != wanted:
            _refuse(f"{name} of {found}", wanted, "Give it what was captured; cast or move it first.")
    for buffer, value in zip(buffers, start, strict=True):
        buffer[:batch].copy_(value)
        buffer[batch:].zero_()


def first_groups(start: LoopStart, batch: int) -> LoopStart:
    """Views of the first ``batch`` sequences."""
    return LoopStart(*(field[:batch] for field in start))


def cut(drafted: Drafted, batch: int) -> Drafted:
    """Views of the first ``batch`` sequences."""
    candidates, tree = drafted
    return Drafted(
        Candidates(candidates.scores[:batch], candidates.tokens[:batch], candidates.parents[:batch]),
        DraftTree(*(part[:batch] for part in (tree.tokens, tree.parents, tree.depths, tree.positions, tree.tree_mask))),
    )


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"


def _refuse(found: str, expected: str, action: str) -> NoReturn:
    raise Eagle3RefError("running a batch in fixed buffers", found=found, expected=expected, action=action)
