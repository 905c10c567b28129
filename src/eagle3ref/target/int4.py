"""Moonshot's packed INT4 weights: group 32, symmetric, offset 8, lowest nibble first.

Layout of compressed-tensors' ``pack-quantized``: weight [out, in] is stored as int32 [out, in / 8]; column ``8 j + i``
lies in bits ``4 i .. 4 i + 3`` of word j, as ``q + 8`` with q in -8..7; ``weight = q * scale[row, column // 32]``.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

from eagle3ref.errors import Eagle3RefError

GROUP_SIZE = 32
_OFFSET = 8
_PER_WORD = 8


def unpack_int4(packed: Tensor) -> Tensor:
    """int32 [out, in / 8] -> int8 [out, in], values -8..7. Little-endian bytes hold the columns in order."""
    octets = packed.contiguous().view(torch.uint8)  # [out, in / 2]
    nibbles = torch.stack((octets & 15, octets >> 4), -1).flatten(-2)
    values: Tensor = nibbles.to(torch.int8) - _OFFSET
    return values


def pack_int4(values: Tensor) -> Tensor:
    """int8 [out, in], values -8..7 -> int32 [out, in / 8]."""
    nibbles = (values + _OFFSET).to(torch.uint8).unflatten(-1, (-1, 2))
    octets: Tensor = nibbles[..., 0] | (nibbles[..., 1] << 4)
    return octets.contiguous().view(torch.int32)


def dequantize_int4(packed: Tensor, scale: Tensor, shape: Tensor, name: str) -> Tensor:
    """The weight [out, in] in the scale's dtype (bf16): engines multiply in bf16, so the product is rounded to it.

    Args:
        packed: int32 [out, in / 8].
        scale: [out, in / 32].
        shape: int32 or int64 [2], (out, in).
        name: of the weight, for messages.

    Raises:
        Eagle3RefError: the three do not fit together.
    """
    rows, groups = len(scale), scale.shape[-1]
    expected = ((rows, groups * GROUP_SIZE // _PER_WORD), (rows, groups), [rows, groups * GROUP_SIZE])
    if packed.dtype != torch.int32 or (tuple(packed.shape), tuple(scale.shape), shape.tolist()) != expected:
        raise Eagle3RefError(
            f"unpacking the INT4 weight {name}",
            found=f"{packed.dtype} {tuple(packed.shape)}, scales {tuple(scale.shape)}, weight_shape {shape.tolist()}",
            expected="torch.int32 [out, in / 8], scales [out, in / 32], weight_shape [out, in]",
            action="Only group size 32 in Moonshot's layout is read; check how this checkpoint was quantized.",
        )
    return scale_int4(unpack_int4(packed), scale)


def scale_int4(values: Tensor, scale: Tensor) -> Tensor:
    """int8 [out, in] times scales [out, in / 32], multiplied and rounded in the scale's dtype."""
    groups = rearrange(values.to(scale.dtype), "out (group i) -> out group i", i=GROUP_SIZE)
    return rearrange(groups * scale.unsqueeze(-1), "out group i -> out (group i)")


def quantize_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a weight [out, in] to INT4: int8 values [out, in] in -7..7 and bf16 scales [out, in / 32], absmax / 7.

    The inverse of ``dequantize_int4`` up to rounding; the nano target is made with it.
    """
    groups = rearrange(weight.float(), "out (group i) -> out group i", i=GROUP_SIZE)
    scale = (groups.abs().amax(-1) / 7).clamp_min(1e-8).to(torch.bfloat16)
    values = (groups / scale.float().unsqueeze(-1)).round().clamp(-7, 7)
    return rearrange(values, "out group i -> out (group i)").to(torch.int8), scale
