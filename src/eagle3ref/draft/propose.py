"""The draft loop: from the first-level candidates of a root to every scored candidate of its tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.draft.model import Eagle3Draft
from eagle3ref.nn import Rows, SharedRows
from eagle3ref.nn.norm import at_least_float32
from eagle3ref.sampling import sample, target_probs, topk_stable
from eagle3ref.tree import Candidates, extend_beams

_LOGITS_AT_ONCE = 2**26


class FirstLevel(NamedTuple):
    """What the last draft row before a root leaves for it: that row's recurrent state and its best next tokens.

    Args:
        state: [B, P, C].
        probs: [B, P, K], over the draft vocabulary, best first.
        tokens: int64 [B, P, K], target ids, candidates for the token after the root.
    """

    state: Tensor
    probs: Tensor
    tokens: Tensor


class DraftLoop(NamedTuple):
    """How the passes of the draft loop follow one another. The default is right; engines have had others.

    Args:
        offset: pass ``step`` of root L runs at rope position ``L + offset + stride * step``.
        stride: 0 is a position that is not advanced.
        sees_own: a row sees the rows of the passes before it; without, only the prefix and itself (SGLang PR 21255, a
            length that is not advanced).
    """

    offset: int = 0
    stride: int = 1
    sees_own: bool = True

    def positions(self, roots: Tensor, step: int) -> Tensor:
        """Shaped as the roots."""
        return roots + (self.offset + self.stride * step)

    def visible(self, mask: Tensor, num_new: int) -> Tensor:
        """A mask [..., K] over own rows, the ``num_new`` newest of them last."""
        if self.sees_own:
            return mask
        return mask & (torch.arange(mask.shape[-1], device=mask.device) >= mask.shape[-1] - num_new)


RIGHT_LOOP = DraftLoop()


class _Beams(NamedTuple):
    """The K branches that are expanded next, each [B, P, K, ...]."""

    state: Tensor
    tokens: Tensor
    scores: Tensor
    candidates: Tensor  # flat index of each beam's token
    lineage: Tensor  # [B, P, K, passes so far], branch that holds the ancestor's row of each earlier pass


def best_next(draft: Eagle3Draft, normed: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """The K most probable next tokens: [..., C] -> probabilities [..., K] and target ids int64 [..., K].

    The softmax is over the draft vocabulary and ignores the temperature (SGLang 0.5.23, spec_utils.py). At most
    ``_LOGITS_AT_ONCE`` logits exist at a time, however many rows are asked for.
    """
    rows_at_once = max(1, _LOGITS_AT_ONCE // draft.config.draft_vocab_size)
    parts = [_best_of(draft, rows, topk) for rows in normed.flatten(0, -2).split(rows_at_once)]
    probs, tokens = (torch.cat(part).unflatten(0, normed.shape[:-1]) for part in zip(*parts, strict=True))
    return probs, tokens


def _best_of(draft: Eagle3Draft, normed: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    logits = draft.logits(normed)
    probs, chosen = topk_stable(logits.to(at_least_float32(logits.dtype)).softmax(-1), topk)
    return probs, draft.target_ids[chosen]


def propose(
    draft: Eagle3Draft,
    first: FirstLevel,
    roots: Tensor,
    prefix: Sequence[SharedRows] | None,
    tree: TreeConfig,
    loop: DraftLoop = RIGHT_LOOP,
) -> Candidates:
    """Score the candidates of B x P roots (SGLang 0.5.23, eagle_worker_v2.py; EAGLE-2, arXiv 2406.16858, §4.1).

    The first level is free; ``num_steps - 1`` forwards follow, with K rows per root. A row that carries the token at
    index i sits at rope position i - 1.

    Args:
        draft: the draft.
        first: of every root.
        roots: int64 [B, P], token index L of each root; its prefix is the draft rows 0 .. L-1.
        prefix: per layer, draft rows of the sequences [B, T, ...]; the mask limits each root to its own rows.
        tree: num_steps, topk and the tree's KV mode.
        loop: how the passes follow one another.

    Returns:
        M = ``tree.num_candidates`` candidates for each of B * P roots.
    """
    topk = tree.topk
    flat_index = torch.arange(topk, device=roots.device)
    beams = _Beams(
        first.state.unsqueeze(2).expand(-1, -1, topk, -1),
        first.tokens,
        first.probs.to(torch.float32),
        flat_index.expand_as(first.tokens),
        torch.zeros(*first.tokens.shape, 0, dtype=torch.int64, device=roots.device),
    )
    scored = [(beams.scores, beams.tokens, torch.full_like(beams.tokens, -1))]
    own: list[Rows] | None = None
    for step in range(tree.num_steps - 1):
        lineage = torch.cat((beams.lineage, flat_index.expand_as(beams.tokens).unsqueeze(-1)), -1)
        mask = loop.visible(_branch_mask(lineage, tree), topk)
        positions = loop.positions(roots, step).unsqueeze(-1).expand_as(beams.tokens)
        output = draft(beams.state, beams.tokens, positions, mask=mask, own=own, prefix=prefix)
        own = output.rows
        probs, tokens = best_next(draft, output.normed, topk)  # [B, P, K, K]
        level, beams = _next_level(beams, lineage, output.state, probs, tokens, start=topk + step * topk**2)
        scored.append(level)
    scores, tokens, parents = (torch.cat(parts, -1).flatten(0, 1) for parts in zip(*scored, strict=True))
    return Candidates(scores, tokens, parents)


def propose_sampled(
    draft: Eagle3Draft,
    state: Tensor,
    normed: Tensor,
    roots: Tensor,
    prefix: Sequence[SharedRows] | None,
    *,
    temperature: float,
    uniforms: Tensor,
) -> tuple[Candidates, Tensor]:
    """Draw a chain of drafts for each of B x P roots, for rejection and block verification.

    Each token is drawn from the softmax of the draft's logits over the temperature, without top-k or top-p, and at
    temperature 0 it is the first choice (SGLang 0.5.23, ``sample_draft_proposal``; vLLM 0.32.0 likewise). The engines
    draw by an exponential race on the GPU; here it is the inverse CDF in the order of draft ids.

    Args:
        draft: the draft.
        state: [B, P, C], recurrent state of the last draft row before each root.
        normed: [B, P, C], the same row after the final norm.
        roots: int64 [B, P], token index of each root.
        prefix: as in ``propose``.
        temperature: the request's.
        uniforms: [B, P, S], one for each draft token.

    Returns:
        candidates: S for each of B * P roots, one below the other; scores are products of probabilities.
        draft_probs: [B * P, S, V], what each was drawn from, over *target* ids and 0 outside the draft vocabulary.
    """
    drawn: list[tuple[Tensor, Tensor, Tensor]] = []  # probabilities [B, P, Vd], draft ids and their probabilities
    own: list[Rows] | None = None
    for step in range(uniforms.shape[-1]):
        if drawn:
            rows = torch.ones(1, step, dtype=torch.bool, device=roots.device)
            tokens, positions = draft.target_ids[drawn[-1][1]], roots + step - 1
            row = (state[:, :, None], tokens[..., None], positions[..., None])
            output = draft(*row, mask=rows, own=own, prefix=prefix)
            own, state, normed = output.rows, output.state[:, :, 0], output.normed[:, :, 0]
        probs = target_probs(draft.logits(normed), temperature=temperature)
        chosen = sample(probs, uniforms[..., step])
        drawn.append((probs, chosen, probs.gather(-1, chosen[..., None])[..., 0]))
    all_probs, all_chosen, all_scores = (torch.stack(parts, 2).flatten(0, 1) for parts in zip(*drawn, strict=True))
    parents = torch.arange(-1, len(drawn) - 1, device=roots.device).expand_as(all_chosen)
    draft_probs = all_probs.new_zeros(*all_chosen.shape, draft.config.vocab_size)
    draft_probs[..., draft.target_ids] = all_probs
    return Candidates(all_scores.float().cumprod(-1), draft.target_ids[all_chosen], parents), draft_probs


def _branch_mask(lineage: Tensor, tree: TreeConfig) -> Tensor:
    """Which own rows each branch sees: bool [B, P, K, passes * K], rows in order of pass, then branch.

    ``slot``: its own branch of every pass, although a branch may have changed hands at each selection. ``ancestor``:
    the rows of its true ancestors.
    """
    branch = torch.arange(tree.topk, device=lineage.device)
    if tree.tree_kv == "slot":
        lineage = branch.unsqueeze(-1).expand_as(lineage)
    return (lineage.unsqueeze(-1) == branch).flatten(-2)


def _next_level(
    beams: _Beams, lineage: Tensor, state: Tensor, probs: Tensor, tokens: Tensor, *, start: int
) -> tuple[tuple[Tensor, Tensor, Tensor], _Beams]:
    """Score the K * K children and keep the K best as beams. ``start`` is the flat index of the first child."""
    shape = beams.tokens.shape  # [B, P, K]
    scores, chosen = extend_beams(beams.scores.flatten(0, 1), probs.flatten(0, 1))
    scores, chosen = scores.unflatten(0, shape[:2]), chosen.unflatten(0, shape[:2])
    tokens = tokens.flatten(-2)  # [B, P, K*K]
    parents = beams.candidates.repeat_interleave(shape[-1], -1)
    from_beam = chosen // shape[-1]
    chosen_beams = _Beams(
        state.gather(2, from_beam.unsqueeze(-1).expand(*shape, state.shape[-1])),
        tokens.gather(-1, chosen),
        scores.gather(-1, chosen),
        start + chosen,
        lineage.gather(2, from_beam.unsqueeze(-1).expand_as(lineage)),
    )
    return (scores, tokens, parents), chosen_beams
