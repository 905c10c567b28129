"""The loop of a decode: round after round of all open prompts, until none is open."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.decode.chooser import Chooser
from eagle3ref.decode.drafter import Drafter
from eagle3ref.decode.journal import Journal, journal_header
from eagle3ref.decode.session import Session
from eagle3ref.decode.trajectory import Trajectory
from eagle3ref.draft import Eagle3Draft
from eagle3ref.target import Target
from eagle3ref.target.generate import check_prompts, random_streams


@dataclass(frozen=True)
class RoundDone:
    """How far a decode is.

    Args:
        num_rounds: forwards of the target behind that of the prompts; those before a kill count too.
        num_open: prompts that are not finished.
        num_prompts: all of them.
        num_tokens: of all answers so far.
        acceptance_length: tokens that a prompt gains in a round, mean so far; 1 without a draft, nan before the first.
        rounds_left: at most about so many, by the shortest open answer; an end token may come sooner.
    """

    num_rounds: int
    num_open: int
    num_prompts: int
    num_tokens: int
    acceptance_length: float
    rounds_left: float


OnRound = Callable[[RoundDone], None]


def decode_together(
    target: Target,
    prompts: Sequence[Tensor],
    chooser: Chooser,
    *,
    draft: Eagle3Draft | None,
    tree: TreeConfig | None,
    max_new_tokens: int,
    prompt_indices: Sequence[int] | None = None,
    journal: str | Path | None = None,
    on_round: OnRound = lambda _: None,
) -> list[Trajectory]:
    """Decode prompts side by side; a finished one leaves, so that rounds get cheaper.

    Args:
        target: verifies, and gives the aux hidden states.
        prompts: int64 [T] each.
        chooser: of the tokens.
        draft: None for one token a round.
        tree: of the draft; None without one.
        max_new_tokens: of each answer.
        prompt_indices: random stream of each prompt; its place when None.
        journal: a file, with which a killed decode goes on.
        on_round: called when the prompts are through the target, and after every round.

    Raises:
        Eagle3RefError: as ``check_prompts``, ``random_streams``, ``Drafter`` and ``Journal``.
    """
    check_prompts(prompts, max_new_tokens)
    streams = random_streams(len(prompts), prompt_indices)
    drafter = None if draft is None or tree is None else Drafter(draft, tree, chooser, target)
    trajectories = [Trajectory(i, prompt.tolist(), len(prompt)) for i, prompt in enumerate(prompts)]
    ends = set(target.config.eos_token_ids)
    written = None
    if journal is not None:
        written = Journal(Path(journal), journal_header(target, prompts, chooser, tree, streams))
        written.tell(trajectories, target.config.vocab_size)
    still_open = [one for one in trajectories if not one.finished(max_new_tokens, ends)]
    if not still_open:
        return trajectories
    session = Session(target, drafter, chooser, still_open, streams)
    new = session.begin()
    while True:
        if written is not None and any(new):
            written.add({one.place: tokens for one, tokens in zip(session.open, new, strict=True) if tokens})
        session.leave([one.finished(max_new_tokens, ends) for one in session.open])
        on_round(_progress(trajectories, session.open, max_new_tokens, ends))
        if not session.open:
            return trajectories
        new = session.round()


def _progress(
    trajectories: Sequence[Trajectory], still_open: Sequence[Trajectory], max_new_tokens: int, ends: set[int]
) -> RoundDone:
    accepted = [count for one in trajectories for count in one.num_accepted]
    length = 1 + sum(accepted) / len(accepted) if accepted else math.nan
    shortest = min((one.num_new for one in still_open), default=max_new_tokens)
    return RoundDone(
        num_rounds=max(len(one.roots) for one in trajectories),
        num_open=len(still_open),
        num_prompts=len(trajectories),
        num_tokens=sum(len(one.answer(max_new_tokens, ends)) for one in trajectories),
        acceptance_length=length,
        rounds_left=(max_new_tokens - shortest) / (length if accepted else 1),
    )
