"""Targets: the protocol, Kimi-K2.5 in plain PyTorch, any causal language model of transformers."""

from __future__ import annotations

from pathlib import Path

import torch

from eagle3ref.config.target import KIMI_MODEL_TYPES, TargetConfig
from eagle3ref.target.base import Target, TargetCache, TargetOutput
from eagle3ref.target.kimi_k25 import KimiK25Target
from eagle3ref.target.shared_weights import SharedWeights, shared_weights

__all__ = [
    "KimiK25Target",
    "SharedWeights",
    "Target",
    "TargetCache",
    "TargetOutput",
    "load_target",
    "shared_weights",
]


def load_target(
    folder: str | Path, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.bfloat16
) -> Target:
    """Load a target: Kimi-K2.x from Moonshot's own files, anything else through transformers.

    Args:
        folder: config.json and the weights. Nothing is fetched and no code of the folder is run.
        device: where the weights go.
        dtype: of weights and activations. Kimi's INT4 experts are rounded to bf16 first whatever this is.

    Raises:
        Eagle3RefError: no checkpoint there, a damaged one, or an architecture that neither side knows.
    """
    if TargetConfig.from_folder(folder).model_type in KIMI_MODEL_TYPES:
        return KimiK25Target.from_folder(folder, device=device, dtype=dtype)
    # transformers takes seconds to import: only those who need it wait for it.
    from eagle3ref.target.transformers import TransformersTarget

    return TransformersTarget.from_folder(folder, device=device, dtype=dtype)
