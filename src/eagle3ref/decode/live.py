"""Decode one prompt in rounds of draft, verification and commit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3ref.config import AcceptanceRule, TreeConfig
from eagle3ref.decode.chooser import Chooser
from eagle3ref.decode.rounds import decode_together
from eagle3ref.draft import Eagle3Draft
from eagle3ref.target import Target
from eagle3ref.target.generate import Sampling


@dataclass(frozen=True)
class Decoded:
    """What live decoding gave.

    Args:
        tokens: int64 [at most max_new_tokens], the answer, cut after an end token.
        roots: token index of the root of each round; the first is the first generated token.
        num_accepted: accepted drafts c of each round; a round commits c + 1 tokens.
        rule: that decided: at temperature 0 it is greedy, whatever was asked for.
        trajectory: int64, prompt and everything that was committed: the last round may run past the answer's end.
    """

    tokens: Tensor
    roots: list[int]
    num_accepted: list[int]
    rule: AcceptanceRule
    trajectory: Tensor


@torch.inference_mode()
def decode(
    target: Target,
    draft: Eagle3Draft,
    prompt: Tensor,
    tree: TreeConfig,
    *,
    max_new_tokens: int,
    rule: AcceptanceRule | None = None,
    sampling: Sampling | None = None,
    prompt_index: int = 0,
    sampling_seed: int | None = None,
) -> Decoded:
    """Decode one prompt; draft rows are rebuilt from the target's states after every round.

    The rounds are SGLang 0.5.23's (eagle_worker_v2.py) without overlap: the first token comes from the prompt's own
    forward, and every round verifies the whole tree whatever is left of ``max_new_tokens``. The same arguments give
    the same tokens, and a larger ``max_new_tokens`` only goes on.

    Args:
        target: verifies, and gives the aux hidden states.
        draft: of that target and on its device, in a dtype of its own.
        prompt: int64 [T], not empty.
        tree: the draft tree's settings.
        max_new_tokens: of the answer, at least 1.
        rule: which drafts are kept at a temperature > 0; ``target_only`` when None. At temperature 0 every engine is
            greedy, whatever its rule.
        sampling: temperature, filters and random numbers; greedy when None.
        prompt_index: which random stream of the seed the answer uses, as in ``generate``, whose first token it has.
        sampling_seed: draw as SGLang does under ``--enable-deterministic-inference`` instead: the request's seed
            there, which is 42 when it names none.

    Raises:
        Eagle3RefError: an empty prompt, token ids outside the vocabulary, a draft of another target or on another
            device, the rule ``greedy`` at a temperature, a tree with branches for a rule of chains, or a sampling_seed
            where SGLang's numbers are not reproduced.
    """
    chooser = Chooser(target, rule, sampling or Sampling(), tree, sampling_seed)
    (one,) = decode_together(
        target, [prompt], chooser, draft=draft, tree=tree, max_new_tokens=max_new_tokens, prompt_indices=[prompt_index]
    )
    answer = torch.tensor(one.answer(max_new_tokens, target.config.eos_token_ids))
    return Decoded(answer, one.roots, one.num_accepted, chooser.rule, torch.tensor(one.tokens))
