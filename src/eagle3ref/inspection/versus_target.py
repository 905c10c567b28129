"""The draft's embedding and head beside the target's: whose they are, and whether d2t belongs to the head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from eagle3ref.inspection.finding import Finding
from eagle3ref.inspection.stored import blocks, wide

_SAMPLED = 64
_CLEAR_COSINE = 0.5  # of rows of a head that was trained from the target's; strangers in 7,168 dimensions have 0.01
_STRANGER = 0.1


@dataclass(frozen=True)
class RowComparison:
    """Rows of the draft beside rows of the target that stand for the same tokens.

    Args:
        num_rows: compared.
        equal: of them, after rounding both to the coarser dtype of the two.
        cosine: mean over the rows, rows of zeros left out.
    """

    num_rows: int
    equal: int
    cosine: float

    def __str__(self) -> str:
        if self.equal == self.num_rows:
            return "equal to the target's in all rows"
        return f"{self.equal:,} of {self.num_rows:,} rows equal the target's; mean cosine {self.cosine:.2f}"


def compare_rows(own: Tensor, targets: Tensor, ids: Tensor | None = None) -> RowComparison:
    """Row i of the draft's matrix [N, C] beside row ids[i] (or i) of the target's [V, C]."""
    dtype = max(own.dtype, targets.dtype, key=lambda each: torch.finfo(each).eps)
    rows = torch.arange(len(own)) if ids is None else ids
    equal, cosines, counted = 0, 0.0, 0
    for mine, theirs in blocks(own, rows):
        left, right = mine.to(dtype), targets[theirs].to(dtype)
        equal += int((left == right).all(1).sum())
        cosine = torch.cosine_similarity(wide(left), wide(right), dim=1)
        has_both = wide(left).any(1) & wide(right).any(1)
        cosines += float(cosine[has_both].sum())
        counted += int(has_both.sum())
    return RowComparison(len(own), equal, cosines / max(1, counted))


def check_embedding(found: RowComparison) -> Iterator[Finding]:
    """An embedding that has nothing to do with the target's."""
    if found.equal < found.num_rows and abs(found.cosine) < _STRANGER:
        yield Finding(
            "embed_tokens.weight",
            f"has nothing in common with the target's (mean cosine {found.cosine:.2f})",
            "it is random or another model's. SGLang puts the target's in its place, vLLM keeps it: the same file then "
            "has two acceptance lengths.",
            "Unless the draft was trained with it, leave it out of the file or write the target's.",
            False,
        )


def check_head_order(head: Tensor, target_head: Tensor, ids: Tensor) -> Iterator[Finding]:
    """Whether the head's rows look like the target's rows of other tokens than d2t says.

    A head trained from the target's keeps its rows close to where they came from. A few rows, spread over the
    vocabulary, are held against every row of the target.

    Args:
        head: [Vd, C], the draft's.
        target_head: [V, C].
        ids: int64 [Vd], the target token of each draft token.
    """
    sample = torch.linspace(0, len(head) - 1, min(_SAMPLED, len(head))).long()
    queries = normalize(wide(head[sample]), dim=1)
    best, best_ids = torch.full((len(sample),), -1.0), torch.zeros(len(sample), dtype=torch.int64)
    for rows, numbers in blocks(target_head, torch.arange(len(target_head))):
        cosines, where = (queries @ normalize(wide(rows), dim=1).T).max(1)
        best_ids = torch.where(cosines > best, numbers[where], best_ids)
        best = torch.maximum(best, cosines)
    own = (queries * normalize(wide(target_head[ids[sample]]), dim=1)).sum(1)
    # Rows of the target may be twins: a tie counts for the map.
    moved = (best > _CLEAR_COSINE) & (own < best - 0.1)
    if int(moved.sum()) * 2 > len(sample):
        first = int(moved.nonzero()[0])
        row, meant, looks = int(sample[first]), int(ids[sample[first]]), int(best_ids[first])
        yield Finding(
            "d2t",
            f"does not belong to lm_head: {int(moved.sum())} of {len(sample)} rows looked at are the target's rows of "
            f"other tokens, e.g. row {row} is that of token {looks} (cosine {float(best[first]):.2f}), and d2t says "
            f"{meant}",
            "a server proposes other tokens than the draft means.",
            "Export d2t and lm_head of one training run; a map that was built again from other data has another order.",
            True,
        )
