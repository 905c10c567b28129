"""A draft's network under a wiring: the same tensors, but for the few that the wiring exchanges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from eagle3ref.config import DraftConfig
from eagle3ref.diagnose.wiring import Head, Wiring
from eagle3ref.diagnose.wiring_feed import rotated
from eagle3ref.draft import Eagle3Draft
from eagle3ref.nn import GQAttention, MLAttention
from eagle3ref.target import SharedWeights

_RANDOM_SCALE = 0.02  # initializer_range of most configs


def rewire(draft: Eagle3Draft, wiring: Wiring, shared: SharedWeights | None) -> Eagle3Draft:
    """The draft as this wiring runs it; nothing of ``draft`` is changed.

    Args:
        draft: as it was trained.
        wiring: its network and vocabulary knobs are turned here.
        shared: the target's embedding and head; needed where the wiring takes them.
    """
    other = draft.rewired(_config(draft.config, wiring))
    if wiring.bypasses_fc:
        other.fc = _identity(draft)
    if wiring.swaps_rope_layout:
        for attention in _attentions(other):
            attention.rope.interleaved = not attention.rope.interleaved
    if wiring.swaps_inputs:
        _swap_inputs(other)
    if wiring.embedding != "draft":
        other.embed_tokens.weight = _parameter(_embedding(draft, wiring, shared), draft)
    if wiring.head != "draft":
        other.lm_head.weight = _parameter(_head(draft, wiring.head, shared), draft)
        other.config = replace(other.config, draft_vocab_size=len(other.lm_head.weight))
    other.target_ids = _target_ids(draft, wiring)
    return other


def _config(config: DraftConfig, wiring: Wiring) -> DraftConfig:
    asked = {
        "final_norm": wiring.final_norm,
        "norm_before_residual": wiring.norm_before_residual,
        "hidden_double_norm": wiring.double_norm,
        "fc_norm": False if wiring.bypasses_fc else wiring.fc_norm,
        "norm_before_fc": False if wiring.bypasses_fc else wiring.norm_before_fc,
        "attention": None if wiring.rope is None else replace(config.attention, rope=wiring.rope),
    }
    changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    return replace(config, **changes)


def _identity(draft: Eagle3Draft) -> nn.Linear:
    """An fc that hands over a single state as it is."""
    like = draft.fc.weight
    width = draft.config.hidden_size
    identity = nn.Linear(width, width, bias=False, device="meta")
    identity.weight = nn.Parameter(torch.eye(width, dtype=like.dtype, device=like.device), requires_grad=False)
    return identity


def _swap_inputs(draft: Eagle3Draft) -> None:
    """[state; embedding] for a layer that reads [embedding; state] is an exchange of its columns."""
    attention = _attentions(draft)[0]
    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    if isinstance(attention, MLAttention):
        names = ("q_proj" if attention.config.q_lora_rank is None else "q_a_proj", "kv_a_proj_with_mqa")
    for name in names:
        projection = getattr(attention, name)
        first, second = projection.weight.chunk(2, 1)
        projection.weight = nn.Parameter(torch.cat((second, first), 1), requires_grad=False)


def _attentions(draft: Eagle3Draft) -> list[GQAttention | MLAttention]:
    return [part for part in draft.modules() if isinstance(part, GQAttention | MLAttention)]


def _embedding(draft: Eagle3Draft, wiring: Wiring, shared: SharedWeights | None) -> Tensor:
    own = draft.embed_tokens.weight
    if wiring.embedding == "random":
        return random_like(own)
    if wiring.embedding == "shuffled":
        return own[torch.randperm(len(own), generator=torch.Generator().manual_seed(0)).to(own.device)]
    if wiring.embedding == "rotated":
        return rotated(own)
    return _given(shared).embedding()


def _head(draft: Eagle3Draft, head: Head, shared: SharedWeights | None) -> Tensor:
    if head == "random":
        return random_like(draft.lm_head.weight)
    whole = _given(shared).lm_head()
    if head == "target rows":
        return whole[: draft.config.draft_vocab_size]
    return whole[draft.target_ids.cpu()] if head == "target d2t" else whole


def _given(shared: SharedWeights | None) -> SharedWeights:
    if shared is None:
        raise ValueError("a wiring that takes the target's matrices needs the target")
    return shared


def random_like(weight: Tensor) -> Tensor:
    """What an engine leaves in a matrix that it initialises and never loads; always the same numbers."""
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    return noise * _RANDOM_SCALE


def _target_ids(draft: Eagle3Draft, wiring: Wiring) -> Tensor:
    """int64 [Vd], or [V] of a target's whole head."""
    ids, size = draft.target_ids, draft.config.vocab_size
    own = torch.arange(len(ids), device=ids.device)
    if wiring.head == "target":
        return torch.arange(size, device=ids.device)
    if wiring.vocabulary == "ignored":
        return own
    if wiring.vocabulary == "absolute":
        return ids - own
    if wiring.vocabulary == "doubled":
        return (ids + own).clamp_max(size - 1)
    if wiring.vocabulary == "shuffled":
        return ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(0)).to(ids.device)]
    return ids


def _parameter(values: Tensor, draft: Eagle3Draft) -> nn.Parameter:
    like = draft.fc.weight
    return nn.Parameter(values.to(device=like.device, dtype=like.dtype), requires_grad=False)
