"""The draft tree: beams, the choice of candidates, and the tree they make. Pure functions, batched.

The order of everything is SGLang 0.5.23's: candidates lie flat, step 0 at [0, K) and step i >= 1 at
[K + K^2 (i-1), K + K^2 i); a higher score wins, then the lower flat index. A parent has a lower flat index than its
children and no lower score, so equal scores (p = 1, or underflow to 0) never orphan a child.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.sampling import topk_stable


@dataclass(frozen=True)
class Candidates:
    """Every token that the draft loop scored, expanded or not, in flat order. M = K + (S-1) * K^2.

    Args:
        scores: float [B, M], the product of the probabilities from the root; it never rises from parent to child.
        tokens: int64 [B, M], target ids.
        parents: int64 [B, M], flat index of the parent candidate, lower than its own; -1 is the root.

    Raises:
        Eagle3RefError: shapes that differ, or ids that are not int64.
    """

    scores: Tensor
    tokens: Tensor
    parents: Tensor

    def __post_init__(self) -> None:
        shapes = [list(field.shape) for field in (self.scores, self.tokens, self.parents)]
        if self.scores.dim() != 2 or shapes[1:] != shapes[:1] * 2:
            _refuse(f"shapes {shapes}", "scores, tokens and parents of one shape [B, M]")
        if {self.tokens.dtype, self.parents.dtype} != {torch.int64}:
            _refuse(f"dtypes {self.tokens.dtype} and {self.parents.dtype}", "int64 tokens and parents")


@dataclass(frozen=True)
class DraftTree:
    """A tree of N nodes for each of B sequences; node 0 is the root and a parent precedes its children.

    Siblings are ordered by node index, which is the order that verification tries them in.

    Args:
        tokens: int64 [B, N], target ids.
        parents: int64 [B, N], node index of the parent; -1 for the root.
        depths: int64 [B, N], 0 for the root.
        positions: int64 [B, N], rope positions in the target: prefix length + depth.
        tree_mask: bool [B, N, N], True where row may attend to column: the node, its ancestors, the root.
            The committed prefix, which every node sees, is not in it.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    positions: Tensor
    tree_mask: Tensor

    @classmethod
    def from_parents(cls, tokens: Tensor, parents: Tensor, prefix_lengths: Tensor) -> DraftTree:
        """The tree that parents describe.

        Args:
            tokens: int64 [B, N].
            parents: int64 [B, N], as in the class.
            prefix_lengths: int64 [B], committed tokens before the root.

        Raises:
            Eagle3RefError: shapes that do not fit, a first node that is not the root, or a parent that does not
                precede its child.
        """
        if tokens.shape != parents.shape or prefix_lengths.shape != parents.shape[:1]:
            shapes = [list(field.shape) for field in (tokens, parents, prefix_lengths)]
            _refuse(f"tokens, parents and prefix_lengths of shapes {shapes}", "[B, N], [B, N] and [B]")
        size = parents.shape[-1]
        node = torch.arange(size, device=parents.device)
        lowest = node.clamp(max=1) - 1  # -1 for the root, 0 for all others
        bad = (parents < lowest) | (parents >= node)
        if bad.any():
            sequence, child = bad.nonzero()[0].tolist()
            found = f"parent {int(parents[sequence, child])} of node {child} of sequence {sequence}"
            _refuse(found, "-1 for node 0, an earlier node for every other")
        ancestor = parents.clamp(min=0)  # [B, N], 2^i levels up after i rounds
        mask = torch.eye(size, dtype=torch.bool, device=parents.device).repeat(len(parents), 1, 1)  # [B, N, N]
        for _ in range((size - 1).bit_length()):
            mask = mask | mask.gather(1, ancestor[..., None].expand_as(mask))
            ancestor = ancestor.gather(1, ancestor)
        depths = mask.sum(-1) - 1
        return cls(tokens, parents, depths, prefix_lengths[:, None] + depths, mask)

    @property
    def next_token(self) -> Tensor:
        """int64 [B, N], first child or -1: SGLang's ``retrieve_next_token``."""
        node = torch.arange(self.parents.shape[-1], device=self.parents.device)
        return _first_true(self.parents[:, None, :] == node[:, None])

    @property
    def next_sibling(self) -> Tensor:
        """int64 [B, N], next node with the same parent or -1: SGLang's ``retrieve_next_sibling``."""
        return _first_true((self.parents[:, None, :] == self.parents[:, :, None]).triu(1))


def extend_beams(beam_scores: Tensor, child_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Score the K best children of each of K beams, and choose the K best of all as the next beams.

    Args:
        beam_scores: [B, K], score of each beam.
        child_probs: [B, K, K], probabilities of the children of each beam, best first.

    Returns:
        scores: fp32 [B, K*K], beam score times child probability.
        chosen: int64 [B, K], the next beams, best first, as indices into scores; ``chosen // K`` is the parent beam.

    Raises:
        Eagle3RefError: shapes that do not fit, or a NaN.
    """
    batch, topk = beam_scores.shape
    if child_probs.shape != (batch, topk, topk):
        found = f"child_probs of shape {list(child_probs.shape)}"
        _refuse(found, f"[{batch}, {topk}, {topk}] for beam_scores of shape {[batch, topk]}")
    scores = (beam_scores.float()[:, :, None] * child_probs.float()).flatten(1)  # [B, K*K]
    return scores, topk_stable(scores, topk)[1]


def select_candidates(candidates: Candidates, num_draft_tokens: int) -> Tensor:
    """Flat indices of the best ``num_draft_tokens - 1`` candidates, in ascending order (SGLang, eagle_utils.py).

    Returns:
        int64 [B, N-1].

    Raises:
        Eagle3RefError: fewer candidates than that, fewer than two nodes, or a NaN score.
    """
    largest = candidates.scores.shape[1] + 1
    if not 2 <= num_draft_tokens <= largest:
        found = f"num_draft_tokens {num_draft_tokens}"
        _refuse(found, f"2 to {largest}, the root and {largest - 1} candidates at most")
    return topk_stable(candidates.scores, num_draft_tokens - 1)[1].sort(-1).values


def build_tree(
    candidates: Candidates, *, root_tokens: Tensor, prefix_lengths: Tensor, num_draft_tokens: int
) -> DraftTree:
    """The tree of the root and the best candidates; node j >= 1 is the j-th chosen flat index (SGLang 0.5.23).

    Args:
        candidates: M for each of B sequences.
        root_tokens: int64 [B], the last committed tokens, not yet verified.
        prefix_lengths: int64 [B], committed tokens before the root, which is the root's position.
        num_draft_tokens: N, nodes with the root.

    Raises:
        Eagle3RefError: N out of range, a NaN score, a chosen candidate whose parent was not chosen, or roots or
            prefix lengths that are not [B].
    """
    batch = len(candidates.scores)
    if root_tokens.shape != (batch,):
        _refuse(f"root_tokens of shape {list(root_tokens.shape)}", f"[{batch}], one a sequence of the candidates")
    chosen = select_candidates(candidates, num_draft_tokens)  # [B, N-1]
    tokens = torch.cat([root_tokens[:, None], candidates.tokens.gather(1, chosen)], 1)  # [B, N]
    return DraftTree.from_parents(tokens, _parent_nodes(candidates, chosen), prefix_lengths)


def _parent_nodes(candidates: Candidates, chosen: Tensor) -> Tensor:
    """chosen int64 [B, N-1], ascending flat indices -> parents int64 [B, N] as node indices."""
    batch, num_candidates = candidates.scores.shape
    # Slot 0 stands for the root (flat -1), slot x + 1 for candidate x.
    node_of = torch.full((batch, num_candidates + 1), -1, device=chosen.device)
    node_of[:, 0] = 0
    nodes = torch.arange(1, chosen.shape[1] + 1, device=chosen.device)
    node_of.scatter_(1, chosen + 1, nodes.expand_as(chosen))
    parent_candidates = candidates.parents.gather(1, chosen)
    parents = node_of.gather(1, (parent_candidates + 1).clamp(0, num_candidates))  # [B, N-1]
    orphans = (parents < 0) | (parent_candidates < -1) | (parent_candidates >= chosen)
    if orphans.any():
        sequence, column = orphans.nonzero()[0].tolist()
        orphan, parent = int(chosen[sequence, column]), int(parent_candidates[sequence, column])
        found = f"node {column + 1} of sequence {sequence} (candidate {orphan}) without its parent, candidate {parent}"
        _refuse(found, "the parent of every chosen candidate chosen too, at a lower flat index and no lower score")
    return torch.nn.functional.pad(parents, (1, 0), value=-1)  # [B, N]


def _first_true(flags: Tensor) -> Tensor:
    """[..., N] bool -> int64 [...], index of the first True or -1."""
    return flags.byte().argmax(-1).where(flags.any(-1), -1)


def _refuse(found: str, expected: str) -> NoReturn:
    action = "Check the tree settings and the draft loop that made the candidates."
    raise Eagle3RefError("building the draft tree", found=found, expected=expected, action=action)
