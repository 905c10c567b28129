"""Where the true continuation stands among the candidates of a tree, with only the rows that can change the answer.

The true continuation of a root is known, and no descendant of a beam outscores it. So a row is left out when nothing
that could follow it comes before a true node that still matters, and a root is finished when no such row is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.positions.bounds import TruePath, most_outranking, outranking, places
from eagle3ref.positions.branches import Branches, BranchRows, take
from eagle3ref.positions.ranks import BEYOND
from eagle3ref.sampling import topk_stable


@dataclass
class _Beams:
    """The beams of one depth, of the m roots that are not finished.

    Args:
        which: int64 [m], those roots.
        scores: fp32 [m, K], best first; -inf for one that is not known, and does not matter.
        tokens: int64 [m, K].
        on_path: int64 [m], the beam that is the true node; -1 if none is.
        rows: that were run last.
        parents: int64 [m, K], the row in ``rows`` that each beam follows.
        earlier: int64 [m, K], the row in ``rows`` whose own rows it sees.
    """

    which: Tensor
    scores: Tensor
    tokens: Tensor
    on_path: Tensor
    rows: Branches
    parents: Tensor
    earlier: Tensor


class _Level:
    """The children of some beams, as far as they are known: K for each beam."""

    def __init__(self, beams: _Beams) -> None:
        size, topk = beams.scores.shape
        self.beams = beams
        self.rows: list[Branches] = []
        self.row_at = torch.full_like(beams.tokens, -1)  # [m, K], the row of each beam; -1 if it was not run
        self.scores = beams.scores.new_full((size, topk, topk), -torch.inf)
        self.tokens = beams.tokens.new_full((size, topk, topk), -1)

    def add(self, roots: Tensor, slots: Tensor, rows: Branches) -> None:
        """The children of the beams at ``[roots, slots]``."""
        self.row_at[roots, slots] = torch.arange(len(roots), device=roots.device) + sum(len(r.state) for r in self.rows)
        self.scores[roots, slots] = self.beams.scores[roots, slots, None] * rows.probs.float()
        self.tokens[roots, slots] = rows.tokens
        self.rows.append(rows)


class TreeSearch:
    """The search over n roots. After ``run``, ``ranks`` and ``num_rows`` hold what it found.

    Args:
        rows: runs draft rows of the roots.
        num_roots: n.
        tree: the tree's settings.
        every_setting: whether all places matter, up to ``num_draft_tokens``, at every number of steps. Otherwise only
            whether a true node is in this one tree, and more rows can be left out.
        device: of the roots.
    """

    def __init__(
        self, rows: BranchRows, num_roots: int, tree: TreeConfig, *, every_setting: bool, device: torch.device
    ) -> None:
        self._draft, self._tree, self._every_setting = rows, tree, every_setting
        self._scores = torch.full((num_roots, tree.num_candidates), -torch.inf, device=device)
        shape = num_roots, tree.num_steps
        self._path = TruePath(
            torch.zeros(shape, device=device),
            torch.full(shape, tree.num_candidates, device=device),
            torch.zeros(num_roots, dtype=torch.int64, device=device),
        )
        self._trail: list[tuple[Branches, Tensor]] = []
        self.num_rows = torch.zeros(num_roots, dtype=torch.int64, device=device)

    @property
    def ranks(self) -> Tensor:
        """int16 [n, S, S], as ``SequenceRanks.ranks``. Without ``every_setting`` only the last column, s = S, says
        anything: whether a node is in the tree."""
        place = places(self._scores, self._path, self._tree.topk)
        depth = torch.arange(self._tree.num_steps, device=place.device)
        is_candidate = self._path.candidates < self._tree.num_candidates
        there = is_candidate[:, :, None] & (depth[:, None] <= depth)
        return place.where(there & (place < self._tree.num_draft_tokens), BEYOND).short()

    def run(self) -> None:
        """Level by level, until every root is finished."""
        beams = self._first_level()
        if self._tree.tree_kv == "ancestor":
            self._follow_path(beams)
        for step in range(self._tree.num_steps - 1):
            level, child, keep = self._expand(beams, step)
            if not len(keep):
                break
            beams = self._choose(level, child, keep, step)

    def _first_level(self) -> _Beams:
        which = (self._draft.wanted(torch.arange(len(self._scores), device=self._scores.device), 1) >= 0).nonzero()[
            :, 0
        ]
        rows = self._draft.first(which)
        matches = rows.tokens == self._draft.wanted(which, 1)[:, None]
        hits = matches.any(1).nonzero()[:, 0]
        which, on_path, scores = which[hits], matches[hits].byte().argmax(1), rows.probs[hits].float()
        self._scores[which, : self._tree.topk] = scores
        self._path.scores[which, 0] = scores.gather(1, on_path[:, None])[:, 0]
        self._path.candidates[which, 0] = on_path
        self._path.depth[which] = 1
        self._drop(which)
        parents = hits[:, None].expand(-1, self._tree.topk)
        return _Beams(which, scores, rows.tokens[hits], on_path, rows, parents, parents)

    def _follow_path(self, beams: _Beams) -> None:
        """Run the true path of each root as a chain, while the next token is among the children of the last.

        A row that sees its true ancestors only is the same whatever the other beams are. So the score of the deepest
        node that may matter is known before any other row is run.
        """
        which, rows = beams.which[self._path.depth[beams.which] > 0], beams.rows
        at = beams.parents[self._path.depth[beams.which] > 0, 0]
        for step in range(self._tree.num_steps - 1):
            goes_on = self._draft.wanted(which, step + 2) >= 0
            which, at = which[goes_on], at[goes_on]
            if not len(which):
                break
            rows = self._run(which, step, rows, at, self._draft.wanted(which, step + 1), at)
            row_of = torch.full_like(self.num_rows, -1)
            row_of[which] = torch.arange(len(which), device=which.device)
            self._trail.append((rows, row_of))
            matches = rows.tokens == self._draft.wanted(which, step + 2)[:, None]
            at = matches.any(1).nonzero()[:, 0]
            which, children = which[at], matches[at].byte().argmax(1)
            self._path.scores[which, step + 1] = self._path.scores[which, step] * rows.probs[at, children].float()
            self._path.depth[which] = step + 2

    def _expand(self, beams: _Beams, step: int) -> tuple[_Level, Tensor, Tensor]:
        """Run what is needed of pass ``step``.

        Returns:
            What is known of the children; the true node among the K * K of each root [m], -1 if it is not there; the
            indices of the roots that go on.
        """
        level = _Level(beams)
        child = self._run_true(level, step)
        self._store(level, step)
        needed = self._needed(level, step)
        goes_on = needed.any(1) | ((self._path.depth[beams.which] > step + 1) & (child >= 0))
        if not self._every_setting:
            goes_on = goes_on & ~self._is_settled(level, step)
        roots, slots = (needed & goes_on[:, None]).nonzero(as_tuple=True)
        if len(roots):
            self._run_at(level, roots, slots, step)
            self._store(level, step)
        return level, child, goes_on.nonzero()[:, 0]

    def _run_true(self, level: _Level, step: int) -> Tensor:
        """Run, or look up, the rows of true nodes; enter what they say about the next one."""
        beams = level.beams
        needed = (self._path.depth[beams.which] > step) & (beams.on_path >= 0)
        needed &= self._draft.wanted(beams.which, step + 2) >= 0
        if self._tree.tree_kv == "ancestor":
            needed &= self._path.depth[beams.which] > step + 1
        child = torch.full_like(beams.which, -1)
        roots = needed.nonzero()[:, 0]
        if not len(roots):
            return child
        which, slots = beams.which[roots], beams.on_path[roots]
        if self._tree.tree_kv == "ancestor":
            trail, row_of = self._trail[step]
            at = row_of[which]
            rows = Branches(trail.state[at], trail.probs[at], trail.tokens[at], take(trail.own, at))
            level.add(roots, slots, rows)
        else:
            rows = self._run_at(level, roots, slots, step)
        matches = rows.tokens == self._draft.wanted(which, step + 2)[:, None]
        hits = matches.any(1).nonzero()[:, 0]
        child[roots[hits]] = slots[hits] * self._tree.topk + matches[hits].byte().argmax(1)
        found, which = child[roots[hits]], which[hits]
        self._path.scores[which, step + 1] = level.scores.flatten(1)[roots[hits], found]
        self._path.candidates[which, step + 1] = self._start(step) + found
        self._path.depth[which] = self._path.depth[which].clamp_min(step + 2)
        return child

    def _needed(self, level: _Level, step: int) -> Tensor:
        """Which beams [m, K] still have to be run for what matters of their roots."""
        beams, is_last = level.beams, step + 2 == self._tree.num_steps
        path = self._path.of(beams.which)
        follows = path.depth > step + 1
        lowest = path.lowest[:, None]
        # A child that ties with a true node comes before it only on the same level, or above.
        outscores = torch.where(follows[:, None], beams.scores >= lowest, beams.scores > lowest)
        if self._tree.tree_kv == "slot" and not is_last:
            # A row sees whatever was in its slot before, so all slots of a root are run or none.
            outscores = (follows | (outscores & (level.row_at < 0)).any(1))[:, None].expand_as(outscores)
        return outscores & (level.row_at < 0)

    def _is_settled(self, level: _Level, step: int) -> Tensor:
        """Whether the deepest node that matters surely stays in the tree, bool [m], and no deeper one can come."""
        which = level.beams.which
        path = self._path.of(which)
        knows_child = self._tree.tree_kv == "ancestor" or step + 2 == self._tree.num_steps
        is_known = path.depth <= (step + 2 if knows_child else step + 1)
        deepest = (path.depth - 1).clamp_min(0)[:, None, None].expand(-1, 1, self._scores.shape[1])
        before = outranking(self._scores[which], path).gather(1, deepest)[:, 0].sum(1)
        levels = self._tree.num_steps - 1 - step
        after = most_outranking(level.beams.scores, path.lowest, levels, level.row_at < 0)
        return is_known & (before + after < self._tree.num_draft_tokens - 1)

    def _choose(self, level: _Level, child: Tensor, keep: Tensor, step: int) -> _Beams:
        """The K best children of the roots at the indices ``keep``."""
        topk, which, child = self._tree.topk, level.beams.which[keep], child[keep]
        scores, chosen = topk_stable(level.scores[keep].flatten(1), topk)
        is_true = chosen == child[:, None]
        on_path = is_true.byte().argmax(1).where(is_true.any(1), -1)
        lost = which[on_path < 0]  # the true node has no children among the candidates
        self._path.depth[lost] = self._path.depth[lost].clamp_max(step + 2)
        from_beam, row_at = chosen // topk, level.row_at[keep]
        parents = row_at.gather(1, from_beam)
        earlier = parents if self._tree.tree_kv == "ancestor" else row_at
        tokens = level.tokens[keep].flatten(1).gather(1, chosen)
        return _Beams(which, scores, tokens, on_path, Branches.join(level.rows), parents, earlier)

    def _run_at(self, level: _Level, roots: Tensor, slots: Tensor, step: int) -> Branches:
        """Run the beams at ``[roots, slots]`` of a level."""
        beams = level.beams
        tokens, parents, earlier = (part[roots, slots] for part in (beams.tokens, beams.parents, beams.earlier))
        rows = self._run(beams.which[roots], step, beams.rows, parents, tokens, earlier)
        level.add(roots, slots, rows)
        return rows

    def _run(
        self, which: Tensor, step: int, rows: Branches, parents: Tensor, tokens: Tensor, earlier: Tensor
    ) -> Branches:
        self.num_rows += torch.bincount(which, minlength=len(self.num_rows))
        return self._draft.run(which, step, rows.state[parents], tokens, take(rows.own, earlier))

    def _start(self, step: int) -> int:
        """Flat index of the first child of pass ``step``."""
        return self._tree.topk + step * self._tree.topk**2

    def _store(self, level: _Level, step: int) -> None:
        """Enter the scores, and forget the true nodes that are in none of the trees any more."""
        self._scores[level.beams.which, self._start(step) : self._start(step + 1)] = level.scores.flatten(1)
        self._drop(level.beams.which)

    def _drop(self, which: Tensor) -> None:
        """Only those true nodes still matter that have fewer than ``num_draft_tokens - 1`` candidates before them."""
        path = self._path.of(which)
        before = outranking(self._scores[which], path).sum(-1)  # [m, S]
        there = torch.arange(self._tree.num_steps, device=which.device) < path.depth[:, None]
        self._path.depth[which] = (there & (before < self._tree.num_draft_tokens - 1)).sum(1)
