"""The C++ and CUDA twins of ``csrc/``: the reference's functions under its names and signatures, bit for bit.

Importing this loads nothing; the first call does. What the reference refuses is refused, in its words. On a CUDA device
nothing waits for the GPU, and so nothing is refused for its values: a tree with orphans has them under the root, and a
verification that would be refused accepts nothing and has the bonus token -1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor

from eagle3ref import tree as reference_tree
from eagle3ref import verify as reference_verify
from eagle3ref.config import AcceptanceRule
from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels.native_library import native_ops, require_built
from eagle3ref.target import int4 as reference_int4
from eagle3ref.tree import Candidates, DraftTree
from eagle3ref.verify import Verification
from eagle3ref.verify.target_only import SMALLEST_THRESHOLD, TARGET_ONLY

__all__ = [
    "build_tree",
    "dequantize_int4",
    "require_built",
    "tally_settings",
    "unpack_int4",
    "verify_greedy",
    "verify_target_only",
    "visited_positions",
    "walk_positions",
]

_IDS = (torch.int64,)
_SCORES = (torch.float32, torch.float64)
_SCALES = (torch.bfloat16, torch.float16, torch.float32)
_WORDS_PER_GROUP = reference_int4.GROUP_SIZE // 8
_LARGEST_TREE = torch.iinfo(torch.int16).max  # ranks are int16, and the largest says "in no tree"


def build_tree(
    candidates: Candidates, *, root_tokens: Tensor, prefix_lengths: Tensor, num_draft_tokens: int
) -> DraftTree:
    """Twin of ``eagle3ref.build_tree``, on CPU and CUDA: its arguments, its errors. Roots and lengths are int64."""
    scores, size = candidates.scores, candidates.scores.shape[1]
    _expect(
        "building the draft tree",
        scores=(scores, _SCORES),
        tokens=(candidates.tokens, _IDS),
        parents=(candidates.parents, _IDS),
        root_tokens=(root_tokens, _IDS),
        prefix_lengths=(prefix_lengths, _IDS),
    )
    one_each = root_tokens.shape == prefix_lengths.shape == scores.shape[:1]
    if one_each and 2 <= num_draft_tokens <= size + 1:
        *parts, refused = native_ops().build_tree(
            scores, candidates.tokens, candidates.parents, root_tokens, prefix_lengths, num_draft_tokens
        )
        if _may_be_used(refused):
            return DraftTree(*parts)
    raise _as_reference(
        "building the draft tree",
        lambda: reference_tree.build_tree(
            candidates, root_tokens=root_tokens, prefix_lengths=prefix_lengths, num_draft_tokens=num_draft_tokens
        ),
    )


def verify_greedy(tree: DraftTree, target_tokens: Tensor) -> Verification:
    """Twin of ``eagle3ref.verify_greedy``, on CPU and CUDA: its arguments, its errors.

    One pass over the nodes walks the tree, so a parent must precede its children, as ``DraftTree`` promises.
    """
    doing = "verifying a draft tree"
    _expect(doing, tokens=(tree.tokens, _IDS), parents=(tree.parents, _IDS), target_tokens=(target_tokens, _IDS))
    _expect_nodes(doing, tree)
    if target_tokens.shape == tree.tokens.shape:
        *parts, refused = native_ops().verify_greedy(tree.tokens, tree.parents, target_tokens)
        if _may_be_used(refused):
            return Verification(*parts)
    raise _as_reference(doing, lambda: reference_verify.verify_greedy(tree, target_tokens))


def verify_target_only(
    tree: DraftTree,
    target_probs: Tensor,
    uniforms: Tensor,
    final_uniforms: Tensor,
    *,
    rule: AcceptanceRule = TARGET_ONLY,
) -> Verification:
    """Twin of ``eagle3ref.verify.verify_target_only``, on CPU and CUDA: its arguments, its errors.

    The sum that draws the bonus is the CPU reference's, in its order, on both devices: exact, but on a GPU not fast.
    """
    doing = "verifying a draft tree by sampling"
    floats = (torch.bfloat16, torch.float16, *_SCORES)
    _expect(
        doing,
        tokens=(tree.tokens, _IDS),
        parents=(tree.parents, _IDS),
        target_probs=(target_probs, _SCORES),
        uniforms=(uniforms, floats),
        final_uniforms=(final_uniforms, floats),
    )
    _expect_nodes(doing, tree)
    nodes = tree.tokens.shape
    fits = target_probs.shape[:-1] == uniforms.shape == nodes and final_uniforms.shape == nodes[:1]
    if fits and target_probs.shape[-1] > 0:
        *parts, refused = native_ops().verify_target_only(
            tree.tokens,
            tree.parents,
            target_probs,
            uniforms.double(),
            final_uniforms.double(),
            rule.threshold_single,
            max(rule.threshold_acc, SMALLEST_THRESHOLD),
            rule.inclusive,
        )
        if _may_be_used(refused):
            return Verification(*parts)
    raise _as_reference(
        doing,
        lambda: reference_verify.verify_target_only(tree, target_probs, uniforms, final_uniforms, rule=rule),
    )


def walk_positions(num_accepted: Tensor) -> Tensor:
    """Twin of ``positions.walk_positions``: the roots that a walk over one sequence comes to.

    Args:
        num_accepted: int64 [R], drafts that a round from each root keeps, on CPU or CUDA.

    Returns:
        int64 [n], indices into R, ascending.

    Raises:
        Eagle3RefError: no vector of int64.
    """
    if num_accepted.dim() != 1:
        _refuse("walking over positions", f"num_accepted of shape {list(num_accepted.shape)}", "int64 [R]")
    return visited_positions(num_accepted).nonzero()[:, 0]


def visited_positions(num_accepted: Tensor) -> Tensor:
    """Twin of ``positions.visited_positions``: the walks of many sequences or settings side by side.

    Args:
        num_accepted: int64 [..., R], >= 0, on CPU or CUDA. Shorter sequences are padded at their end, with anything.

    Returns:
        Bool [..., R], whether the walk visits that root; of padding, anything.

    Raises:
        Eagle3RefError: another dtype, or no dimension.
    """
    _expect("walking over positions", num_accepted=(num_accepted, _IDS))
    if num_accepted.dim() == 0:
        _refuse("walking over positions", "num_accepted without a dimension", "int64 [..., R]")
    lanes = num_accepted.unsqueeze(0).flatten(0, -2)
    visited: Tensor = native_ops().visited_positions(lanes)
    return visited.reshape(num_accepted.shape)


def tally_settings(ranks: Tensor, starts: Tensor, num_steps: Tensor, num_draft_tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Walk each of B sequences under each of Q settings; twin of ``tune.walk_settings`` on plain tensors.

    Args:
        ranks: int16 [R, S, S], ``SequenceRanks.ranks`` of all sequences one after the other, on CPU or CUDA.
        starts: int64 [B + 1]; sequence b has the roots ``starts[b]`` to ``starts[b + 1] - 1``.
        num_steps: int64 [Q], 1 to S.
        num_draft_tokens: int64 [Q], up to 32767. These three are on the CPU.

    Returns:
        histogram int64 [Q, B, S + 1], complete rounds by accepted drafts, and censored int64 [Q, B], rounds whose
        num_steps tokens run past the record; where ranks are.

    Raises:
        Eagle3RefError: another dtype or shape, or numbers out of range.
    """
    doing = "walking the settings of a tree"
    _expect(doing, ranks=(ranks, (torch.int16,)))
    _expect(doing, starts=(starts, _IDS), num_steps=(num_steps, _IDS), num_draft_tokens=(num_draft_tokens, _IDS))
    shapes = [list(part.shape) for part in (ranks, starts, num_steps, num_draft_tokens)]
    if [len(shape) for shape in shapes] != [3, 1, 1, 1] or shapes[0][1] != shapes[0][2] or shapes[2] != shapes[3]:
        _refuse(doing, f"shapes {shapes}", "ranks [R, S, S], starts [B + 1], num_steps [Q] and num_draft_tokens [Q]")
    if not _are_bounds(starts, len(ranks)):
        _refuse(doing, f"starts {starts.tolist()!s:.60}", f"numbers from 0 to the {len(ranks)} roots that never fall")
    if not ((num_steps >= 1) & (num_steps <= ranks.shape[1]) & (num_draft_tokens <= _LARGEST_TREE)).all():
        found = f"num_steps {num_steps.tolist()!s:.60} and num_draft_tokens {num_draft_tokens.tolist()!s:.60}"
        _refuse(doing, found, f"1 to {ranks.shape[1]} steps and at most {_LARGEST_TREE} tokens")
    device = ranks.device
    histogram, censored = native_ops().tally_settings(
        ranks, starts.to(device), num_steps.to(device), num_draft_tokens.to(device)
    )
    return histogram, censored


def unpack_int4(packed: Tensor) -> Tensor:
    """Twin of ``target.int4.unpack_int4``: int32 [out, in / 8] to int8 [out, in], on CPU and CUDA.

    Raises:
        Eagle3RefError: another dtype or shape.
    """
    doing = "unpacking INT4"
    _expect(doing, packed=(packed, (torch.int32,)))
    if packed.dim() != 2:
        _refuse(doing, f"packed of shape {list(packed.shape)}", "[out, in / 8]")
    values: Tensor = native_ops().unpack_int4(packed)
    return values


def dequantize_int4(packed: Tensor, scale: Tensor, shape: Tensor, name: str) -> Tensor:
    """Twin of ``target.int4.dequantize_int4``: its arguments, its errors; scales in bf16, fp16 or fp32."""
    doing = f"unpacking the INT4 weight {name}"
    _expect(doing, packed=(packed, (torch.int32,)), scale=(scale, _SCALES))
    packed_shape = [*scale.shape[:-1], scale.shape[-1] * _WORDS_PER_GROUP]
    full_shape = [*scale.shape[:-1], scale.shape[-1] * reference_int4.GROUP_SIZE]
    if scale.dim() != 2 or [list(packed.shape), shape.tolist()] != [packed_shape, full_shape]:
        raise _as_reference(doing, lambda: reference_int4.dequantize_int4(packed, scale, shape, name))
    weight: Tensor = native_ops().dequantize_int4(packed, scale)
    return weight


def _are_bounds(starts: Tensor, num_roots: int) -> bool:
    ends = starts.tolist()
    return bool(ends) and (ends[0], ends[-1]) == (0, num_roots) and ends == sorted(ends)


def _expect(doing: str, **tensors: tuple[Tensor, tuple[torch.dtype, ...]]) -> None:
    """Refuse a tensor of a dtype that its operator does not read, and tensors that are not together."""
    for name, (tensor, dtypes) in tensors.items():
        if tensor.dtype not in dtypes:
            _refuse(doing, f"{name} of {tensor.dtype}", " or ".join(map(str, dtypes)))
    devices = sorted({str(tensor.device) for tensor, _ in tensors.values()})
    if len(devices) > 1 or devices[0].partition(":")[0] not in ("cpu", "cuda"):
        _refuse(doing, f"tensors on {' and '.join(devices)}", "all on the CPU or all on one CUDA device")


def _expect_nodes(doing: str, tree: DraftTree) -> None:
    """Refuse what has not the shape of a tree."""
    shapes = [list(tree.tokens.shape), list(tree.parents.shape)]
    if tree.tokens.dim() != 2 or shapes[0] != shapes[1] or shapes[0][1] == 0:
        _refuse(doing, f"tokens and parents of shapes {shapes}", "[B, N] both, with a root at least")


def _may_be_used(refused: Tensor) -> bool:
    """Whether no sequence has to be refused; on a GPU nobody looks, because looking would wait for it."""
    return refused.is_cuda or not bool(refused.any())


def _as_reference(doing: str, reference: Callable[[], object]) -> Eagle3RefError:
    """Let the reference refuse the input, in its own words; what only the twin refuses is no tree at all."""
    reference()
    return _refusal(doing, "a parent that does not precede its child", "-1 for node 0, an earlier node for others")


def _refuse(doing: str, found: str, expected: str) -> NoReturn:
    raise _refusal(doing, found, expected)


def _refusal(doing: str, found: str, expected: str) -> Eagle3RefError:
    action = "Correct the input, or call the reference's function of that name if it takes it."
    return Eagle3RefError(f"{doing} with the native twin", found=found, expected=expected, action=action)
