"""Greedy verification: a draft is accepted if it is the target's first choice."""

from __future__ import annotations

from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.tree import DraftTree
from eagle3ref.verify.walk import Verification, conclude, walk


def verify_greedy(tree: DraftTree, target_tokens: Tensor) -> Verification:
    """Walk down from the root while a child holds the target's token (SGLang 0.5.23, eagle.cuh).

    Children are tried in ascending node index and the first match is taken.

    Args:
        tree: N nodes for each of B sequences.
        target_tokens: int64 [B, N], the target's argmax after each node.

    Raises:
        Eagle3RefError: target tokens that are not [B, N].
    """
    if target_tokens.shape != tree.tokens.shape:
        raise Eagle3RefError(
            "verifying a draft tree",
            found=f"target_tokens of shape {list(target_tokens.shape)}",
            expected=f"{list(tree.tokens.shape)}, one token after each node of the tree",
            action="Run the target over all nodes of the tree and take the argmax of each.",
        )
    matches = tree.tokens == target_tokens.gather(1, tree.parents.clamp(min=0))
    nodes, last = walk(tree, matches)
    return conclude(tree, nodes, target_tokens.gather(1, last[:, None])[:, 0])
