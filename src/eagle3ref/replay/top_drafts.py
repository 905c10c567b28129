"""A round whose drafts are the draft's top choices: a draft is kept if and only if it is the recorded next token."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.draft import Eagle3Draft, FirstLevel, best_next, propose
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
) -> Outcome:
    """One round from each root; those that are not active idle.

    True of greedy verification, and of every rule that keeps a top choice with the target's probability of it:
    target-only sampling, multi-round, and rejection or block verification of one-hot drafts.
    """
    state, normed = batch.before(root)
    first = FirstLevel(state, *best_next(draft, normed, tree.topk))
    drafted = build_tree(
        propose(draft, first, root[:, None], batch.cache.prefixes(root), tree),
        root_tokens=batch.tokens.gather(1, root[:, None])[:, 0],
        prefix_lengths=root,
        num_draft_tokens=tree.num_draft_tokens,
    )
    ahead = drafted.positions + 1
    recorded = batch.tokens.gather(1, ahead.clamp_max(batch.tokens.shape[1] - 1))
    truth = torch.where(ahead < batch.tokens.shape[1], recorded, -1)  # -1, no token: nothing matches past the end
    verified = verify_greedy(drafted, truth)
    expected = torch.full((len(root), tree.num_steps), torch.nan, dtype=torch.float64, device=root.device)
    if probabilities is not None:
        _expect(expected, batch, root, active, drafted, verified, probabilities)
    offered = torch.nn.functional.one_hot(drafted.depths, tree.num_steps + 1).sum(1)[:, 1:]
    return Outcome(verified.num_accepted, offered, expected)


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
