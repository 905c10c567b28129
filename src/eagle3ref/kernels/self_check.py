"""Which backend can run here, and does it do what the reference does? Every operation once, on a tiny input, now."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels.eager_attention import pack_mask
from eagle3ref.kernels.native_library import NativeDevice, how_to_build, why_not
from eagle3ref.kernels.ops import Ops, backends_with, get_ops
from eagle3ref.tree import Candidates, build_tree

State = Literal["reference", "agrees", "differs", "fails", "missing"]

OPERATIONS = tuple(field.name for field in fields(Ops) if field.name != "name")
_EXACT = ("dequantize_int4",)  # floats, but one multiplication each: the bits are the reference's
_CRASHES = (
    Eagle3RefError, ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip


@dataclass(frozen=True)
class BackendCheck:
    """One backend on one device.

    Args:
        backend: "torch", "triton" or "native".
        device: "cpu" or "cuda".
        missing: why it cannot run here, in a few words; None if it can.
        action: what to do about that, a sentence.
        operations: what was found of each operation that it has; "missing" if the backend cannot run.
        crashes: of operations that raised, what they said.
    """

    backend: str
    device: NativeDevice
    missing: str | None
    action: str | None
    operations: Mapping[str, State]
    crashes: Mapping[str, str]

    @property
    def is_sound(self) -> bool:
        """Whether whatever of it is here may be trusted."""
        return not {"differs", "fails"} & set(self.operations.values())


def check_backends() -> list[BackendCheck]:
    """The backends, each on the devices that it is made for; takes a second, and a few where Triton compiles."""
    triton_device: NativeDevice = "cpu" if _is_interpreted() else "cuda"
    devices: tuple[tuple[str, NativeDevice], ...] = (
        ("torch", "cpu"),
        ("triton", triton_device),
        ("native", "cpu"),
        ("native", "cuda"),
    )
    return [_check(backend, device) for backend, device in devices]


def _check(backend: str, device: NativeDevice) -> BackendCheck:
    missing = _missing(backend, device)
    states: dict[str, State] = {name: "missing" for name in OPERATIONS if backend in backends_with(name)}
    if missing is not None:
        return BackendCheck(backend, device, *missing, states, {})
    ops, crashes, expected = get_ops(backend), dict[str, str](), _expected_crashes(backend)
    for operation in states:
        try:
            states[operation] = "reference" if backend == "torch" else _compared(ops, operation, device)
        except expected as error:
            states[operation] = "fails"
            crashes[operation] = " ".join(f"{type(error).__name__}: {error}".split())
    return BackendCheck(backend, device, None, None, states, crashes)


def _expected_crashes(backend: str) -> tuple[type[Exception], ...]:
    """Triton's own errors, of its compiler and its interpreter, are no errors of any other kind."""
    return (*_CRASHES, import_module("triton.errors").TritonError) if backend == "triton" else _CRASHES


def _missing(backend: str, device: NativeDevice) -> tuple[str, str] | None:
    """Why a backend cannot run on a device, and what to do."""
    if backend == "triton" and find_spec("triton") is None:
        return "Triton is not installed", "Install it: pip install triton (Linux)."
    if backend == "native" and (reason := why_not(device)) is not None:
        return reason, how_to_build(device)
    if device == "cuda" and not torch.cuda.is_available():
        also = " TRITON_INTERPRET=1 runs the kernels on the CPU, slowly." if backend == "triton" else ""
        return "torch sees no CUDA device", f"Run it on a machine with a GPU, with a CUDA build of torch.{also}"
    try:
        get_ops(backend)
    except Eagle3RefError as error:
        return error.found, error.action
    return None


def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1" and not torch.cuda.is_available()


def _compared(ops: Ops, operation: str, device: str) -> State:
    """Integers and bits are equal; other floats are as near to fp64 as the eager ones are, twice as far at most."""
    arguments = _ARGUMENTS[operation]()
    twin = _tensors(getattr(ops, operation)(*_moved(arguments[:-1], device), **_moved(arguments[-1], device)))
    if operation == "walk_positions":
        return "agrees" if twin[0].tolist() == _WALK[1] else "differs"
    reference = getattr(get_ops("torch"), operation)
    eager = _tensors(reference(*arguments[:-1], **arguments[-1]))
    exact = _tensors(reference(*_widened(arguments[:-1]), **_widened(arguments[-1])))
    to_the_bit = operation in _EXACT
    near = all(_near(*parts, to_the_bit=to_the_bit) for parts in zip(twin, eager, exact, strict=True))
    return "agrees" if near else "differs"


def _near(twin: Tensor, eager: Tensor, exact: Tensor, *, to_the_bit: bool) -> bool:
    if to_the_bit or not eager.is_floating_point():
        return torch.equal(twin, eager)
    floor = 4 * torch.finfo(eager.dtype).eps * float(exact.abs().max())  # of a tiny input, eager may be all right
    far, allowed = (float((found.double() - exact).abs().max()) for found in (twin, eager))
    return far <= max(2 * allowed, floor)


def _tensors(result: Any) -> list[Tensor]:
    """What an operation returned, a tensor, a tuple or a dataclass of them, on the CPU."""
    if is_dataclass(result):
        return [getattr(result, field.name).cpu() for field in fields(result)]
    return [part.cpu() for part in (result if isinstance(result, tuple) else (result,))]


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _mapped(part, change) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(part, change) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{field.name: _mapped(getattr(value, field.name), change) for field in fields(value)})
    return value


def _moved(value: Any, device: str) -> Any:
    return _mapped(value, lambda tensor: tensor.to(device))


def _widened(value: Any) -> Any:
    # Scales in half precision stay: that a weight is rounded to it is part of what the operations mean.
    return _mapped(value, lambda tensor: tensor.double() if tensor.dtype == torch.float32 else tensor)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _words(*shape: int) -> Tensor:
    return (_random(*shape) * 2**28).to(torch.int32)


# Two sequences, two steps of two: the best two of a level, and their children. Equal scores are among them.
_CANDIDATES = Candidates(
    torch.tensor([[0.5, 0.25, 0.5, 0.125, 0.25, 0.0], [1.0, 1.0, 1.0, 0.5, 1.0, 0.5]]),
    torch.tensor([[3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3]]),
    torch.tensor([[-1, -1, 0, 0, 1, 1]] * 2),
)
_WALK = (torch.tensor([2, 0, 0, 1, 0, 4]), [0, 3, 5])


def _tree_arguments() -> dict[str, Any]:
    return {"root_tokens": torch.tensor([1, 2]), "prefix_lengths": torch.tensor([9, 4]), "num_draft_tokens": 5}


def _verification(*others: Tensor) -> list[Any]:
    return [build_tree(_CANDIDATES, **_tree_arguments()), *others, {}]


def _attention(*sizes: int) -> list[Any]:
    """Two groups of three queries of four heads over prefixes of up to twenty rows, and three rows of their own."""
    lengths, sees = torch.tensor([20, 7]), pack_mask(torch.ones(2, 3, 3, dtype=torch.bool).tril())
    if len(sizes) == 1:  # keys and values of two heads
        keys, own = (_random(2, rows, 2, *sizes) for rows in (20, 3))
        return [_random(2, 3, 4, *sizes), keys, keys.flip(0), lengths, own, own.flip(0), sees, 0.2, {}]
    query, prefix, latest = ([_random(2, *lead, size) for size in sizes] for lead in ((3, 4), (20,), (3,)))
    return [*query, *prefix, lengths, *latest, sees, 0.2, {}]


# operation -> its arguments, the keyword ones last
_ARGUMENTS: dict[str, Callable[[], list[Any]]] = {
    "fuse": lambda: [[_random(3, 64) for _ in range(3)], _random(32, 192), {}],
    "int4_matmul": lambda: [_random(3, 64), _words(48, 8), _random(48, 2).half(), {}],
    "int4_grouped_matmul": lambda: [
        _random(5, 64),
        torch.tensor([0, 2, 5]),
        _words(2, 48, 8),
        _random(2, 48, 2).half(),
        {},
    ],  # fmt: skip
    "unpack_int4": lambda: [_words(3, 8), {}],
    "dequantize_int4": lambda: [_words(3, 8), _random(3, 2).bfloat16(), torch.tensor([3, 64]), "of the check", {}],
    "tree_attention": lambda: _attention(32),
    "tree_attention_mla": lambda: _attention(32, 16),
    "topk_probs": lambda: [_random(3, 50), 4, {}],
    "build_tree": lambda: [_CANDIDATES, _tree_arguments()],
    "verify_greedy": lambda: _verification(torch.tensor([[3, 5, 9, 9, 9], [8, 6, 5, 9, 9]])),
    "verify_target_only": lambda: _verification(
        _random(2, 5, 9).softmax(-1), _random(2, 5).sigmoid(), torch.tensor([0.25, 0.75])
    ),
    "walk_positions": lambda: [_WALK[0], {}],
}
