"""Targets: the protocol, Kimi-K2.5 in plain PyTorch, any causal language model of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NoReturn

import torch

from eagle3ref.config.target import KIMI_MODEL_TYPES, TargetConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.base import LayerMajorTarget, Scores, Target, TargetCache, TargetOutput
from eagle3ref.target.checkpoint import DequantizeInt4, refuse_gguf
from eagle3ref.target.int4 import dequantize_int4 as dequantize_int4_in_torch
from eagle3ref.target.kimi_k25 import KimiK25Target
from eagle3ref.target.shared_weights import SharedWeights, shared_weights
from eagle3ref.target.streaming import StreamedTarget

__all__ = [
    "KimiK25Target",
    "LayerMajorTarget",
    "Scores",
    "SharedWeights",
    "StreamedTarget",
    "Target",
    "TargetCache",
    "TargetOutput",
    "load_target",
    "shared_weights",
]


def load_target(
    folder: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    weights: Literal["resident", "stream"] = "resident",
    memory: int | None = None,
    packed: bool | None = None,
    dequantize_int4: DequantizeInt4 = dequantize_int4_in_torch,
) -> Target:
    """Load a target: Kimi-K2.x from Moonshot's own files, anything else through transformers.

    Args:
        folder: config.json and the weights. Nothing is fetched and no code of the folder is run.
        device: where the weights go. For Kimi also several with commas in between, e.g. ``cuda:0,cuda:1``.
        dtype: of weights and activations. Kimi's INT4 experts are rounded to bf16 first whatever this is.
        weights: ``resident`` loads them; ``stream`` (Kimi only) reads them in every forward and every pass.
        memory: with ``stream``, the most that the whole process may have in memory, in bytes; None: no bound.
        packed: with ``resident`` (Kimi only), routed experts stay as they are stored; None: if there is no other way.
        dequantize_int4: Kimi's packed weights to bf16: ``target.int4.dequantize_int4``, or a twin of it.

    Raises:
        Eagle3RefError: no checkpoint there, a damaged one, an architecture that neither side knows, or settings that
            do not go together.
    """
    refuse_gguf(folder)  # such a folder has no config.json either, which is not what is wrong with it
    model_type = TargetConfig.from_folder(folder).model_type
    is_kimi = model_type in KIMI_MODEL_TYPES
    _check_settings(folder, model_type, weights, memory, packed, str(device), dtype)
    if is_kimi and weights == "stream":
        return StreamedTarget.from_folder(
            folder, device=device, dtype=dtype, memory=memory, dequantize_int4=dequantize_int4
        )
    if is_kimi:
        return KimiK25Target.from_folder(
            folder, device=device, dtype=dtype, packed=packed, dequantize_int4=dequantize_int4
        )
    # transformers takes seconds to import: only those who need it wait for it.
    from eagle3ref.target.transformers import TransformersTarget

    return TransformersTarget.from_folder(folder, device=device, dtype=dtype)


def _check_settings(
    folder: str | Path,
    model_type: str,
    weights: str,
    memory: int | None,
    packed: bool | None,
    device: str,
    dtype: torch.dtype,
) -> None:
    doing = f"loading {folder}"
    if model_type not in KIMI_MODEL_TYPES and (weights == "stream" or packed is not None or "," in device):
        raise Eagle3RefError(
            doing,
            found=f"streamed or packed weights, or several devices, for a model of type {model_type}",
            expected=f"a model of type {' or '.join(KIMI_MODEL_TYPES)}",
            action="Leave that setting out, and transformers loads the model if it has its architecture. Otherwise "
            "let the engine that serves it dump its states, and take those: eagle3ref import.",
        )
    if weights not in ("resident", "stream"):
        _refuse(doing, f"weights = {weights!r}", '"resident" or "stream"', "Correct that setting.")
    if weights == "resident" and memory is not None:
        action = 'Stream the weights (weights="stream", --weights stream), or leave the bound out.'
        _refuse(doing, "a memory bound with resident weights", "streamed weights under a bound", action)
    if weights == "stream" and packed is not None:
        expected = "streamed weights as they are stored, which they always are"
        _refuse(doing, f"packed = {packed} with streamed weights", expected, "Leave packed out.")
    if memory is not None and memory <= 0:
        _refuse(doing, f"a memory bound of {memory} bytes", "a positive number of bytes", "Raise it, or leave it out.")
    if not dtype.is_floating_point:
        action = "Use torch.bfloat16, or float32 for the most exact bits."
        _refuse(doing, f"dtype {dtype}", "a floating-point dtype for weights and activations", action)


def _refuse(doing: str, found: str, expected: str, action: str) -> NoReturn:
    raise Eagle3RefError(doing, found=found, expected=expected, action=action)
