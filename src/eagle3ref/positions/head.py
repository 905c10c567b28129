"""The head when only the best tokens are wanted: twins of ``draft.best_next`` that answer as it does, for less."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.draft import Eagle3Draft
from eagle3ref.draft import best_next as reference_best_next
from eagle3ref.nn.norm import at_least_float32
from eagle3ref.positions.screened_head import ScreenedHead
from eagle3ref.sampling import topk_stable

_LOGITS_AT_ONCE = 2**23
_FEWEST_ROWS = 256  # a product of fewer spends its time on reading the head
_SEGMENT = 64


def best_next(draft: Eagle3Draft, normed: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """As ``draft.best_next``: [..., C] -> probabilities [..., K] and target ids int64 [..., K], the same bits.

    The reference's top-k reads the vocabulary several times over and costs as much as a softmax. Here it is cut in
    segments of 64, and only the K segments with the best maxima are looked into.
    """
    parts = [_best_of(draft, rows, topk) for rows in normed.flatten(0, -2).split(_rows_at_once(draft))]
    probs, tokens = (torch.cat(part).unflatten(0, normed.shape[:-1]) for part in zip(*parts, strict=True))
    return probs, tokens


def topk_by_segments(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As ``topk_stable``, for scores [n, V] of at least 0 (probabilities).

    The stable choice of K segments by their maxima holds the K best scores: a score that is outside has K segments
    before its own, and each of them holds one that comes before it.

    Raises:
        Eagle3RefError: k out of range, or a NaN.
    """
    rows, size = scores.shape
    num_segments = -(-size // _SEGMENT)
    if num_segments <= 2 * k:
        return topk_stable(scores, k)
    if size % _SEGMENT:  # no score is lower than the padding, and none that is as low has a higher index
        scores = torch.nn.functional.pad(scores, (0, -size % _SEGMENT), value=-1.0)
    segments = scores.view(rows, num_segments, _SEGMENT)
    kept = topk_stable(segments.amax(-1), k)[1].sort(-1).values  # [n, k], in order of index, as ties want it
    values, place = topk_stable(segments.gather(1, kept[..., None].expand(-1, -1, _SEGMENT)).flatten(1), k)
    return values, kept.gather(1, place // _SEGMENT) * _SEGMENT + place % _SEGMENT


def is_first(draft: Eagle3Draft, normed: Tensor, tokens: Tensor) -> Tensor:
    """Whether ``draft.best_next`` of one token would give these: normed [n, C], int64 [n] -> bool [n].

    A token outside the draft vocabulary (-1 is) is none. A logit that is clearly the highest or clearly not decides;
    near ties, whose probabilities may round to the same number, are left to the reference.
    """
    ids = _draft_ids(draft, tokens)
    hits = torch.zeros_like(tokens, dtype=torch.bool)
    for rows in (ids >= 0).nonzero()[:, 0].split(_rows_at_once(draft)):
        hits[rows] = _leads(draft, normed[rows], ids[rows], tokens[rows])
    return hits


def _leads(draft: Eagle3Draft, normed: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
    if isinstance(draft.lm_head, ScreenedHead) and draft.config.logit_scale == 1:
        hits, unclear = draft.lm_head.leads(normed, ids, apart=_one_probability(normed.dtype))
    else:
        hits, unclear = _compare(draft.logits(normed), ids)
    if (rest := unclear.nonzero()[:, 0]).numel():
        hits[rest] = reference_best_next(draft, normed[rest], 1)[1][:, 0] == tokens[rest]
    return hits


def _compare(logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """As ``ScreenedHead.leads``, of logits [n, Vd] that are at hand."""
    wide = at_least_float32(logits.dtype)
    row = torch.arange(len(ids), device=ids.device)
    own = logits[row, ids].to(wide)
    logits[row, ids] = float("-inf")
    lead = own - logits.amax(-1).to(wide)
    return lead > 0, ~(lead.abs() > _one_probability(wide)) | ~own.isfinite()


def _one_probability(dtype: torch.dtype) -> float:
    """Logits that are no further apart may have probabilities that round to the same number, or to swapped ones."""
    return 16 * torch.finfo(dtype).eps


def _best_of(draft: Eagle3Draft, normed: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    logits = draft.logits(normed)
    probs, chosen = topk_by_segments(logits.to(at_least_float32(logits.dtype)).softmax(-1), topk)
    return probs, draft.target_ids[chosen]


def _rows_at_once(draft: Eagle3Draft) -> int:
    return max(_FEWEST_ROWS, _LOGITS_AT_ONCE // draft.config.draft_vocab_size)


def _draft_ids(draft: Eagle3Draft, tokens: Tensor) -> Tensor:
    """int64 [n], the draft id of target tokens; -1 where there is none."""
    table = torch.full((draft.config.vocab_size + 1,), -1, device=tokens.device)
    table[draft.target_ids] = torch.arange(len(draft.target_ids), device=tokens.device)
    return table[tokens]  # -1 reads the last place, which no token has
