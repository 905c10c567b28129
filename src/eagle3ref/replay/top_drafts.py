"""A round whose drafts are the draft's top choices: a draft is kept if and only if it is the recorded next token."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.draft import DraftLoop, Eagle3Draft, FirstLevel, best_next, propose
from eagle3ref.replay.batch import Batch, Outcome
from eagle3ref.replay.probabilities import RecordedProbabilities
from eagle3ref.tree import DraftTree, build_tree
from eagle3ref.verify import Verification, verify_greedy


def play_top_drafts(
    batch: Batch,
    root: Tensor,
    active: Tensor,
    draft: Eagle3Draft,
    tree: TreeConfig,
    *,
    probabilities: RecordedProbabilities | None,
    loop: DraftLoop,
    every_tree: bool,
) -> Outcome:
    """One round from each root; those that are not active idle.

    True of greedy verification, and of every rule that keeps a top choice with the target's probability of it:
    target-only sampling, multi-round, and rejection or block verification of one-hot drafts.

    Args:
        probabilities: the target's; None if no ``expected`` is asked for.
        loop: how the passes of the draft loop follow one another.
        every_tree: build the trees that accept nothing too, which show already at the first level. Without, the drafts
            of such a round are counted level by level from the root; of a chain, that is where they are.
    """
    state, normed = batch.before(root)
    first = FirstLevel(state, *best_next(draft, normed, tree.topk))
    offered = _level_by_level(tree).to(root.device).repeat(len(root), 1)
    accepted = torch.zeros_like(root)
    expected = torch.full((len(root), tree.num_steps), torch.nan, dtype=torch.float64, device=root.device)
    rows = _worth_drafting(batch, root, active, first, only_hits=tree.topk == 1 or not every_tree)
    if probabilities is not None:
        rows = torch.arange(len(root), device=root.device)
    if not len(rows):
        return Outcome(accepted, offered, expected)
    drafted = build_tree(
        propose(
            draft, FirstLevel(*(part[rows] for part in first)), root[rows, None], batch.prefixes(root, rows), tree, loop
        ),
        root_tokens=batch.tokens[rows, root[rows]],
        prefix_lengths=root[rows],
        num_draft_tokens=tree.num_draft_tokens,
    )
    verified = verify_greedy(drafted, batch.recorded(drafted.positions + 1, rows))
    if probabilities is not None:
        _expect(expected, batch, root, active, drafted, verified, probabilities)
    accepted[rows] = verified.num_accepted
    offered[rows] = torch.nn.functional.one_hot(drafted.depths, tree.num_steps + 1).sum(1)[:, 1:]
    return Outcome(accepted, offered, expected)


def _worth_drafting(batch: Batch, root: Tensor, active: Tensor, first: FirstLevel, *, only_hits: bool) -> Tensor:
    """int64 [n], the sequences of which the draft loop can change what is reported."""
    if only_hits:
        active = active & (first.tokens[:, 0] == batch.recorded(root[:, None] + 1)).any(-1)
    return active.nonzero()[:, 0]


def _level_by_level(tree: TreeConfig) -> Tensor:
    """int64 [S], as many drafts at each depth as it can hold, from the root on."""
    left, levels = tree.num_draft_tokens - 1, []
    for depth in range(tree.num_steps):
        levels.append(min(left, tree.topk if depth == 0 else tree.topk**2))
        left -= levels[-1]
    return torch.tensor(levels)


def _expect(
    expected: Tensor,
    batch: Batch,
    root: Tensor,
    active: Tensor,
    drafted: DraftTree,
    verified: Verification,
    probabilities: RecordedProbabilities,
) -> None:
    """Fill in, at each node of the accepted path, the target's probability that the next token is a child of it."""
    step = torch.arange(expected.shape[1], device=root.device)
    on_path = (step <= verified.num_accepted[:, None]) & active[:, None]
    decides = on_path & (root[:, None] + step + 1 < batch.lengths[:, None])  # the last token has nothing after it
    path = torch.nn.functional.pad(verified.accepted_nodes, (1, expected.shape[1]), value=0)
    rows, steps = decides.nonzero(as_tuple=True)
    for some_rows, positions, probs in probabilities.after(rows, root[rows] + steps):
        some_steps = positions - root[some_rows]
        node = path[some_rows, some_steps]
        children = drafted.parents[some_rows] == node[:, None]  # [block, N]
        mass = probs.gather(1, drafted.tokens[some_rows])
        expected[some_rows, some_steps] = (mass * children).sum(1)
