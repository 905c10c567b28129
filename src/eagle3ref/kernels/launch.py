"""What stands before every launch of a Triton kernel: a device it can run on, and the dtypes it can multiply in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3ref.errors import Eagle3RefError

# Triton decides where a kernel runs when it decorates it: this is read at the same moment, by the modules beside it.
INTERPRETED: bool = triton.knobs.runtime.interpret
_INTERPRETED = tl.constexpr(INTERPRETED)

_DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def triton_dtype(dtype: torch.dtype) -> tl.dtype:
    """Of fp32, fp16 and bf16."""
    return _DTYPES[dtype]


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """fp32 x in another float dtype, rounded to nearest even. The interpreter cuts off bits for bf16; not here."""
    if _INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    return x.to(dtype)


def factor_dtype(dtype: torch.dtype) -> tl.dtype:
    """The dtype in which ``tl.dot`` is given its factors: the tensors' own on a device.

    The interpreter multiplies the bit patterns of bf16 as if they were integers, so there they are widened to fp32,
    in which every product of two bf16 or fp16 numbers has its exact value or the same one as on a device.
    """
    return tl.float32 if INTERPRETED else _DTYPES[dtype]


def require_device(doing: str, first: Tensor, *others: Tensor | None) -> None:
    """All tensors on the device of the first, and that one a device on which Triton's kernels run.

    Raises:
        Eagle3RefError: tensors on two devices, or on the CPU without the interpreter.
    """
    devices = {str(tensor.device) for tensor in (first, *others) if tensor is not None}
    if len(devices) > 1:
        raise Eagle3RefError(
            doing,
            found=f"tensors on {' and '.join(sorted(devices))}",
            expected="all of them on one device",
            action="Move them to one.",
        )
    if first.device.type == "cpu" and not INTERPRETED:
        raise Eagle3RefError(
            doing,
            found="tensors on the CPU",
            expected="a CUDA device: Triton's kernels run there",
            action='Use get_ops("torch"), or set TRITON_INTERPRET=1 before the first import to interpret the kernels.',
        )


def require_dtype(doing: str, **tensors: Tensor) -> None:
    """Raises: Eagle3RefError, for a tensor that is not fp32, fp16 or bf16."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise Eagle3RefError(
                doing,
                found=f"{name} in {tensor.dtype}",
                expected=", ".join(map(str, _DTYPES)),
                action='Cast it, or use get_ops("torch"), which takes every dtype.',
            )


def require_no_gradient(doing: str, *tensors: Tensor | None) -> None:
    """Raises: Eagle3RefError, where autograd would record the call, since a kernel would cut its graph."""
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
        raise Eagle3RefError(
            doing,
            found="a tensor that requires a gradient",
            expected="none: Triton's kernels have no backward",
            action='Call it under torch.no_grad(), or train with get_ops("torch").',
        )


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device: inside this context that is the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
