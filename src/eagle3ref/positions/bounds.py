"""Places of the true nodes among candidates, and how many candidates can still come before them. Pure functions.

A score is a product of probabilities, so no descendant of a beam outscores the beam, and all children of a beam
together have at most its score. A candidate that was not looked at has the score ``-inf`` here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_SLACK = 1 + 2**-10  # probabilities of one row add up to 1 within rounding


class TruePath(NamedTuple):
    """The true nodes of n roots, at depth 1 .. S.

    Args:
        scores: fp32 [n, S].
        candidates: int64 [n, S], flat index; one past the last candidate where it is not known yet.
        depth: int64 [n], how many of them there are. What stands behind is not read.
    """

    scores: Tensor
    candidates: Tensor
    depth: Tensor

    def of(self, which: Tensor) -> TruePath:
        """Of the roots at these indices only."""
        return TruePath(*(part[which] for part in self))

    @property
    def lowest(self) -> Tensor:
        """fp32 [n], the score of the deepest one: no candidate below it comes before any. +inf where there is none."""
        deepest = self.scores.gather(1, (self.depth - 1).clamp_min(0)[:, None])[:, 0]
        return deepest.where(self.depth > 0, torch.inf)


def outranking(scores: Tensor, path: TruePath) -> Tensor:
    """Which candidates come before which true node: higher score, then lower flat index.

    Args:
        scores: fp32 [n, M], in flat order, or the first M of them.
        path: of the same roots.

    Returns:
        Bool [n, S, M].
    """
    there, true = scores[:, None, :], path.scores[:, :, None]
    flat = torch.arange(scores.shape[1], device=scores.device)
    return (there > true) | ((there == true) & (flat < path.candidates[:, :, None]))


def places(scores: Tensor, path: TruePath, topk: int) -> Tensor:
    """The place, from 1, of the true node of depth d among the candidates of depth <= s, int64 [n, S, S].

    Args:
        scores: fp32 [n, M], M = K + (S - 1) * K * K.
        path: of the same roots. Where there is no true node, or d > s, the place means nothing.
        topk: K.
    """
    num_steps = path.scores.shape[1]
    levels = [topk] + [topk * topk] * (num_steps - 1)
    before = [level.sum(-1) for level in outranking(scores, path).split(levels, -1)]
    return torch.stack(before, -1).cumsum(-1) + 1


def most_outranking(beams: Tensor, score: Tensor, levels: int, is_open: Tensor) -> Tensor:
    """At most so many candidates of the next levels have a score of at least ``score``, int64 [n].

    Args:
        beams: fp32 [n, K], scores of the beams, whose children are the next level.
        score: fp32 [n].
        levels: how many levels are still to come, at least 1.
        is_open: bool [n, K], the beams whose children are not known yet; children of the others are not counted.
    """
    topk = beams.shape[1]
    is_above = beams >= score[:, None]
    share = (beams * _SLACK**levels / score[:, None]).where(is_above, 0)  # nan or inf for a score of 0: no bound
    per_beam = share.nan_to_num(topk, posinf=topk).floor().clamp_max(topk)
    per_level = share.sum(1).nan_to_num(topk**2, posinf=topk**2).floor().clamp_max(topk**2)
    return ((per_beam * is_open).sum(1) + (levels - 1) * per_level).long()
