"""Greedy verification in Triton, one program a sequence, without a wait for the device.

The twin of ``verify.verify_greedy``, equal bit for bit.
"""

from __future__ import annotations

from typing import NoReturn

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels.launch import on_device, require_device
from eagle3ref.tree import DraftTree
from eagle3ref.verify import Verification

_MAX_NODES = 8192  # that one program holds
_INTEGERS = (torch.int32, torch.int64)


@triton.jit(do_not_specialize=("num_nodes",))
def _verify_kernel(
    tokens,  # int64 [B, N], like the two after it contiguous
    parents,  # int64 [B, N]
    target_tokens,  # [B, N]
    num_accepted,  # int64 [B]
    accepted_nodes,  # int64 [B, N - 1]
    accepted_tokens,  # int64 [B, N - 1]
    bonus_token,  # [B]
    num_nodes,
    block: tl.constexpr,
):
    sequence = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, block)
    inside = node < num_nodes
    at = sequence * num_nodes + node
    token = tl.load(tokens + at, mask=inside, other=0)
    parent = tl.load(parents + at, mask=inside, other=-1)
    target = tl.load(target_tokens + at, mask=inside, other=0)

    path = sequence * (num_nodes - 1)
    last = tl.full((), 0, tl.int32)
    wanted = tl.sum(tl.where(node == 0, target, 0), 0)  # what the target says after the last node
    count = tl.full((), 0, tl.int32)
    is_walking = num_nodes > 1
    while is_walking:
        hits = inside & (parent == last) & (token == wanted)
        child = tl.min(tl.where(hits, node, block), 0)
        is_walking = child < block
        if is_walking:
            tl.store(accepted_nodes + path + count, child)
            tl.store(accepted_tokens + path + count, wanted)
            last = child
            wanted = tl.sum(tl.where(node == last, target, 0), 0)
            count += 1
            is_walking = count < num_nodes - 1  # ends the walk of parents that run in a circle, which no tree has

    behind = (node >= count) & (node < num_nodes - 1)
    tl.store(accepted_nodes + path + node, -1, mask=behind)
    tl.store(accepted_tokens + path + node, -1, mask=behind)
    tl.store(num_accepted + sequence, count)
    tl.store(bonus_token + sequence, wanted)


def verify_greedy(tree: DraftTree, target_tokens: Tensor) -> Verification:
    """``verify.verify_greedy``: the same arguments and the same integers.

    Raises:
        Eagle3RefError: target tokens that are not [B, N], more nodes than a program holds, or no device for Triton.
    """
    batch, num_nodes = tree.tokens.shape
    require_device("verifying a draft tree with Triton", tree.tokens, tree.parents, target_tokens)
    if target_tokens.shape != tree.tokens.shape or target_tokens.dtype not in _INTEGERS:
        _refuse(
            f"target_tokens {target_tokens.dtype} {list(target_tokens.shape)}",
            f"int32 or int64 {list(tree.tokens.shape)}, one token after each node of the tree",
        )
    if num_nodes > _MAX_NODES:
        _refuse(f"{num_nodes} nodes", f"at most {_MAX_NODES}, which one program holds")
    num_accepted, accepted_nodes, accepted_tokens = (
        torch.empty(shape, dtype=torch.int64, device=target_tokens.device)
        for shape in ((batch,), (batch, num_nodes - 1), (batch, num_nodes - 1))
    )
    bonus_token = torch.empty(batch, dtype=target_tokens.dtype, device=target_tokens.device)
    if batch:
        with on_device(target_tokens):
            _verify_kernel[(batch,)](
                tree.tokens.contiguous(),
                tree.parents.contiguous(),
                target_tokens.contiguous(),
                num_accepted,
                accepted_nodes,
                accepted_tokens,
                bonus_token,
                num_nodes,
                block=triton.next_power_of_2(max(num_nodes, 16)),
                num_warps=1 if num_nodes <= 128 else 4,
            )
    return Verification(num_accepted, accepted_nodes, accepted_tokens, bonus_token)


def _refuse(found: str, expected: str) -> NoReturn:
    action = "Run the target over all nodes of the tree and take the argmax of each."
    raise Eagle3RefError("verifying a draft tree with Triton", found=found, expected=expected, action=action)
