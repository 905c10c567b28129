"""What the numbers of d2t say of how they were made."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from eagle3ref.inspection.finding import Finding


def check_vocabulary(d2t: Tensor, ids: Tensor, vocab_size: int) -> Iterator[Finding]:
    """Absolute ids stored as offsets, and an order that no writer uses.

    Args:
        d2t: integer [Vd], as stored.
        ids: int64 [Vd], ``arange + d2t``.
        vocab_size: V, the target's.
    """
    if len(ids) >= vocab_size or len(ids) < 2:
        return
    if bool((d2t[1:] > d2t[:-1]).all()):
        listed = torch.equal(d2t.to(torch.int64), torch.arange(len(d2t)))
        yield Finding(
            "d2t",
            "is 0, 1, 2, …"
            if listed
            else "grows with every row, as if no two tokens of the vocabulary were neighbours",
            "these look like the target's ids themselves; readers add the row's number, so row i stands for "
            "i + d2t[i].",
            "Store d2t as ids - arange.",
            True,
        )
    elif not bool((ids[1:] > ids[:-1]).all()):
        yield Finding(
            "d2t",
            "maps to target ids that are not in ascending order",
            "every writer known to us sorts them; a map that was shuffled, or added to another one, has this look.",
            "Check that the rows of lm_head are in the same order: --target compares them with the target's.",
            False,
        )
