"""The draft tree in Triton, one program a sequence, without a wait for the device.

The twin of ``tree.build_tree``, equal bit for bit. A device cannot raise, so where the reference refuses the values of
the candidates, this one goes on by a rule and says so in ``faults``: a NaN ranks below every number, and a chosen
candidate whose parent was not chosen becomes a child of the root. What comes out is a tree all the same, and the
verification of any tree is lossless: a fault costs acceptance, never a wrong token.
"""

from __future__ import annotations

from typing import NoReturn

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels.launch import on_device, require_device
from eagle3ref.tree import Candidates, DraftTree

FAULT_NAN = 1
FAULT_ORPHAN = 2

_MAX_CANDIDATES = 8192  # that one program holds
_INTEGERS = (torch.int32, torch.int64)
_INT32_MIN = tl.constexpr(-(2**31))
_FAULT_NAN = tl.constexpr(FAULT_NAN)
_FAULT_ORPHAN = tl.constexpr(FAULT_ORPHAN)


@triton.jit
def _score_keys(scores, inside):
    """int32 keys in the order of the scores: equal for 0 and -0, and the lowest of all for NaN and what is outside."""
    bits = scores.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    keys = tl.where(bits < 0, -magnitude, magnitude)
    return tl.where(inside & (scores == scores), keys, _INT32_MIN)


@triton.jit
def _best(keys, count):
    """bool: the ``count`` largest keys, of equal ones those with the lowest index."""
    # The largest threshold that at least ``count`` keys reach, found bit by bit from the sign on.
    threshold = tl.where(tl.sum((keys >= 0).to(tl.int32), 0) >= count, 0, _INT32_MIN)
    for bit in tl.static_range(31):
        higher = threshold + (1 << (30 - bit))
        threshold = tl.where(tl.sum((keys >= higher).to(tl.int32), 0) >= count, higher, threshold)
    above, equal = keys > threshold, keys == threshold
    missing = count - tl.sum(above.to(tl.int32), 0)
    return above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= missing))


@triton.jit(do_not_specialize=("num_candidates", "num_nodes"))
def _build_kernel(
    scores,  # fp32 [B, M], like the two after it contiguous
    candidate_tokens,  # int64 [B, M], target ids
    candidate_parents,  # int64 [B, M], flat indices
    root_tokens,  # [B]
    prefix_lengths,  # [B]
    tokens,  # int64 [B, N]
    parents,  # int64 [B, N]
    depths,  # int64 [B, N]
    positions,  # int64 [B, N]
    tree_mask,  # uint8 [B, N, N], zeros
    faults,  # int32 [B]
    num_candidates,
    num_nodes,
    block: tl.constexpr,
):
    sequence = tl.program_id(0).to(tl.int64)
    flat = tl.arange(0, block)
    inside = flat < num_candidates
    at = sequence * num_candidates + flat
    score = tl.load(scores + at, mask=inside, other=0.0)
    chosen = _best(_score_keys(score, inside), num_nodes - 1)
    node = tl.where(chosen, tl.cumsum(chosen.to(tl.int32), 0), 0)  # 0 also for what was not chosen

    given = tl.load(candidate_parents + at, mask=inside, other=-1)
    is_earlier = (given >= 0) & (given < flat)
    parent = tl.where(is_earlier, given, 0).to(tl.int32)
    parent_node = tl.where(is_earlier, tl.gather(node, parent, 0), 0)  # 0, the root, also for an orphan
    is_orphan = chosen & (parent_node == 0) & (given != -1)
    parent = tl.where(parent_node > 0, parent, -1)

    row = sequence * num_nodes
    mask_row = tree_mask + (row + node) * num_nodes
    tl.store(mask_row + node, 1, mask=chosen)
    tl.store(mask_row, 1, mask=chosen)  # all see the root
    depth = tl.full((block,), 1, tl.int64)
    ancestor = tl.where(chosen, parent, -1)
    while tl.max(ancestor, 0) >= 0:
        going = ancestor >= 0
        place = tl.where(going, ancestor, 0)
        tl.store(mask_row + tl.gather(node, place, 0), 1, mask=going)
        depth += going.to(tl.int64)
        ancestor = tl.where(going, tl.gather(parent, place, 0), -1)

    length = tl.load(prefix_lengths + sequence).to(tl.int64)
    tl.store(tokens + row + node, tl.load(candidate_tokens + at, mask=inside, other=0), mask=chosen)
    tl.store(parents + row + node, parent_node.to(tl.int64), mask=chosen)
    tl.store(depths + row + node, depth, mask=chosen)
    tl.store(positions + row + node, length + depth, mask=chosen)
    tl.store(tokens + row, tl.load(root_tokens + sequence))
    tl.store(parents + row, -1)
    tl.store(depths + row, 0)
    tl.store(positions + row, length)
    tl.store(tree_mask + row * num_nodes, 1)
    nan = tl.max((inside & (score != score)).to(tl.int32), 0)
    orphan = tl.max(is_orphan.to(tl.int32), 0)
    tl.store(faults + sequence, nan * _FAULT_NAN + orphan * _FAULT_ORPHAN)


def build_tree(
    candidates: Candidates,
    *,
    root_tokens: Tensor,
    prefix_lengths: Tensor,
    num_draft_tokens: int,
    faults: Tensor | None = None,
) -> DraftTree:
    """``tree.build_tree``: the same arguments, and the same integers where that one does not refuse.

    Args:
        faults: int32 [B], written, and left on the device to be read when it suits: 0 for a sequence that the reference
            takes, otherwise ``FAULT_NAN`` (a NaN among its scores), ``FAULT_ORPHAN`` (a chosen candidate without its
            parent), or their sum.

    Raises:
        Eagle3RefError: N out of range, shapes or dtypes that do not fit, more candidates than a program holds, or no
            device for Triton.
    """
    scores = candidates.scores
    batch, num_candidates = scores.shape
    _check_build(candidates, root_tokens, prefix_lengths, num_draft_tokens, faults)
    shape = (batch, num_draft_tokens)
    tokens, parents, depths, positions = (torch.empty(shape, dtype=torch.int64, device=scores.device) for _ in range(4))
    tree_mask = torch.zeros((*shape, num_draft_tokens), dtype=torch.bool, device=scores.device)
    faults = torch.empty(batch, dtype=torch.int32, device=scores.device) if faults is None else faults
    if batch:
        block = triton.next_power_of_2(max(num_candidates, 16))
        with on_device(scores):
            _build_kernel[(batch,)](
                scores.contiguous(),
                candidates.tokens.contiguous(),
                candidates.parents.contiguous(),
                root_tokens.contiguous(),
                prefix_lengths.contiguous(),
                tokens,
                parents,
                depths,
                positions,
                tree_mask.view(torch.uint8),
                faults,
                num_candidates,
                num_draft_tokens,
                block=block,
                num_warps=max(1, min(16, block // 256)),
            )
    return DraftTree(tokens, parents, depths, positions, tree_mask)


def _check_build(
    candidates: Candidates, root_tokens: Tensor, prefix_lengths: Tensor, num_draft_tokens: int, faults: Tensor | None
) -> None:
    scores = candidates.scores
    batch, num_candidates = scores.shape
    tensors = (candidates.tokens, candidates.parents, root_tokens, prefix_lengths, faults)
    require_device("building the draft tree with Triton", scores, *tensors)
    if scores.dtype != torch.float32:
        _refuse(f"scores in {scores.dtype}", "fp32 scores, which the draft loop makes")
    if num_candidates > _MAX_CANDIDATES:
        _refuse(f"{num_candidates} candidates", f"at most {_MAX_CANDIDATES}, which one program holds")
    if not 2 <= num_draft_tokens <= num_candidates + 1:
        found = f"num_draft_tokens {num_draft_tokens}"
        _refuse(found, f"2 to {num_candidates + 1}, the root and {num_candidates} candidates at most")
    for name, tensor in (("root_tokens", root_tokens), ("prefix_lengths", prefix_lengths)):
        if list(tensor.shape) != [batch] or tensor.dtype not in _INTEGERS:
            _refuse(f"{name} {tensor.dtype} {list(tensor.shape)}", f"int32 or int64 [{batch}], one a sequence")
    if faults is not None and (list(faults.shape), faults.dtype, faults.is_contiguous()) != (
        [batch],
        torch.int32,
        True,
    ):
        found = f"faults {faults.dtype} {list(faults.shape)} of stride {faults.stride()}"
        _refuse(found, f"int32 [{batch}] without gaps, one a sequence")


def _refuse(found: str, expected: str) -> NoReturn:
    action = 'Check the tree settings and the draft loop, or take build_tree from get_ops("torch").'
    raise Eagle3RefError("building the draft tree with Triton", found=found, expected=expected, action=action)
