"""One prompt being decoded: what is committed, and one round of it."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.decode.chooser import Chooser
from eagle3ref.draft import Eagle3Draft, FirstLevel, best_next, propose, propose_sampled
from eagle3ref.nn import KVCache
from eagle3ref.target import Target, TargetOutput
from eagle3ref.tree import DraftTree, build_tree


class Session:
    """The committed tokens, and target and draft rows for all of them but the root.

    Args:
        target: as in ``decode``.
        draft: as in ``decode``.
        prompt: int64 [T]; its forward gives the first token.
        chooser: of the tokens.
    """

    def __init__(self, target: Target, draft: Eagle3Draft, prompt: Tensor, chooser: Chooser) -> None:
        self.target, self.draft, self.chooser = target, draft, chooser
        self.device = draft.target_ids.device
        self.tokens: list[int] = prompt.tolist()
        self._prompt_length = len(self.tokens)
        self._target_cache = target.new_cache(1)
        self._draft_cache = KVCache(len(draft.layers), 1, self.device)
        row = torch.arange(self._prompt_length, device=self.device)
        output = self._run_target(prompt.to(self.device)[None], None, None)
        self._target_cache.keep(row[None], row.new_tensor([len(row)]))
        last = target.logits(output.final_hidden_state[0, -1])
        self._commit([chooser.first_token(last, self._prompt_length - 1)], output, row)

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
        drafted, draft_probs = self._drafted(tree)
        output = self._run_target(drafted.tokens, drafted.positions, drafted.tree_mask)
        logits = self.target.logits(output.final_hidden_state)
        verified = self.chooser.verify(drafted, logits, draft_probs, self.num_new - 1)
        count = int(verified.num_accepted)
        nodes = torch.nn.functional.pad(verified.accepted_nodes[0, :count], (1, 0))  # the root, then the path
        self._target_cache.keep(nodes[None], nodes.new_tensor([len(nodes)]))
        new_tokens = [*verified.accepted_tokens[0, :count].tolist(), int(verified.bonus_token)]
        self._commit(new_tokens, output, nodes)
        return count

    def _drafted(self, tree: TreeConfig) -> tuple[DraftTree, Tensor | None]:
        """The tree of the root, and what its drafts were drawn from if they were drawn."""
        root = torch.tensor([self.root], device=self.device)
        prefix = self._draft_cache.prefixes()
        if self.chooser.rule.drafts == "sampled":
            candidates, draft_probs = propose_sampled(
                self.draft,
                self._state,
                self._normed,
                root[None],
                prefix,
                temperature=self.chooser.sampling.temperature,
                uniforms=self.chooser.draft_uniforms(self.num_new - 1).to(self.device),
            )
        else:
            level = FirstLevel(self._state, *best_next(self.draft, self._normed, tree.topk))
            candidates, draft_probs = propose(self.draft, level, root[None], prefix, tree), None
        token = torch.tensor([self.tokens[-1]], device=self.device)
        drafted = build_tree(candidates, root_tokens=token, prefix_lengths=root, num_draft_tokens=tree.num_draft_tokens)
        return drafted, draft_probs

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
