"""How the tokens of one answer are chosen: the rule, the temperature and the random numbers."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from eagle3ref.config import AcceptanceRule, TreeConfig, default_rule
from eagle3ref.errors import Eagle3RefError
from eagle3ref.sampling import argmax_first, sample, target_probs
from eagle3ref.target.generate import Sampling
from eagle3ref.tree import DraftTree
from eagle3ref.verify import Verification, seeded_coins, seeded_token, verify_greedy, verify_sampled
from eagle3ref.verify.coins import LARGEST_COIN


class Chooser:
    """Chooses the first token, the uniforms of drawn drafts, and what a verification accepts.

    Number 0 of the answer's stream draws the first token. The round whose root is the i-th generated token (from 0)
    has the i-th block behind it: S numbers for the drafts, N for the nodes, one for the bonus. So the numbers of a
    round depend on where it starts and not on how the answer came there.

    Args:
        rule: None for the default: greedy at temperature 0, else ``target_only``.
        sampling: temperature, filters and the stream.
        tree: num_steps S, topk and num_draft_tokens N.
        max_new_tokens: roots at most.
        prompt_index: which stream of the seed.
        sampling_seed: SGLang's seeded numbers instead of the stream.

    Raises:
        Eagle3RefError: settings that do not fit together, as ``decode`` says.
    """

    def __init__(
        self,
        rule: AcceptanceRule | None,
        sampling: Sampling,
        tree: TreeConfig,
        max_new_tokens: int,
        prompt_index: int,
        sampling_seed: int | None,
    ) -> None:
        default = default_rule(sampling.temperature)
        self.rule = default if default.name == "greedy" else rule or default
        self.sampling, self._seed = sampling, sampling_seed
        _check(self.rule, sampling, tree, sampling_seed)
        block = tree.num_steps + tree.num_draft_tokens + 1
        stream = sampling.uniforms(prompt_index, 1 + max_new_tokens * block)
        self._first = stream[0]
        self._drafts, self._nodes, self._final = (
            stream[1:].view(max_new_tokens, block).split([tree.num_steps, tree.num_draft_tokens, 1], -1)
        )

    def first_token(self, logits: Tensor, position: int) -> int:
        """From the logits [V] at the prompt's last token, whose index is ``position``."""
        if self.rule.name == "greedy":
            return int(argmax_first(logits))
        probs = self._probs(logits)
        if self._seed is None:
            return int(sample(probs, self._first.to(probs)))
        seed, last = (torch.tensor([number], device=probs.device) for number in (self._seed, position))
        return int(seeded_token(probs[None], seed, last))

    def draft_uniforms(self, index: int) -> Tensor:
        """[1, 1, S] for the chain whose root is generated token ``index``."""
        uniforms: Tensor = self._drafts[None, None, index]
        return uniforms

    def verify(self, tree: DraftTree, logits: Tensor, draft_probs: Tensor | None, index: int) -> Verification:
        """Verify the tree [1, N] of generated token ``index`` with the target's logits [1, N, V] after each node."""
        if self.rule.name == "greedy":
            return verify_greedy(tree, argmax_first(logits))
        probs = self._probs(logits)
        if self._seed is None:
            # A number just under 1 may round to 1.
            nodes, final = (part[index].to(probs).clamp(max=LARGEST_COIN) for part in (self._nodes, self._final))
            nodes = nodes[None]
        else:
            seed = torch.tensor([self._seed], device=probs.device)
            nodes, final = seeded_coins(seed, tree.positions[:, 0], tree.tokens.shape[1])
        return verify_sampled(tree, probs, nodes, final, rule=self.rule, draft_probs=draft_probs)

    def _probs(self, logits: Tensor) -> Tensor:
        settings = self.sampling
        return target_probs(logits, temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p)


def _check(rule: AcceptanceRule, sampling: Sampling, tree: TreeConfig, sampling_seed: int | None) -> None:
    is_sampled = default_rule(sampling.temperature).name != "greedy"
    if is_sampled and rule.name == "greedy":
        _refuse(
            f"the rule greedy at temperature {sampling.temperature}",
            "a rule that samples",
            "Leave the rule out for SGLang's default, or the sampling for a greedy answer.",
        )
    if rule.needs_chain and tree.topk > 1:
        _refuse(f"the rule {rule.name} with a tree {tree}", "a chain, topk 1", "Use topk 1, or target_only.")
    if sampling_seed is None or not is_sampled:
        return
    if not -(2**63) <= sampling_seed < 2**63:
        _refuse(f"sampling_seed {sampling_seed}", "a number of 64 bits, as the server takes it", "Use a smaller one.")
    if sampling.top_k or sampling.top_p < 1 or rule.drafts == "sampled" or rule.name == "multi_round":
        _refuse(
            f"a sampling_seed with top_k {sampling.top_k}, top_p {sampling.top_p}, {rule.drafts} drafts, "
            f"rule {rule.name}",
            "plain temperature, drafts that are not drawn, and a rule that SGLang has: its first token and its drawn "
            "drafts use other random numbers, which are not reproduced",
            "Leave the sampling_seed out, or the filters.",
        )


def _refuse(found: str, expected: str, action: str) -> NoReturn:
    raise Eagle3RefError("reading how to decode", found=found, expected=expected, action=action)
