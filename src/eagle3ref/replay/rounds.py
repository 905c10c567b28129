"""The rounds of a replayed sequence, and their sums by prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from eagle3ref.acceptance import AcceptanceCounts, ExpectedAcceptance, Kind
from eagle3ref.acceptance.ratios import IntArray
from eagle3ref.config import AcceptanceRule, TreeConfig


@dataclass(frozen=True)
class SequenceRounds:
    """The verification rounds of one sequence, in order; R of them.

    Args:
        id: of the sequence.
        roots: int64 [R], token index of each root, the last committed token. The first is the first generated token.
        num_accepted: int64 [R], drafts c that were kept; the next root is ``root + c + 1``.
        complete: bool [R], whether ``num_steps`` recorded tokens follow the root. If not, c may have been cut short
            by the end of the record, and the round counts as censored.
        proposed_at: int64 [R, S], draft tokens offered at each depth; None where that was not looked at.
        off_argmax_tokens: generated tokens that are not the target's first choice; None when that was not recorded.
        recorded_tokens: generated tokens.
        in_limit: bool [R], whether ``num_steps`` tokens after the root are within the length limit of the answer. As
            ``complete``, but of an answer that ended by itself every round that began far enough from the limit.
        expected_at: float64 [R, S], the probability that the draft at depth d was accepted, given the tokens before
            it; nan where the round did not decide on one. None without the target's probabilities.
    """

    id: str
    roots: Tensor
    num_accepted: Tensor
    complete: Tensor
    proposed_at: Tensor | None
    off_argmax_tokens: int | None
    recorded_tokens: int
    in_limit: Tensor
    expected_at: Tensor | None


def count_rounds(
    rounds: Sequence[SequenceRounds], tree: TreeConfig, kind: Kind, rule: AcceptanceRule | None = None
) -> AcceptanceCounts:
    """Add rounds up by prompt; only complete ones enter the ratios. The rule is the greedy one when None."""
    complete = [sequence.num_accepted[sequence.complete] for sequence in rounds]
    return AcceptanceCounts(
        tree=tree,
        prompt_ids=tuple(sequence.id for sequence in rounds),
        histogram=np.stack([torch.bincount(c, minlength=tree.num_steps + 1).numpy() for c in complete]),
        proposed_at=_proposed(rounds),
        censored_rounds=np.array([int((~sequence.complete).sum()) for sequence in rounds]),
        off_argmax_tokens=np.array([sequence.off_argmax_tokens or 0 for sequence in rounds]),
        recorded_tokens=np.array([sequence.recorded_tokens for sequence in rounds]),
        kind=kind,
        rule=rule or AcceptanceRule(),
        expected=_expected(rounds, tree),
    )


class _Recorded(Protocol):
    """What was counted of a sequence, in rounds or otherwise."""

    @property
    def off_argmax_tokens(self) -> int | None: ...


def kind_of(rule: AcceptanceRule, rounds: Iterable[_Recorded]) -> Kind:
    """Greedy tokens that are all the recorded argmax are exact; otherwise another model may have written them."""
    if rule.name != "greedy":
        return "unbiased"
    return "exact" if all(sequence.off_argmax_tokens == 0 for sequence in rounds) else "estimate"


def _proposed(rounds: Sequence[SequenceRounds]) -> IntArray | None:
    known = [s.proposed_at[s.complete].sum(0).numpy() for s in rounds if s.proposed_at is not None]
    return np.stack(known) if len(known) == len(rounds) else None


def _expected(rounds: Sequence[SequenceRounds], tree: TreeConfig) -> ExpectedAcceptance | None:
    kept = [(s.num_accepted[s.in_limit], s.expected_at[s.in_limit]) for s in rounds if s.expected_at is not None]
    if len(kept) < len(rounds):
        return None
    depths = torch.arange(1, tree.num_steps + 1)
    decided = [~probabilities.isnan() for _, probabilities in kept]
    hits = [(accepted[:, None] >= depths) & there for (accepted, _), there in zip(kept, decided, strict=True)]
    return ExpectedAcceptance(
        tree=tree,
        prompt_ids=tuple(sequence.id for sequence in rounds),
        rounds=np.array([len(accepted) for accepted, _ in kept]),
        reached_at=np.stack([there.sum(0).numpy() for there in decided]),
        observed_at=np.stack([hit.sum(0).numpy() for hit in hits]),
        accepted_at=np.stack([probabilities.nansum(0).numpy() for _, probabilities in kept]),
    )
