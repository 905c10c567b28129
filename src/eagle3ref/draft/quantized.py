"""Drafts with 8-bit weights: scaled back at load. Packed 4-bit formats are refused by name."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor

from eagle3ref.config.json_fields import JsonFields
from eagle3ref.errors import Eagle3RefError

_EIGHT_BIT = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.int8)
_SCALE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# DeepSeek calls its block scales inverse, and multiplies by them like everybody else.
_SCALE_SUFFIXES = (".weight_scale", ".weight_scale_inv")
_DEFAULT_BLOCK = (128, 128)

# Of activations and caches: a reference computes both in the weights' precision.
_ACTIVATION_SCALE = re.compile(r"\.(input|output|k|v|kv|q)_(global_)?(scale|zero_point)$")

_PACKED = {
    "compressed-tensors 4-bit or NVFP4": re.compile(r"\.weight_packed$"),
    "modelopt NVFP4": re.compile(r"\.weight_scale_2$"),
    "AWQ or GPTQ": re.compile(r"\.(qweight|qzeros|g_idx)$"),
    "bitsandbytes": re.compile(r"\.(SCB|absmax|quant_map|quant_state)(\.|$)|\.weight\.(absmax|quant_)"),
    "weights with zero points": re.compile(r"\.weight_zero_point$"),
}


def dequantize(tensors: dict[str, Tensor], config: JsonFields, where: str) -> tuple[dict[str, Tensor], str | None]:
    """Replace every 8-bit ``weight`` by ``weight * weight_scale`` in fp32; the other tensors stay as they are.

    A scale is one number, one for each output row ([out] or [out, 1]), or one for each block of the matrix.

    Args:
        tensors: by plain name.
        config: config.json, asked for the block size only. What is quantized, the tensors say: there are configs with a
            ``quant_algo`` of null and unquantized weights.
        where: the checkpoint, for messages.

    Returns:
        The tensors without scales, and a sentence on what was done; None when nothing was quantized.

    Raises:
        Eagle3RefError: packed weights, an 8-bit weight without a usable scale.
    """
    for name, value in tensors.items():
        kinds = [kind for kind, pattern in _PACKED.items() if pattern.search(name)]
        if value.dtype == torch.uint8 and name.endswith(".weight"):
            kinds.append("weights packed into bytes, such as MXFP4")
        if kinds:
            raise _unreadable(where, f"{name}: {kinds[0]}", "8-bit weights with scales, or unquantized ones")
    eight_bit = sorted(name for name, value in tensors.items() if value.dtype in _EIGHT_BIT)
    if not eight_bit:
        return tensors, None
    kept = {name: value for name, value in tensors.items() if not _ACTIVATION_SCALE.search(name)}
    block = _block_size(config)
    for name in eight_bit:
        kept[name] = _dequantized(name, kept, block, where)
    dtypes = sorted({str(tensors[name].dtype).removeprefix("torch.") for name in eight_bit})
    return kept, (
        f"{len(eight_bit)} of {len(kept)} tensors were {' and '.join(dtypes)} and are scaled back; activations stay "
        "unquantized here, whatever a server does with them"
    )


def _dequantized(name: str, tensors: dict[str, Tensor], block: tuple[int, int], where: str) -> Tensor:
    stem = name.removesuffix(".weight")
    scales = [stem + suffix for suffix in _SCALE_SUFFIXES if stem + suffix in tensors]
    if not name.endswith(".weight") or len(scales) != 1:
        found = f"{name} of dtype {tensors[name].dtype} with {len(scales)} scales"
        raise _unreadable(where, found, "one scale for a quantized weight, called weight_scale or weight_scale_inv")
    weight, scale = tensors[name], tensors.pop(scales[0])
    if scale.dtype not in _SCALE_DTYPES or not bool((torch.isfinite(scale) & (scale > 0)).all()):
        found = f"{scales[0]} of dtype {scale.dtype}, or with values that are no scales"
        raise _unreadable(where, found, "finite scales above 0")
    return weight.to(torch.float32) * _spread(scale.to(torch.float32), weight, block, scales[0], where)


def _spread(scale: Tensor, weight: Tensor, block: tuple[int, int], name: str, where: str) -> Tensor:
    """The scale of every element, in a shape that broadcasts to the weight's."""
    rows, columns = weight.shape if weight.ndim == 2 else (0, 0)
    if scale.numel() == 1:
        return scale.reshape(())
    if tuple(scale.shape) in ((rows,), (rows, 1)):
        return scale.reshape(rows, 1)
    high, wide = (max(1, min(size, limit)) for size, limit in zip(block, (rows, columns), strict=True))
    if tuple(scale.shape) == (math.ceil(rows / high), math.ceil(columns / wide)):
        return scale.repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]
    expected = f"1, {rows} or {rows} x 1 scales, or blocks of {block[0]} x {block[1]}"
    raise _unreadable(
        where, f"{name} of shape {tuple(scale.shape)} for a weight of shape {tuple(weight.shape)}", expected
    )


def _block_size(config: JsonFields) -> tuple[int, int]:
    quantization = config.values.get("quantization_config")
    block: Any = quantization.get("weight_block_size") if isinstance(quantization, dict) else None
    if block is None:
        return _DEFAULT_BLOCK
    if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        raise _unreadable(config.where, f"weight_block_size = {block!r}", "two positive integers")
    return block[0], block[1]


def _unreadable(where: str, found: str, expected: str) -> Eagle3RefError:
    return Eagle3RefError(
        f"reading the quantized weights of {where}",
        found=found,
        expected=expected,
        action="Use the unquantized draft, or export this one with one of these.",
    )
