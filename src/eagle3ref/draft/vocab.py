"""The draft vocabulary: which target token each draft token stands for."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.config import DraftConfig
from eagle3ref.errors import Eagle3RefError


def read_target_ids(config: DraftConfig, d2t: Tensor | None, where: str) -> Tensor:
    """The target token of each draft token, int64 [Vd], from a checkpoint's ``d2t`` or, without one, the identity.

    Raises:
        Eagle3RefError: no ``d2t`` for a reduced vocabulary, or one that does not fit.
    """
    size = config.draft_vocab_size
    if d2t is None and size == config.vocab_size:
        return torch.arange(size, device="cpu")
    if d2t is None or tuple(d2t.shape) != (size,) or d2t.dtype not in (torch.int32, torch.int64):
        raise Eagle3RefError(
            f"loading draft {where}",
            found="no d2t" if d2t is None else f"d2t of shape {tuple(d2t.shape)} and dtype {d2t.dtype}",
            expected=f"d2t, int64 of shape ({size},): draft_vocab_size is {size} and vocab_size {config.vocab_size}",
            action="Without it SGLang would take draft ids for target ids. Export the draft with its vocabulary map.",
        )
    return target_ids(d2t, config.vocab_size, where)


def target_ids(d2t: Tensor, vocab_size: int, where: str) -> Tensor:
    """Draft id -> target id, int64 [Vd], from the *offsets* that checkpoints store: ``id + d2t[id]``.

    Args:
        d2t: integer [Vd].
        vocab_size: V, the target's.
        where: the checkpoint, for messages.

    Raises:
        Eagle3RefError: no list of integers, an id outside the target vocabulary, or two draft ids for one target id.
    """
    if d2t.ndim != 1 or d2t.dtype not in (torch.int32, torch.int64):
        raise Eagle3RefError(
            f"reading d2t of {where}",
            found=f"shape {tuple(d2t.shape)} and dtype {d2t.dtype}",
            expected="integers, one for each draft id",
            action="Export the vocabulary map again.",
        )
    ids = torch.arange(len(d2t)) + d2t.to(torch.int64)
    outside = (ids < 0) | (ids >= vocab_size)
    if bool(outside.any()):
        first = int(outside.nonzero()[0])
        raise Eagle3RefError(
            f"reading d2t of {where}",
            found=f"draft id {first} with offset {int(d2t[first])}, i.e. target id {int(ids[first])}",
            expected=f"target ids 0 to {vocab_size - 1}: target id = draft id + d2t[draft id]",
            action="Absolute ids stored as offsets look like this; a server would read out of bounds or propose "
            "wrong tokens. Store d2t as ids - arange.",
        )
    unique, counts = ids.unique(return_counts=True)
    if len(unique) < len(ids):
        double = int(unique[counts > 1][0])
        raise Eagle3RefError(
            f"reading d2t of {where}",
            found=f"target id {double} for draft ids {(ids == double).nonzero().flatten().tolist()[:4]}",
            expected="every target id at most once",
            action="A server would propose the same token twice and lose the acceptance of those it shadows; "
            "export the vocabulary mapping again.",
        )
    return ids


def mapping_warnings(d2t: Tensor, ids: Tensor, t2d: Tensor | None, vocab_size: int, lm_head: Tensor) -> list[str]:
    """What is odd about a mapping that can be read, and what it would do to a server."""
    found = []
    if len(ids) < vocab_size and not bool(d2t.any()):
        found.append(
            f"d2t is all zeros although the draft vocabulary ({len(ids)}) is smaller than the target's ({vocab_size}): "
            f"a server would propose only the first {len(ids)} ids. Usually a buffer that was never filled."
        )
    if t2d is not None:
        listed = t2d.bool().nonzero().flatten()
        if tuple(t2d.shape) != (vocab_size,) or not torch.equal(listed, ids.sort().values):
            found.append(
                f"t2d marks {len(listed)} target ids but d2t maps to {len(ids)} others: the two come from different "
                "exports. Servers ignore t2d and use d2t."
            )
    repeated = (d2t[1:] == d2t[:-1]).nonzero().flatten().tolist() if len(ids) < vocab_size else []
    twins = sum(torch.equal(lm_head[row], lm_head[row + 1]) for row in repeated)  # without a copy of the head
    if twins:
        found.append(
            f"{twins} neighbouring rows of lm_head are identical where d2t repeats: the head was cut with "
            "lm_head[d2t] instead of lm_head[id + d2t]; a server would propose wrong tokens."
        )
    return found
