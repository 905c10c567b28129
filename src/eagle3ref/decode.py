"""Live speculative decoding with the target in the loop: greedy and lossless."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.draft import Eagle3Draft, FirstLevel, best_next, propose
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import KVCache
from eagle3ref.sampling import argmax_first
from eagle3ref.target import Target, TargetOutput
from eagle3ref.tree import build_tree
from eagle3ref.verify import verify_greedy


@dataclass(frozen=True)
class Decoded:
    """What live decoding gave.

    Args:
        tokens: int64 [at most max_new_tokens], the answer, cut after an end token.
        roots: token index of the root of each round; the first is the first generated token.
        num_accepted: accepted drafts c of each round; a round commits c + 1 tokens.
        trajectory: int64, prompt and everything that was committed: the last round may run past the answer's end.
    """

    tokens: Tensor
    roots: list[int]
    num_accepted: list[int]
    trajectory: Tensor


@torch.inference_mode()
def decode(target: Target, draft: Eagle3Draft, prompt: Tensor, tree: TreeConfig, *, max_new_tokens: int) -> Decoded:
    """Decode one prompt in rounds of draft, tree verification, and draft rows rebuilt from target states.

    The rounds are SGLang 0.5.23's (eagle_worker_v2.py) without overlap: the first token comes from the prompt's own
    forward, and every round verifies the whole tree whatever is left of ``max_new_tokens``.

    Args:
        target: verifies, and gives the aux hidden states.
        draft: of that target, in the same dtype.
        prompt: int64 [T], not empty.
        tree: the draft tree's settings.
        max_new_tokens: of the answer, at least 1.

    Raises:
        Eagle3RefError: an empty prompt, or token ids outside the vocabulary.
    """
    if prompt.ndim != 1 or len(prompt) == 0 or max_new_tokens < 1:
        raise Eagle3RefError(
            "decoding a prompt",
            found=f"a prompt of shape {tuple(prompt.shape)} and max_new_tokens {max_new_tokens}",
            expected="at least one token id, [T], and at least one new token",
            action="Leave empty prompts out.",
        )
    session = _Session(target, draft, prompt)
    ends = set(target.config.eos_token_ids)
    roots, accepted = [], []
    while session.num_new < max_new_tokens and ends.isdisjoint(session.new_tokens()):
        roots.append(session.root)
        accepted.append(session.round(tree))
    answer = session.new_tokens()[:max_new_tokens]
    stop = next((i + 1 for i, token in enumerate(answer) if token in ends), len(answer))
    return Decoded(torch.tensor(answer[:stop]), roots, accepted, torch.tensor(session.tokens))


class _Session:
    """One prompt being decoded: the committed tokens, and target and draft rows for all of them but the root."""

    def __init__(self, target: Target, draft: Eagle3Draft, prompt: Tensor) -> None:
        self.target, self.draft = target, draft
        self.device = draft.target_ids.device
        self.tokens: list[int] = prompt.tolist()
        self._prompt_length = len(self.tokens)
        self._target_cache = target.new_cache(1)
        self._draft_cache = KVCache(len(draft.layers), 1, self.device)
        row = torch.arange(self._prompt_length, device=self.device)
        output = self._run_target(prompt.to(self.device)[None], None, None)
        self._target_cache.keep(row[None], row.new_tensor([len(row)]))
        self._commit([int(argmax_first(target.logits(output.final_hidden_state[0, -1])))], output, row)

    @property
    def root(self) -> int:
        """Token index of the last committed, not yet verified token."""
        return len(self.tokens) - 1

    @property
    def num_new(self) -> int:
        return len(self.tokens) - self._prompt_length

    def new_tokens(self) -> list[int]:
        """Everything generated so far."""
        return self.tokens[self._prompt_length :]

    def round(self, tree: TreeConfig) -> int:
        """Draft, verify, commit; returns how many drafts were accepted."""
        root = torch.tensor([self.root], device=self.device)
        level = FirstLevel(self._state, *best_next(self.draft, self._normed, tree.topk))
        drafted = build_tree(
            propose(self.draft, level, root[None], self._draft_cache.prefixes(), tree),
            root_tokens=torch.tensor([self.tokens[-1]], device=self.device),
            prefix_lengths=root,
            num_draft_tokens=tree.num_draft_tokens,
        )
        output = self._run_target(drafted.tokens, drafted.positions, drafted.tree_mask)
        verified = verify_greedy(drafted, argmax_first(self.target.logits(output.final_hidden_state)))
        count = int(verified.num_accepted)
        nodes = torch.nn.functional.pad(verified.accepted_nodes[0, :count], (1, 0))  # the root, then the path
        self._target_cache.keep(nodes[None], nodes.new_tensor([len(nodes)]))
        new_tokens = [*verified.accepted_tokens[0, :count].tolist(), int(verified.bonus_token)]
        self._commit(new_tokens, output, nodes)
        return count

    def _run_target(self, tokens: Tensor, positions: Tensor | None, mask: Tensor | None) -> TargetOutput:
        return self.target.forward(
            tokens,
            cache=self._target_cache,
            positions=positions,
            mask=mask,
            capture_points=self.draft.capture_points,
        )

    def _commit(self, new_tokens: list[int], output: TargetOutput, rows: Tensor) -> None:
        """Add tokens, and the draft rows of the target rows that they follow (SGLang's draft extend)."""
        self.tokens += new_tokens
        aux = torch.cat([output.aux_hidden_states[point][0, rows] for point in self.draft.capture_points], -1)
        end = self.root
        position = torch.arange(end - len(rows), end, device=self.device)
        following = torch.tensor(self.tokens, device=self.device)[position + 1]
        drafted = self.draft(
            self.draft.fuse(aux)[None, None],
            following[None, None],
            position[None, None],
            mask=position[:, None] >= position,
            prefix=self._draft_cache.prefixes(),
        )
        self._draft_cache.offer(drafted.rows)
        order = torch.arange(len(rows), device=self.device)
        self._draft_cache.keep(order[None], order.new_tensor([len(rows)]))
        self._state, self._normed = drafted.state[:, 0, -1:], drafted.normed[:, 0, -1:]
