"""The draft loop of ``draft.propose`` for one root a sequence, with static shapes, on the kernels' operations.

No value is read on the host between the first operation and the last, so a CUDA graph can hold the whole loop.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.cuda_graph.prefix import TreePrefix, longest_prefix, without_host_reads
from eagle3ref.draft import Eagle3Draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels import Ops, pack_mask
from eagle3ref.kernels.eager_selection import topk_on_device
from eagle3ref.nn import Rows
from eagle3ref.tree import Candidates, DraftTree


class LoopStart(NamedTuple):
    """What a round of B sequences begins with. The first three are ``draft.FirstLevel`` with P = 1.

    Args:
        state: [B, C], recurrent state of the last draft row before each root.
        probs: fp32 [B, K], probabilities of the first level, best first.
        tokens: int64 [B, K], target ids of the first level.
        root_tokens: int64 [B], the last committed tokens.
        prefix_lengths: int64 [B], token index L of each root: rows 0 .. L-1 of its prefix are read.
    """

    state: Tensor
    probs: Tensor
    tokens: Tensor
    root_tokens: Tensor
    prefix_lengths: Tensor


class Drafted(NamedTuple):
    """What a round ends with.

    Args:
        candidates: M = ``tree.num_candidates`` for each of B sequences, as ``propose`` gives them.
        tree: N = ``tree.num_draft_tokens`` nodes for each, as ``build_tree`` makes it of them.
    """

    candidates: Candidates
    tree: DraftTree


class _Beams(NamedTuple):
    """The K branches that are expanded next, each [B, K, ...]."""

    state: Tensor
    tokens: Tensor
    scores: Tensor
    candidates: Tensor  # flat index of each beam's token
    ancestors: Tensor  # int32 [B, K, W], a bit for each own row that the branch's own path has made


class StaticDraftLoop:
    """The draft loop of one tree shape. Called again with the same shapes, it runs the same operations.

    Candidates have the tokens and parents of ``propose``, and scores within the rounding of the attention.

    Args:
        draft: the draft. Its tensors are used where they lie.
        tree: num_steps, topk, num_draft_tokens and the tree's KV mode.
        ops: ``get_ops("triton")``, or ``get_ops("torch")``, whose ``build_tree`` looks at its result on the host.

    Raises:
        Eagle3RefError: a draft with a sliding window, or a draft vocabulary smaller than ``topk``.
    """

    def __init__(self, draft: Eagle3Draft, tree: TreeConfig, ops: Ops) -> None:
        if tree.topk > draft.config.draft_vocab_size:
            raise Eagle3RefError(
                "setting up the draft loop",
                found=f"topk {tree.topk} for a draft vocabulary of {draft.config.draft_vocab_size}",
                expected="no more children than draft tokens",
                action="Lower topk.",
            )
        self.tree, self.ops, self.draft = tree, ops, without_host_reads(draft)
        self._longest = longest_prefix(draft, tree.num_steps)
        device = draft.target_ids.device
        self._branch = torch.arange(tree.topk, device=device)
        self._row_bits = _row_bits(tree).to(device)  # [S-1, K, W]
        self._slot_bits = _slot_bits(tree).to(device)  # [S-1, K, W]

    @torch.no_grad()
    def __call__(self, start: LoopStart, prefix: list[Rows]) -> Drafted:
        """One round.

        Args:
            start: of B sequences.
            prefix: per layer, their committed draft rows [B, T, ...] (``nn.Rows``). A length outside 0 .. T gives NaN
                scores, since the device cannot raise.

        Raises:
            Eagle3RefError: prefix rows that reach past the range of a dynamic rope; what ``ops`` refuses.
        """
        self._check_range(prefix)
        candidates = self.score(start, prefix)
        tree = self.ops.build_tree(
            candidates,
            root_tokens=start.root_tokens,
            prefix_lengths=start.prefix_lengths,
            num_draft_tokens=self.tree.num_draft_tokens,
        )
        return Drafted(candidates, tree)

    def score(self, start: LoopStart, prefix: list[Rows]) -> Candidates:
        """Every candidate of the round: ``num_steps - 1`` passes of K rows, without a look from the host."""
        topk = self.tree.topk
        beams = self._first_beams(start)
        levels = [(beams.scores, beams.tokens, torch.full_like(beams.tokens, -1))]
        shared = [TreePrefix(rows, start.prefix_lengths, self.ops) for rows in prefix]
        own: list[Rows] | None = None
        for step in range(self.tree.num_steps - 1):
            path = beams.ancestors | self._row_bits[step]
            seen = self._slot_bits[step].expand_as(path) if self.tree.tree_kv == "slot" else path
            positions = (start.prefix_lengths + step).unsqueeze(-1).expand_as(beams.tokens)
            one_group = (part.unsqueeze(1) for part in (beams.state, beams.tokens, positions))
            output = self.draft(*one_group, mask=seen.unsqueeze(1), own=own, prefix=shared)
            own = output.rows
            probs, tokens = self._best_next(output.normed.squeeze(1))  # [B, K, K]
            beams = beams._replace(state=output.state.squeeze(1), ancestors=path)
            level, beams = _next_level(beams, probs, tokens, start=topk + step * topk**2)
            levels.append(level)
        return Candidates(*(torch.cat(parts, -1) for parts in zip(*levels, strict=True)))

    def _first_beams(self, start: LoopStart) -> _Beams:
        batch, topk = start.tokens.shape
        return _Beams(
            start.state.unsqueeze(1).expand(-1, topk, -1),
            start.tokens,
            start.probs.to(torch.float32),
            self._branch.expand_as(start.tokens),
            self._row_bits.new_zeros(batch, topk, self._row_bits.shape[-1]),
        )

    def _best_next(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        """As ``draft.best_next``: [..., C] -> probabilities [..., K] and target ids [..., K]."""
        probs, chosen = self.ops.topk_probs(self.draft.logits(normed), self.tree.topk)
        return probs, self.draft.target_ids[chosen]

    def _check_range(self, prefix: list[Rows]) -> None:
        rows = prefix[0].first.shape[1]
        if self._longest is not None and rows > self._longest:
            raise Eagle3RefError(
                "running the draft loop",
                found=f"room for {rows} prefix rows with a dynamic rope",
                expected=f"at most {self._longest}: up to there, and {self.tree.num_steps} steps on, it is a plain one",
                action="Give it shorter prefixes.",
            )


def _next_level(
    beams: _Beams, probs: Tensor, tokens: Tensor, *, start: int
) -> tuple[tuple[Tensor, Tensor, Tensor], _Beams]:
    """Score the K * K children and keep the K best as beams. ``start`` is the flat index of the first child."""
    topk = beams.tokens.shape[-1]
    scores = (beams.scores.unsqueeze(-1) * probs.to(torch.float32)).flatten(1)  # [B, K*K]
    tokens = tokens.flatten(1)
    parents = beams.candidates.unsqueeze(-1).expand(-1, -1, topk).flatten(1)
    best, chosen = topk_on_device(scores, topk)
    from_beam = (chosen // topk).unsqueeze(-1)
    chosen_beams = _Beams(
        beams.state.gather(1, from_beam.expand_as(beams.state)),
        tokens.gather(1, chosen),
        best,
        start + chosen,
        beams.ancestors.gather(1, from_beam.expand_as(beams.ancestors)),
    )
    return (scores, tokens, parents), chosen_beams


def _row_bits(tree: TreeConfig) -> Tensor:
    """int32 [S-1, K, W]: the bit of the row that each branch makes in each pass. Rows lie by pass, then branch."""
    passes = max(tree.num_steps - 1, 1)
    own_row = torch.eye(passes * tree.topk, dtype=torch.bool)
    bits: Tensor = pack_mask(own_row).unflatten(0, (passes, tree.topk))
    return bits


def _slot_bits(tree: TreeConfig) -> Tensor:
    """int32 [S-1, K, W]: the rows of a branch's own slot, whoever held it, up to and with each pass."""
    return _row_bits(tree).cumsum(0).to(torch.int32)  # one bit a row, so the sum is the union
