"""One call of one kernel: held against fp64, and timed against eager PyTorch and torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from device.clock import cold_ms
from device.recorder import Case, Recorder
from device.setting import Setting
from eagle3ref.kernels import get_ops

_ALLOWED = 2.0  # error of a kernel over that of eager PyTorch in the same dtype


@dataclass(frozen=True)
class Call:
    """Arguments of an operation of ``kernels.Ops``.

    Args:
        operation: its name.
        arguments: positional ones.
        keywords: the others.
        kept: positions of float arguments that are part of the number format, so the oracle gets them as they are.
        tile: how the Triton kernel is to be cut; its own choice when None.
    """

    operation: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    kept: tuple[int, ...] = ()
    tile: Any = None

    def on(self, backend: str) -> Callable[[], Any]:
        """The call of a backend, ready to be made: to look the operation up is no part of its time."""
        tile = {"config": self.tile} if backend == "triton" and self.tile else {}
        return partial(getattr(get_ops(backend), self.operation), *self.arguments, **self.keywords, **tile)

    def exact(self) -> Tensor:
        """The same in fp64, by eager PyTorch."""
        arguments = [part if i in self.kept else _widened(part) for i, part in enumerate(self.arguments)]
        keywords = {name: _widened(part) for name, part in self.keywords.items()}
        exact: Tensor = getattr(get_ops("torch"), self.operation)(*arguments, **keywords)
        return exact


@dataclass(frozen=True)
class Timed:
    """A call to time, and the least that any implementation of it must do.

    Args:
        name: the same in every run.
        call: makes the arguments; they exist only while they are used.
        num_bytes: each input read once, the output written once.
        flops: multiplications and additions.
        goal: share of the device's rate that is aimed at, if there is a goal.
        compiled: whether torch.compile is timed too. It takes long to compile.
        rivals: other tiles that the kernel might be cut into.
    """

    name: str
    call: Callable[[], Call]
    num_bytes: int
    flops: int
    goal: float | None = None
    compiled: bool = False
    rivals: tuple[Any, ...] = ()


def check_case(name: str, make: Callable[[], Call]) -> Case:
    """A case that holds a call against fp64."""

    return Case(name, lambda recorder: check(name, make(), recorder))


def check(name: str, call: Call, recorder: Recorder) -> None:
    """Hold a call against fp64."""
    exact = call.exact()
    got, plain = (call.on(backend)() for backend in ("triton", "torch"))
    ours, eager = errors(got, exact), errors(plain, exact)
    recorder.check(name, no_worse(ours, eager, plain.dtype), error=ours, eager_error=eager)


def time_case(setting: Setting, timed: Timed) -> Case:
    """A case that times a call, ours and eager."""

    def run(recorder: Recorder) -> None:
        call = timed.call()
        for arm, backend in (("ours", "triton"), ("eager", "torch")):
            milliseconds = cold_ms(setting, call.on(backend))
            recorder.write("time", name=timed.name, arm=arm, ms=milliseconds, **_floors(timed))

    return Case(timed.name, run, is_check=False)


def rival_cases(setting: Setting, timed: Timed) -> list[Case]:
    """A case for each other tile: checked in the first round, timed in the second."""

    def run(tile: Any, recorder: Recorder) -> None:
        call = replace(timed.call(), tile=tile)
        if not setting.timing:
            check(f"{timed.name}, {tile}", call, recorder)
        milliseconds = cold_ms(setting, call.on("triton"))
        recorder.write("tile", name=timed.name, tile=str(tile), ms=milliseconds)

    return [Case(f"{timed.name}, {tile}", partial(run, tile), is_check=False) for tile in timed.rivals]


def compiled_case(setting: Setting, timed: Timed) -> Case:
    """A case that times the eager operation under ``torch.compile``."""

    def run(recorder: Recorder) -> None:
        call = timed.call()
        backend = "eager" if setting.rehearsed else "inductor"
        compiled = torch.compile(getattr(get_ops("torch"), call.operation), dynamic=False, backend=backend)
        milliseconds = cold_ms(setting, lambda: compiled(*call.arguments, **call.keywords))
        recorder.write("time", name=timed.name, arm="compiled", ms=milliseconds, **_floors(timed))

    return Case(f"{timed.name}, compiled", run, is_check=False)


def no_worse(ours: dict[str, float], eager: dict[str, float], dtype: torch.dtype) -> bool:
    """Whether errors are at most twice those of eager PyTorch.

    The largest of few numbers is a matter of luck, so one unit in the last place is never held against a kernel there.
    That one finds what the root mean square would not: a single wrong number among hundreds of thousands.
    """
    largest = max(eager["largest"], torch.finfo(dtype).eps)
    return ours["rms"] <= _ALLOWED * eager["rms"] and ours["largest"] <= _ALLOWED * largest


def errors(got: Tensor, exact: Tensor) -> dict[str, float]:
    """Root mean square and largest error, each over that norm of the exact result. A NaN or infinity is infinite."""
    off = torch.where(got.isfinite(), got.double() - exact, float("inf")).abs()
    rms = off.square().mean().sqrt() / exact.square().mean().sqrt()
    return {"rms": float(rms), "largest": float(off.max() / exact.abs().max())}


def _floors(timed: Timed) -> dict[str, Any]:
    return {"bytes": timed.num_bytes, "flops": timed.flops, "goal": timed.goal}


def _widened(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.double() if part.is_floating_point() else part
    return [_widened(one) for one in part] if isinstance(part, list) else part
