"""The target's answers to many prompts, in as few passes over its weights as a draft allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from eagle3ref.config import AcceptanceRule, TreeConfig
from eagle3ref.decode.chooser import Chooser
from eagle3ref.decode.rounds import OnRound, decode_together
from eagle3ref.draft import Eagle3Draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target import Target
from eagle3ref.target.generate import Sampling


@torch.inference_mode()
def answer_prompts(
    target: Target,
    prompts: Sequence[Tensor],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    draft: Eagle3Draft | None = None,
    tree: TreeConfig | None = None,
    rule: AcceptanceRule | None = None,
    prompt_indices: Sequence[int] | None = None,
    journal: str | Path | None = None,
    on_round: OnRound = lambda _: None,
) -> list[Tensor]:
    """Answer every prompt until an end token or ``max_new_tokens``, all prompts together.

    The prompts go through the target once; then each round is one forward of it for all prompts that are open. Where
    weights are streamed, a forward is a pass over the files, and a draft divides their number by its acceptance length.

    Greedy answers are those of ``generate``, with or without a draft. Sampled ones without a draft are, too: token i
    is drawn by number i of the prompt's stream. With a draft they are those of ``decode`` with the same index: of the
    same law as ``generate``'s, drawn by other numbers. None depends on the other prompts, or on ``max_new_tokens`` but
    for its length. All of this up to rounding: the last bits of a forward depend on how many rows it has, and a near
    tie may fall either way.

    With a journal, a call that was killed goes on behind its last complete round: the tokens written down are kept,
    the prompts go through the target once more with them, and what follows is what would have followed, again up to
    rounding. A larger ``max_new_tokens`` goes on too, and greedy answers may go on with another draft, or none.

    Args:
        target: the model.
        prompts: int64 [T] each, not empty. Their cache rows are padded to the longest: bring like lengths together.
        max_new_tokens: of each answer, the end token included.
        sampling: greedy when None.
        draft: of that target and on its device, in a dtype of its own; None for one token a round.
        tree: its settings.
        rule: which drafts are kept at a temperature > 0; ``target_only`` when None.
        prompt_indices: which random stream each prompt uses; its place in ``prompts`` when None.
        journal: a file for the rounds; made when it is missing.
        on_round: called when the prompts are through the target, and after every round.

    Returns:
        The answers, int64 [1 .. max_new_tokens] each.

    Raises:
        Eagle3RefError: as ``decode`` and ``Journal``, not one index for each prompt, or a draft without a tree or the
            reverse.
    """
    if (draft is None) != (tree is None):
        raise Eagle3RefError(
            "reading how to answer",
            found="a tree without a draft" if draft is None else "a draft without a tree",
            expected="both, or neither for one token a round",
            action="Give both.",
        )
    trajectories = decode_together(
        target,
        prompts,
        Chooser(target, rule, sampling or Sampling(), tree),
        draft=draft,
        tree=tree,
        max_new_tokens=max_new_tokens,
        prompt_indices=prompt_indices,
        journal=journal,
        on_round=on_round,
    )
    ends = set(target.config.eos_token_ids)
    return [torch.tensor(one.answer(max_new_tokens, ends)) for one in trajectories]
