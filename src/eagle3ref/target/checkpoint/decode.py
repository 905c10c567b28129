"""From the bytes of a checkpoint to the weight that the model computes with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.checkpoint.header import StoredTensor
from eagle3ref.target.checkpoint.layout import FLOAT32_PARAMETERS
from eagle3ref.target.checkpoint.stored_weight import StoredWeight
from eagle3ref.target.fp8 import dequantize_fp8
from eagle3ref.target.int4 import dequantize_int4 as dequantize_int4_in_torch

DequantizeInt4 = Callable[[Tensor, Tensor, Tensor, str], Tensor]

_TORCH_DTYPE = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "I32": torch.int32,
    "I64": torch.int64,
}


def as_tensor(stored: StoredTensor, data: Tensor) -> Tensor:
    """A view of raw bytes as the tensor they are.

    Args:
        stored: one part of a ``StoredWeight``.
        data: uint8 [``stored.num_bytes``] on any device, aligned to the dtype.
    """
    return data.view(_TORCH_DTYPE[stored.dtype]).view(stored.shape)


def read_tensor(stored: StoredTensor) -> Tensor:
    """One tensor in memory of its own; nothing stays mapped.

    Raises:
        Eagle3RefError: the file has become shorter since its header was read, or cannot be read.
    """
    data = torch.empty(stored.num_bytes, dtype=torch.uint8)
    try:
        with stored.path.open("rb", buffering=0) as file:
            file.seek(stored.start)
            view, found = data.numpy().data, 0
            # One call reads at most 2 GiB on Linux, and an embedding is larger.
            while found < stored.num_bytes and (got := file.readinto(view[found:])):
                found += got
    except OSError as error:
        raise _unreadable(stored, str(error)) from error
    if found < stored.num_bytes:
        raise _unreadable(stored, f"{found:,} bytes")
    return as_tensor(stored, data)


def decode_weight(
    weight: StoredWeight,
    parts: Sequence[Tensor],
    *,
    dtype: torch.dtype,
    dequantize_int4: DequantizeInt4 = dequantize_int4_in_torch,
) -> Tensor:
    """The weight in ``dtype``, on the device of its parts.

    INT4 and FP8 weights are rounded to bf16 first, whatever ``dtype`` is: that is the model that the engines run, and
    an fp32 product of value and scale is another one. The router's weight and bias are float32 at least.

    Args:
        weight: what it is.
        parts: its tensors as they are stored, in the order of ``weight.parts``.
        dtype: of the result.
        dequantize_int4: ``target.int4.dequantize_int4``, or a twin of it.

    Raises:
        Eagle3RefError: the values of ``weight_shape`` are not the weight's shape.
    """
    if weight.name.endswith(FLOAT32_PARAMETERS):
        dtype = torch.promote_types(dtype, torch.float32)
    if weight.kind == "plain":
        return parts[0].to(dtype)
    if weight.kind == "fp8_block":
        return dequantize_fp8(parts[0], parts[1]).to(dtype)
    packed, scale, shape = parts
    return dequantize_int4(packed, scale, shape, weight.name).to(dtype)


def _unreadable(stored: StoredTensor, found: str) -> Eagle3RefError:
    return Eagle3RefError(
        f"reading {stored.name} from {stored.path}",
        found=found,
        expected=f"{stored.num_bytes:,} bytes from byte {stored.start:,} on, as when the checkpoint was opened",
        action="The file was changed or the disk fails; restore it and run again.",
    )
