"""The compiled twins of ``csrc/``: found and loaded. What is not there says why."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels.native_fakes import NAMESPACE, register_fakes
from eagle3ref.kernels.native_file import fault

NativeDevice = Literal["cpu", "cuda"]

_STEM: dict[NativeDevice, str] = {"cpu": "_native", "cuda": "_native_cuda"}


def native_ops() -> Any:  # Any: torch's operators are not typed
    """The operators, loaded.

    Raises:
        Eagle3RefError: they were not built, this torch cannot load them, or EAGLE3REF_SIMD asks for what is not there.
    """
    _require_known_instructions()
    reason = why_not("cpu")
    if reason is not None:
        raise Eagle3RefError(
            "loading the native twins",
            found=reason,
            expected="the compiled library of csrc/ beside the package's Python files",
            action=how_to_build("cpu"),
        )
    why_not("cuda")  # loads those too, where they are
    return getattr(torch.ops, NAMESPACE)


def require_built() -> None:
    """``native_ops`` for one who only wants to know; the same error."""
    native_ops()


def how_to_build(device: NativeDevice) -> str:
    """A sentence for messages."""
    needs = "a C++ compiler" if device == "cpu" else "a CUDA build of torch, nvcc and a C++ compiler"
    command = f"EAGLE3REF_EXT={device} pip install --no-build-isolation ."
    return f"Build it from the source folder: {command}, or make native EXT={device} (needs {needs})."


@cache
def why_not(device: NativeDevice) -> str | None:
    """Load the twins for a device. None when they are loaded, else what is there instead, in a few words."""
    found = sorted(Path(__file__).parent.glob(f"{_STEM[device]}.*so"))
    if not found:
        return f"an eagle3ref built without the native twins for {device}"
    if device == "cuda" and why_not("cpu") is not None:
        return "the twins for cuda, but not those for cpu, which declare the operators"
    if (wrong := fault(found[0])) is not None:
        return f"{found[0].name}, {wrong}"
    try:
        torch.ops.load_library(str(found[0]))
    except OSError as error:
        return f"{found[0].name}, which torch {torch.__version__} cannot load ({error.__cause__ or error})"
    if device == "cpu":
        register_fakes()
    return None


@cache
def _require_known_instructions() -> None:
    asked = os.environ.get("EAGLE3REF_SIMD", "avx2")
    if asked not in ("avx2", "plain"):
        raise Eagle3RefError(
            "loading the native twins",
            found=f"EAGLE3REF_SIMD={asked}",
            expected="plain, or avx2 as without it where the processor has that",
            action="Correct it, or unset it.",
        )
