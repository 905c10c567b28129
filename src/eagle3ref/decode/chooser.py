"""How the tokens of answers are chosen: the rule, the temperature and the random numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor

from eagle3ref.config import AcceptanceRule, TreeConfig, default_rule
from eagle3ref.errors import Eagle3RefError
from eagle3ref.sampling import argmax_first, sample, target_probs
from eagle3ref.target import LayerMajorTarget, Target
from eagle3ref.target.generate import Sampling
from eagle3ref.tree import DraftTree
from eagle3ref.verify import Verification, seeded_coins, seeded_token, verify_greedy, verify_sampled
from eagle3ref.verify.coins import LARGEST_COIN

LOGITS_AT_ONCE = 2**24  # 32 MiB in bf16. Not less: a streamed target reads its head for each block
PROBS_AT_ONCE = 2**21  # 8 MiB in fp32; filters and sums take ten tensors of that size


class Chooser:
    """Chooses next tokens, the uniforms of drawn drafts, and what a verification accepts.

    Number 0 of an answer's stream draws the first token. With drafts, the round whose root is the i-th generated token
    (from 0) has the i-th block behind it: S numbers for the drafts, N for the nodes, one for the token after them. So
    the numbers of a round depend on where it starts, and not on how the answer came there or who is answered beside it.
    Without drafts, number i draws the i-th token, as in ``generate``.

    Args:
        target: whose logits decide.
        rule: None for the default: greedy at temperature 0, else ``target_only``.
        sampling: temperature, filters and the streams.
        tree: num_steps S, topk and num_draft_tokens N; None without drafts.
        sampling_seed: SGLang's seeded numbers instead of the streams.

    Raises:
        Eagle3RefError: settings that do not fit together, as ``decode`` says.
    """

    def __init__(
        self,
        target: Target,
        rule: AcceptanceRule | None,
        sampling: Sampling,
        tree: TreeConfig | None,
        sampling_seed: int | None = None,
    ) -> None:
        default = default_rule(sampling.temperature)
        self.rule = default if default.name == "greedy" else rule or default
        self.sampling, self._target, self._seed = sampling, target, sampling_seed
        _check(self.rule, sampling, tree, sampling_seed)
        self._parts = [] if tree is None else [tree.num_steps, tree.num_draft_tokens, 1]

    def next_tokens(self, states: Tensor, streams: Sequence[int], indices: Tensor, positions: Tensor) -> Tensor:
        """Tokens that no draft stands for: the first ones, or all of them without a draft.

        Args:
            states: [B, C], final hidden state at the last token of each prompt.
            streams: of each, its random stream.
            indices: int64 [B], how many tokens each has generated.
            positions: int64 [B], token index of the last token.

        Returns:
            int64 [B].
        """
        if self.rule.name == "greedy":
            return self._first_choices(states)
        chosen = []
        for rows, probs in self._probs(states):
            if self._seed is not None:
                chosen.append(seeded_token(probs, self._seeds(probs), positions[rows].to(probs.device)))
                continue
            numbers = self._numbers(streams[rows], indices[rows], 1)[:, 0]
            chosen.append(sample(probs, numbers.to(probs)))
        return torch.cat(chosen)

    def draft_uniforms(self, streams: Sequence[int], indices: Tensor) -> Tensor:
        """[B, 1, S] for the chains whose roots are generated tokens ``indices`` [B]."""
        return self._block(streams, indices)[0][:, None]

    def verify(
        self, tree: DraftTree, states: Tensor, draft_probs: Tensor | None, streams: Sequence[int], indices: Tensor
    ) -> Verification:
        """Verify trees [B, N], a few sequences at a time.

        Args:
            tree: of each sequence.
            states: [B, N, C], the target's final hidden state at each node.
            draft_probs: as for ``verify_sampled``.
            streams: of each sequence, its random stream.
            indices: int64 [B], which generated token its root is.
        """
        if self.rule.name == "greedy":
            return verify_greedy(tree, self._first_choices(states))
        parts = [
            self._sampled(
                DraftTree(*(field[rows] for field in vars(tree).values())),
                probs,
                None if draft_probs is None else draft_probs[rows],
                streams[rows],
                indices[rows],
            )
            for rows, probs in self._probs(states)
        ]
        return Verification(*map(torch.cat, zip(*(vars(part).values() for part in parts), strict=True)))

    def _sampled(
        self, tree: DraftTree, probs: Tensor, draft_probs: Tensor | None, streams: Sequence[int], indices: Tensor
    ) -> Verification:
        if self._seed is None:
            # A number just under 1 may round to 1.
            _, nodes, final = (part.to(probs).clamp(max=LARGEST_COIN) for part in self._block(streams, indices))
            final = final[:, 0]
        else:
            nodes, final = seeded_coins(self._seeds(probs), tree.positions[:, 0], tree.tokens.shape[1])
        return verify_sampled(tree, probs, nodes, final, rule=self.rule, draft_probs=draft_probs)

    def _first_choices(self, states: Tensor) -> Tensor:
        """[..., C] -> int64 [...], the target's argmax."""
        flat = states.flatten(0, -2)
        if isinstance(self._target, LayerMajorTarget):  # goes through its head once, and never has all logits
            nothing = torch.zeros(len(flat), dtype=torch.int64, device=flat.device)
            return self._target.score(flat, nothing).argmax.view(states.shape[:-1])
        blocks = _blocks(len(flat), self._target.config.vocab_size, LOGITS_AT_ONCE)
        return torch.cat([argmax_first(self._target.logits(flat[rows])) for rows in blocks]).view(states.shape[:-1])

    def _probs(self, states: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Final hidden states [B, ..., C] -> a few sequences after the other, and their probabilities [b, ..., V]."""
        settings, vocab_size = self.sampling, self._target.config.vocab_size
        probs_of = partial(target_probs, temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p)
        per_sequence = states[0, ..., 0].numel() * vocab_size
        for many in _blocks(len(states), per_sequence, LOGITS_AT_ONCE):
            logits = self._target.logits(states[many])
            for few in _blocks(len(logits), per_sequence, PROBS_AT_ONCE):
                some = logits[few]
                rows = some.flatten(0, -2)
                probs = torch.cat([probs_of(rows[part]) for part in _blocks(len(rows), vocab_size, PROBS_AT_ONCE)])
                yield slice(many.start + few.start, many.start + few.stop), probs.view(some.shape)

    def _block(self, streams: Sequence[int], indices: Tensor) -> tuple[Tensor, ...]:
        """[B, S], [B, N] and [B, 1], the numbers of the rounds with these roots."""
        size = sum(self._parts)
        numbers: tuple[Tensor, ...] = self._numbers(streams, 1 + indices * size, size).split(self._parts, -1)
        return numbers

    def _numbers(self, streams: Sequence[int], first: Tensor, count: int) -> Tensor:
        """fp64 [B, count], consecutive numbers of each stream."""
        starts = first.tolist()
        return torch.stack(
            [self.sampling.uniforms(*at) for at in zip(streams, [count] * len(starts), starts, strict=True)]
        )

    def _seeds(self, probs: Tensor) -> Tensor:
        return torch.full((len(probs),), self._seed or 0, device=probs.device)


def _blocks(num_rows: int, numbers_per_row: int, at_once: int) -> list[slice]:
    """Slices of rows with at most ``at_once`` numbers where one row has no more."""
    size = max(1, at_once // numbers_per_row)
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def _check(rule: AcceptanceRule, sampling: Sampling, tree: TreeConfig | None, sampling_seed: int | None) -> None:
    is_sampled = default_rule(sampling.temperature).name != "greedy"
    if is_sampled and rule.name == "greedy":
        _refuse(
            f"the rule greedy at temperature {sampling.temperature}",
            "a rule that samples",
            "Leave the rule out for SGLang's default, or the sampling for a greedy answer.",
        )
    if rule.needs_chain and tree is not None and tree.topk > 1:
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
