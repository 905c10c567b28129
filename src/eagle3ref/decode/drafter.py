"""The draft's side of a decode: its rows behind every open prompt, and the trees that it makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eagle3ref.config import TreeConfig
from eagle3ref.decode.chooser import Chooser
from eagle3ref.draft import DraftOutput, Eagle3Draft, FirstLevel, best_next, propose, propose_sampled
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import KVCache, Rows
from eagle3ref.target import Target
from eagle3ref.target.base import device_of
from eagle3ref.target.inputs import check_capture_points
from eagle3ref.tree import DraftTree, build_tree

_BLOCK_ROWS = 512  # rows of a prompt per forward


class Drafter:
    """Draft rows for all committed tokens of B sequences but the root, rebuilt from the target's states.

    Args:
        draft: the draft.
        tree: the settings of its trees.
        chooser: of drafts that are drawn.
        target: whose states the draft is given.

    Raises:
        Eagle3RefError: the draft was trained for another target, or lies on another device.
    """

    def __init__(self, draft: Eagle3Draft, tree: TreeConfig, chooser: Chooser, target: Target) -> None:
        self.draft, self.tree, self._chooser = draft, tree, chooser
        self.capture_points = draft.capture_points
        self._device = device_of(target)
        doing = "decoding with a draft"
        draft.config.check_target(target.config.hidden_size, target.config.vocab_size, doing)
        check_capture_points(self.capture_points, target.config.num_layers)
        if draft.target_ids.device != self._device:
            raise Eagle3RefError(
                doing,
                found=f"the draft on {draft.target_ids.device}",
                expected=f"it on {self._device}, where the target takes its token ids",
                action=f'Load it there: load_draft(..., device="{self._device}").',
            )

    def begin(self, aux: list[Tensor], tokens: Sequence[list[int]]) -> None:
        """The rows of prompts, one prompt after the other.

        Args:
            aux: of each prompt, the target's states [L, A * C] at all tokens before the root; emptied on the way.
            tokens: of each prompt, all committed ones, the root of index L last.
        """
        caches, last = [], []
        for sequence in tokens:
            states, cache = aux.pop(0), KVCache(len(self.draft.layers), 1, self._device)
            following = self._tensor([sequence[1:]])
            for start in range(0, following.shape[1], _BLOCK_ROWS):
                rows = slice(start, start + _BLOCK_ROWS)
                new = following[:, rows]
                counts = self._tensor([new.shape[1]])
                output = self._extended(cache, states[rows][None], new, counts)
            caches.append(cache)
            last.append((output.state[:, 0, -1:], output.normed[:, 0, -1:]))
        self._cache = _joined(caches)
        self._state, self._normed = (torch.cat(parts) for parts in zip(*last, strict=True))

    def extend(self, aux: Tensor, following: Sequence[list[int]]) -> None:
        """Add the rows of a round (SGLang's draft extend).

        Args:
            aux: [B, n, A * C], the target's states at the root and the accepted drafts of each sequence, padded.
            following: the tokens after these: the accepted drafts and the new root.
        """
        counts = self._tensor([len(new) for new in following])
        tokens = pad_sequence([self._tensor(new) for new in following], batch_first=True)
        output = self._extended(self._cache, aux, tokens, counts)
        last = torch.arange(len(counts), device=self._device), 0, counts - 1
        self._state, self._normed = output.state[last][:, None], output.normed[last][:, None]

    def propose(
        self, roots: Tensor, root_tokens: Tensor, streams: Sequence[int], indices: Tensor
    ) -> tuple[DraftTree, Tensor | None]:
        """The trees of the roots, and what their drafts were drawn from if they were drawn.

        Args:
            roots: int64 [B], token index of each root.
            root_tokens: int64 [B].
            streams: as for ``Chooser.verify``.
            indices: as for ``Chooser.verify``.
        """
        prefix = self._cache.prefixes()
        if self._chooser.rule.drafts == "sampled":
            candidates, draft_probs = propose_sampled(
                self.draft,
                self._state,
                self._normed,
                roots[:, None],
                prefix,
                temperature=self._chooser.sampling.temperature,
                uniforms=self._chooser.draft_uniforms(streams, indices).to(self._device),
            )
        else:
            level = FirstLevel(self._state, *best_next(self.draft, self._normed, self.tree.topk))
            candidates, draft_probs = propose(self.draft, level, roots[:, None], prefix, self.tree), None
        num_draft_tokens = self.tree.num_draft_tokens
        trees = build_tree(candidates, root_tokens=root_tokens, prefix_lengths=roots, num_draft_tokens=num_draft_tokens)
        return trees, draft_probs

    def select(self, sequences: Tensor) -> None:
        """Keep only these sequences, int64 [b]."""
        self._cache.select(sequences)
        self._state, self._normed = self._state[sequences], self._normed[sequences]

    def _extended(self, cache: KVCache, aux: Tensor, following: Tensor, counts: Tensor) -> DraftOutput:
        """Commit the first ``counts`` [B] rows of states [B, n, A * C] and the tokens after them [B, n]."""
        order = torch.arange(following.shape[1], device=self._device).expand_as(following)
        output: DraftOutput = self.draft(
            self.draft.fuse(aux)[:, None],
            following[:, None],
            (cache.lengths[:, None] + order)[:, None],
            mask=order[0, :, None] >= order[0],
            prefix=cache.prefixes(),
        )
        cache.offer(output.rows)
        cache.keep(order, counts)
        return output

    def _tensor(self, numbers: Sequence[int] | Sequence[list[int]]) -> Tensor:
        return torch.tensor(numbers, device=self._device)


def _joined(caches: Sequence[KVCache]) -> KVCache:
    """The caches of single sequences as one."""
    joined = KVCache(0, len(caches), caches[0].lengths.device)
    layers = [
        Rows(*(pad_sequence([part[0] for part in parts], batch_first=True) for parts in zip(*rows, strict=True)))
        for rows in zip(*([prefix.rows for prefix in cache.prefixes() or []] for cache in caches), strict=True)
    ]
    joined.fill(layers, torch.cat([cache.lengths for cache in caches]))
    return joined
