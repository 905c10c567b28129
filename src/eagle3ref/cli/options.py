"""Options that several commands take."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import torch
import typer

from eagle3ref.errors import Eagle3RefError


class DType(str, Enum):
    """Dtypes of weights and activations."""

    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"


Device = Annotated[str, typer.Option(help="Where to run, as torch names it.")]
CapturePoints = Annotated[
    str | None, typer.Option(metavar="2,30,58", help="Residual streams *entering* these layers.", show_default=False)
]


def parse_capture_points(text: str | None) -> tuple[int, ...] | None:
    """``"2,30,58"`` -> (2, 30, 58); None stays None.

    Raises:
        typer.BadParameter: not a list of integers.
    """
    try:
        return None if text is None else tuple(int(point) for point in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"--capture-points {text!r} is no list of layers such as 2,30,58") from error


def torch_dtype(dtype: DType) -> torch.dtype:
    """The dtype of that name."""
    return {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}[dtype.value]


def usable_device(name: str) -> torch.device:
    """The device of that name, after an allocation on it.

    Raises:
        Eagle3RefError: no device of this machine, or one that holds no values.
    """
    try:
        device = torch.device(name)
        torch.ones(1, device=device).tolist()
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises the latter
        raise Eagle3RefError(
            f"looking for the device {name!r}",
            found=str(error).splitlines()[0],
            expected="a device that this torch can use, such as cpu, cuda or cuda:1",
            action="Correct --device.",
        ) from error
    return device
