"""A draft of a few tokens that is no network: every row's children follow from its root and the rows that it sees."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from oracles import best, fp32
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.nn import Rows
from eagle3ref.positions.branches import Branches

VOCAB = 6
BEYOND = 32767
# Smooth distributions, those with ties and certainty, and those whose products underflow to 0.
STYLES: dict[str, tuple[tuple[float, ...], ...]] = {
    "smooth": (),
    "ties": ((1.0,), (0.5, 0.5), (0.5, 0.25, 0.25), (0.25,) * 4, (0.75, 0.25)),
    "underflow": ((1.0, *[1e-30] * 5), (0.5, 0.5, *[1e-25] * 4), (1 / 6,) * 6, (1e-20,) * 6),
}


class MadeDraft:
    """As ``BranchRows``. A row's own rows are the tokens that it sees, so a wrong history gives wrong children.

    Args:
        seed: of everything.
        topk: children of each row.
        style: of their probabilities.
        recorded: the true continuation of each root.
    """

    def __init__(self, seed: int, topk: int, style: str, recorded: Sequence[Sequence[int]]) -> None:
        self.seed, self.topk, self.style, self.recorded = seed, topk, style, recorded
        self.num_rows = 0

    def children(self, root: int, seen: tuple[int, ...]) -> tuple[list[float], list[int]]:
        """Probabilities, best first, and tokens."""
        rng = random.Random(f"{self.seed}/{root}/{seen}")
        tokens = rng.sample(range(VOCAB), self.topk)
        if self.style == "smooth":
            weights = [rng.random() ** 4 for _ in range(VOCAB)]
            probs = [weight / sum(weights) for weight in weights]
        else:
            probs = [*rng.choice(STYLES[self.style]), *[0.0] * VOCAB][:VOCAB]
        return sorted(map(fp32, probs), reverse=True)[: self.topk], tokens

    def first(self, which: Tensor) -> Branches:
        return self._branches(which, [()] * len(which), [])

    def run(self, which: Tensor, step: int, state: Tensor, tokens: Tensor, own: list[Rows]) -> Branches:
        self.num_rows += len(which)
        seen = own[0].first[0] if own else tokens.new_zeros(len(which), 0)
        assert seen.shape == (len(which), step)
        seen = torch.cat((seen, tokens[:, None]), 1)
        return self._branches(which, list(map(tuple, seen.tolist())), [Rows(seen[None], seen[None])])._replace(
            state=state
        )

    def wanted(self, which: Tensor, depth: int) -> Tensor:
        paths = [self.recorded[root] for root in which.tolist()]
        return torch.tensor([path[depth - 1] if depth <= len(path) else -1 for path in paths], dtype=torch.int64)

    def _branches(self, which: Tensor, seen: list[tuple[int, ...]], own: list[Rows]) -> Branches:
        found = [self.children(root, history) for root, history in zip(which.tolist(), seen, strict=True)]
        probs = torch.tensor([probs for probs, _ in found]).reshape(-1, self.topk)
        tokens = torch.tensor([tokens for _, tokens in found], dtype=torch.int64).reshape(-1, self.topk)
        return Branches(torch.zeros(len(found), 1), probs, tokens, own)

    def ranks(self, root: int, tree: TreeConfig) -> list[list[int]]:
        """[S, S] by the whole beam search and a sort of all its candidates, in plain Python."""
        probs, tokens = self.children(root, ())
        beams = [(score, (token,)) for score, token in zip(probs, tokens, strict=True)]
        everything, slots = list(beams), [()] * tree.topk
        for _ in range(tree.num_steps - 1):
            earlier = [path[:-1] for _, path in beams] if tree.tree_kv == "ancestor" else slots
            slots = [(*seen, path[-1]) for seen, (_, path) in zip(earlier, beams, strict=True)]
            level = [
                (fp32(score * p), (*path, token))
                for seen, (score, path) in zip(slots, beams, strict=True)
                for p, token in zip(*self.children(root, seen), strict=True)
            ]
            everything += level
            beams = [level[index] for index in best([score for score, _ in level], tree.topk)]
        table = [[BEYOND] * tree.num_steps for _ in range(tree.num_steps)]
        for steps in range(1, tree.num_steps + 1):
            candidates = everything[: TreeConfig(steps, tree.topk, steps + 1).num_candidates]
            order = best([score for score, _ in candidates], tree.num_draft_tokens - 1)
            for place, index in enumerate(order, 1):
                path = candidates[index][1]
                if path == tuple(self.recorded[root][: len(path)]):
                    table[len(path) - 1][steps - 1] = place
        return table
