"""Who supplies the two matrices that a draft may share with its target: the embedding and the head."""

from __future__ import annotations

from torch import Tensor

from eagle3ref.draft.model import Eagle3Draft
from eagle3ref.target import SharedWeights

_EMBEDDING, _LM_HEAD = "embed_tokens.weight", "lm_head.weight"
_FROM_TARGET = "the target's (the draft brings none)"


def supply_embedding(draft: Eagle3Draft, tensors: dict[str, Tensor], shared: SharedWeights | None) -> list[str]:
    """Fill in the embedding from the target where the draft has none, and say in ``origins`` whose it is.

    Args:
        draft: its settings, and its ``origins`` to write to.
        tensors: of the draft, by plain name; written to.
        shared: the target's matrices, if a target was given.

    Returns:
        What is odd about it.
    """
    own = tensors.get(_EMBEDDING)
    if own is not None:
        draft.origins["embedding"] = "the draft's own"
        may_be_replaced = shared is not None and draft.config.target_hidden_size == draft.config.hidden_size
        if shared is not None and may_be_replaced and not shared.has_embedding(own):
            return [
                "the draft's embedding differs from the target's: SGLang would replace it by the target's, vLLM keeps "
                "it. Kept here."
            ]
    elif shared is not None:
        tensors[_EMBEDDING] = shared.embedding()
        draft.origins["embedding"] = _FROM_TARGET
    return []


def supply_lm_head(draft: Eagle3Draft, tensors: dict[str, Tensor], shared: SharedWeights | None) -> list[str]:
    """As ``supply_embedding``, for the head, after it: a head can be tied to the embedding."""
    config = draft.config
    if _LM_HEAD in tensors:
        draft.origins["lm_head"] = "the draft's own"
        if config.shares_target_lm_head and not config.tie_word_embeddings:
            return [
                "the file has an lm_head but no draft_vocab_size: SGLang would use the target's head. The draft's own "
                "is used here."
            ]
    elif config.tie_word_embeddings and _EMBEDDING in tensors:
        tensors[_LM_HEAD] = tensors[_EMBEDDING]
        draft.origins["lm_head"] = "tied to the embedding"
    elif shared is not None and config.draft_vocab_size == config.vocab_size:
        tensors[_LM_HEAD] = shared.lm_head()
        draft.origins["lm_head"] = _FROM_TARGET
        if not config.shares_target_lm_head:
            return [
                "no lm_head in the file although draft_vocab_size is set: SGLang would keep an uninitialised head "
                "(accept len 1.00). Taken from the target here; export the draft with its head."
            ]
    return []
