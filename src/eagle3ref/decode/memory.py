"""What answering keeps in memory for every token of a prompt and its answer."""

from __future__ import annotations

import torch

from eagle3ref.config import GQAConfig, KimiK25Config, MLAConfig
from eagle3ref.draft import Eagle3Draft


def answering_bytes_per_token(architecture: KimiK25Config, dtype: torch.dtype, draft: Eagle3Draft | None = None) -> int:
    """Bytes for each token of every prompt that is open, all prompts counted as long as the longest.

    The rows of the target's latent cache and of the draft's cache, with the eighth by which a full buffer grows; and
    with a draft the aux hidden states, which are there from the prompts' own pass until the first round. Kimi-K2.5 in
    bf16 without a draft: 79,056, of which 70,272 are rows.

    Args:
        architecture: of the target.
        dtype: of the target's activations.
        draft: None for one token a round.
    """
    rows = architecture.num_layers * _row(architecture.attention)
    aux = 0
    if draft is not None:
        rows += sum(_row(draft.config.layer_attention(i)) for i in range(len(draft.layers)))
        aux = len(draft.capture_points) * architecture.hidden_size
    return rows * dtype.itemsize * 9 // 8 + aux * dtype.itemsize


def _row(attention: GQAConfig | MLAConfig) -> int:
    """Numbers that a layer remembers of a token."""
    if isinstance(attention, MLAConfig):
        return attention.kv_lora_rank + attention.qk_rope_head_dim
    return 2 * attention.num_kv_heads * attention.head_dim
