"""Which backend has which operation, and where: ``get_ops`` gathers those of one backend, for one who asks by name.

"torch" is the reference or a plain eager version of it; "triton" and "native" are twins. Nothing here falls back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

import numpy
from packaging.version import Version

from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels import native_library

BACKENDS = ("torch", "triton", "native")

# operation -> backend -> the module that holds it, under its own name
_HOMES: dict[str, dict[str, str]] = {
    "fuse": {"torch": "kernels.eager", "triton": "kernels.fusion"},
    "int4_matmul": {"torch": "kernels.eager", "triton": "kernels.int4"},
    "int4_grouped_matmul": {"torch": "kernels.eager", "triton": "kernels.int4"},
    "unpack_int4": {"torch": "target.int4", "native": "kernels.native"},
    "dequantize_int4": {"torch": "target.int4", "native": "kernels.native"},
    "tree_attention": {"torch": "kernels.eager_attention", "triton": "kernels.tree_attention"},
    "tree_attention_mla": {"torch": "kernels.eager_attention", "triton": "kernels.tree_attention_mla"},
    "topk_probs": {"torch": "kernels.eager_selection", "triton": "kernels.selection"},
    "build_tree": {"torch": "tree", "triton": "kernels.trees", "native": "kernels.native"},
    "verify_greedy": {"torch": "verify", "triton": "kernels.verification", "native": "kernels.native"},
    "verify_target_only": {"torch": "verify", "native": "kernels.native"},
    "walk_positions": {"native": "kernels.native"},  # its reference is positions.walk_positions
}


@dataclass(frozen=True)
class Ops:
    """The operations of one backend. Signatures are those of the "torch" functions; ``docs/kernels.md`` lists them.

    An operation that the backend lacks is there all the same: to call it raises ``Eagle3RefError``, which names the
    backends that have it.
    """

    name: str
    fuse: Callable[..., Any]
    int4_matmul: Callable[..., Any]
    int4_grouped_matmul: Callable[..., Any]
    unpack_int4: Callable[..., Any]
    dequantize_int4: Callable[..., Any]
    tree_attention: Callable[..., Any]
    tree_attention_mla: Callable[..., Any]
    topk_probs: Callable[..., Any]
    build_tree: Callable[..., Any]
    verify_greedy: Callable[..., Any]
    verify_target_only: Callable[..., Any]
    walk_positions: Callable[..., Any]


def get_ops(name: str) -> Ops:
    """The operations of the backend ``name``: "torch", "triton" or "native".

    Triton's kernels run on a CUDA device, or on the CPU where ``TRITON_INTERPRET=1`` was set before they were imported.

    Raises:
        Eagle3RefError: a name that is none of the three, Triton not installed, or a package built without csrc/.
    """
    if name not in BACKENDS:
        raise Eagle3RefError(
            "choosing a backend", found=repr(name), expected=", ".join(BACKENDS), action="Ask for one of these."
        )
    if name == "triton":
        _require_triton()
    if name == "native":
        native_library.require_built()
    return Ops(name, **{operation: _operation(operation, name) for operation in _HOMES})


def backends_with(operation: str) -> tuple[str, ...]:
    """The backends that have an operation, in the order of ``BACKENDS``."""
    return tuple(_HOMES[operation])


def _operation(operation: str, backend: str) -> Callable[..., Any]:
    home = _HOMES[operation].get(backend)
    if home is None:
        return _lacking(operation, backend)
    function: Callable[..., Any] = getattr(import_module(f"eagle3ref.{home}"), operation)
    return function


def _lacking(operation: str, backend: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> NoReturn:
        having = " and ".join(backends_with(operation))
        raise Eagle3RefError(
            f"calling {operation}",
            found=f"the {backend} backend, which has none",
            expected=f"a backend that has it: {having}",
            action=f'Take it from get_ops("{backends_with(operation)[0]}").',
        )

    return refuse


def _require_triton() -> None:
    try:
        triton = import_module("triton")
    except ImportError as error:
        raise Eagle3RefError(
            "choosing the triton backend",
            found=f"no Triton here ({error})",
            expected="Triton 3.6 or newer",
            action='Install it (on Linux it comes with eagle3ref), or ask for get_ops("torch").',
        ) from None
    # Its loops ask NumPy for the scalar of an array of one element, which 2.4 no longer gives.
    old, new = Version(triton.__version__) < Version("3.7"), Version(numpy.__version__) >= Version("2.4")
    if triton.knobs.runtime.interpret and old and new:
        raise Eagle3RefError(
            "choosing the triton backend",
            found=f"the interpreter of Triton {triton.__version__} with NumPy {numpy.__version__}",
            expected="NumPy before 2.4 or Triton 3.7: together they fail; on a GPU they do not",
            action="Install one of these, or unset TRITON_INTERPRET.",
        )
