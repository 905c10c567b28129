"""The two matrices that a draft may share with its target, read without loading the rest of the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eagle3ref.config import TargetConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.base import Target
from eagle3ref.target.checkpoint import LAYOUTS
from eagle3ref.weights import Weights

_EMBEDDING_NAMES = (*(f"{prefix}embed_tokens.weight" for prefix, _ in LAYOUTS), "embed_tokens.weight")
_LM_HEAD_NAMES = tuple(dict.fromkeys(head for _, head in LAYOUTS))


@dataclass(frozen=True)
class SharedWeights:
    """A target's settings, its input embedding [V, C] and its output projection [V, C], read when asked for."""

    config: TargetConfig
    embedding: Callable[[], Tensor]
    lm_head: Callable[[], Tensor]

    def has_embedding(self, other: Tensor) -> bool:
        """Whether another embedding is this one, both rounded to the coarser of their dtypes, on the other's device."""
        own = self.embedding()
        dtype = max(own.dtype, other.dtype, key=lambda each: torch.finfo(each).eps)
        return own.shape == other.shape and torch.equal(own.to(other.device, dtype), other.to(dtype))


def shared_weights(target: Target | str | Path) -> SharedWeights:
    """From a loaded target, or from a checkpoint folder.

    Raises:
        Eagle3RefError: no readable checkpoint there.
    """
    if not isinstance(target, str | Path):
        return SharedWeights(target.config, target.embedding, target.lm_head)
    weights = Weights(target, only=(*_EMBEDDING_NAMES, *_LM_HEAD_NAMES))

    def embedding() -> Tensor:
        return _first_of(weights, _EMBEDDING_NAMES)

    def lm_head() -> Tensor:
        # Models that tie the two write only the embedding.
        return _first_of(weights, (*_LM_HEAD_NAMES, *_EMBEDDING_NAMES))

    return SharedWeights(TargetConfig.from_folder(target), embedding, lm_head)


def _first_of(weights: Weights, names: tuple[str, ...]) -> Tensor:
    for name in names:
        if name in weights:
            return weights.read(name)
    raise Eagle3RefError(
        f"reading the embedding or head of target {weights.folder}",
        found="neither name",
        expected=" or ".join(names),
        action="Load the target itself and pass it instead of its folder.",
    )
