"""``get_ops``, and what the Triton kernels share: rounding, and the cut of a product into tiles and splits."""

from __future__ import annotations

import ast
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from eagle3ref import kernels, tree, verify
from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels import BACKENDS, Ops, backends_with, eager, get_ops
from eagle3ref.kernels import ops as ops_module
from eagle3ref.kernels.launch import on_device, rounded
from eagle3ref.kernels.split_k import add_splits, affordable_splits, best_num_splits
from eagle3ref.target import int4

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPERATIONS = [field.name for field in fields(Ops) if field.name != "name"]


def built_backends() -> list[str]:
    """The native twins are there only where they were compiled."""
    try:
        get_ops("native")
    except Eagle3RefError:
        return ["torch", "triton"]
    return list(BACKENDS)


@pytest.mark.parametrize("backend", built_backends())
def test_every_operation_is_there_or_says_where(backend):
    """Bug: a field that nobody fills, a backend that answers with another's function, a message that names the wrong
    backends."""
    ops = get_ops(backend)
    assert ops.name == backend
    for operation in OPERATIONS:
        function = getattr(ops, operation)
        if backend in backends_with(operation):
            assert function.__name__ == operation
            assert function.__module__.startswith("eagle3ref.")
        else:
            with pytest.raises(Eagle3RefError, match=f"{operation}: found the {backend} backend") as error:
                function(1, two=2)
            assert all(having in error.value.expected for having in backends_with(operation))


def test_torch_is_the_reference():
    """Bug: a "torch" backend that is a copy of the reference, or a twin of it."""
    ops = get_ops("torch")
    assert ops.build_tree is tree.build_tree
    assert ops.verify_greedy is verify.verify_greedy
    assert ops.verify_target_only is verify.verify_target_only
    assert ops.unpack_int4 is int4.unpack_int4
    assert ops.fuse is eager.fuse


def test_backends_differ():
    """Bug: one that falls back to another in silence."""
    ops = {backend: get_ops(backend) for backend in built_backends()}
    for operation in OPERATIONS:
        functions = [getattr(each, operation) for each in ops.values()]
        assert len(set(functions)) == len(functions)


def test_an_unknown_backend_is_refused():
    """Bug: a KeyError, or a default that the caller did not ask for."""
    with pytest.raises(Eagle3RefError, match="found 'cuda'; expected torch, triton, native"):
        get_ops("cuda")


def test_without_triton_the_message_says_so(monkeypatch):
    """Bug: an ImportError's traceback where Triton has no build, as on macOS."""
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(Eagle3RefError, match='choosing the triton backend: .*get_ops\\("torch"\\)'):
        get_ops("triton")
    assert get_ops("torch").name == "torch"


@pytest.mark.parametrize(
    ("triton_version", "numpy_version", "interpreted", "refused"),
    [("3.6.0", "2.4.0", True, True), ("3.6.0", "2.3.5", True, False), ("3.7.0", "2.4.0", True, False),
     ("3.6.0", "2.4.0", False, False)],
)  # fmt: skip
def test_an_interpreter_that_its_numpy_breaks_is_refused(
    monkeypatch, triton_version, numpy_version, interpreted, refused
):
    """Bug: "only 0-dimensional arrays can be converted to Python scalars" out of a kernel that is right."""
    monkeypatch.setattr("triton.__version__", triton_version)
    monkeypatch.setattr("numpy.__version__", numpy_version)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", interpreted)
    if refused:
        with pytest.raises(Eagle3RefError, match="Triton 3.6.0 with NumPy 2.4.0; expected NumPy before 2.4 or Triton"):
            get_ops("triton")
    else:
        assert get_ops("triton").name == "triton"


def test_without_the_library_the_message_says_how_to_build_it(monkeypatch):
    """Bug: an operator that is looked up only when it is called, deep in a loop."""

    def missing() -> None:
        raise Eagle3RefError("loading", found="none", expected="one", action="Build it.")

    monkeypatch.setattr(ops_module.native_library, "require_built", missing)
    with pytest.raises(Eagle3RefError, match="Build it"):
        get_ops("native")


def test_import_does_not_bring_triton():
    """Bug: seconds of import, or a missing package, for one who only wants the plain versions."""
    folder = Path(kernels.__file__).parent
    waiting, seen = {"__init__", "eager", "native"}, set()
    while waiting:
        seen.add(name := waiting.pop())
        for node in ast.parse((folder / f"{name}.py").read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            source = [node.module] if isinstance(node, ast.ImportFrom) else names
            assert not [each for each in source if each.split(".")[0] == "triton"], name
            inside = {
                each.removeprefix("eagle3ref.kernels.") for each in source if each.startswith("eagle3ref.kernels.")
            }
            inside |= set(names) if source == ["eagle3ref.kernels"] else set()
            waiting |= inside - seen
    assert {"ops", "eager_attention", "native_library"} <= seen


@triton.jit
def _round_kernel(x, out, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(out + at, rounded(tl.load(x + at), out.dtype.element_ty))


TIES_AND_ENDS = (0x0, 0x3F808000, 0x3F818000, 0x3F80FFFF, 0x3F817FFF, 0x7F7F0000, 0x3F801000, 0x3F803000, 0x33000001)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rounding_is_to_nearest_even(dtype):
    """Bug: bits cut off, which is what the interpreter does for bf16 when it is left alone; ties always upwards."""
    bits = torch.randint(0, 0x7F7F0000, (1024,), generator=torch.Generator().manual_seed(0))
    bits[: len(TIES_AND_ENDS)] = torch.tensor(TIES_AND_ENDS)
    range_of = torch.finfo(dtype)
    x = bits.to(torch.int32).view(torch.float32).clamp(range_of.smallest_normal, range_of.max)
    x = torch.stack([x, -x]).flatten().to(DEVICE)
    out = torch.empty(2048, dtype=dtype, device=DEVICE)
    with on_device(out):
        _round_kernel[(1,)](x, out, 2048)
    assert torch.equal(out, x.to(dtype))


@pytest.mark.parametrize("num_splits", [2, 5])
def test_splits_are_added_in_their_order(num_splits):
    """Bug: partial sums added in another order, which changes bits from run to run; the bias added once a split."""
    partials, bias = torch.randn(num_splits, 7, 90).to(DEVICE), torch.randn(90).to(DEVICE)
    partials[0, 0] = 2.0**24
    expected = torch.zeros(7, 90, device=DEVICE)
    for split in partials:
        expected = expected + split
    out = torch.empty(7, 90, device=DEVICE)
    add_splits(partials, None, out)
    assert torch.equal(out, expected)
    add_splits(partials, bias, out)
    assert torch.equal(out, expected + bias)
    add_splits(partials, bias, half := torch.empty(7, 90, dtype=torch.bfloat16, device=DEVICE))
    assert torch.equal(half, (expected + bias).bfloat16())


@given(st.integers(1, 5000), st.integers(1, 700), st.integers(0, 40), st.integers(1, 4))
def test_a_split_is_as_good_as_any_that_is_affordable(num_tiles, num_blocks, max_splits, resident):
    """Bug: a split that waits for one straggler round, or one that costs more partial sums than it was allowed."""

    def rounds(splits: int) -> int:
        """Blocks of K that the machine works through, one after the other."""
        return -(-num_tiles * splits // (132 * resident)) * -(-num_blocks // splits)

    def idle_share(splits: int) -> float:
        return 1 - num_tiles * num_blocks / (132 * resident * rounds(splits))

    splits = best_num_splits(num_tiles, num_blocks, max_splits, resident)
    assert 1 <= splits <= max(1, max_splits, 132 // num_tiles)
    assert splits == 1 or num_blocks // splits >= 4
    others = [other for other in range(1, min(16, max_splits) + 1) if other == 1 or num_blocks // other >= 4]
    assert idle_share(splits) <= min(map(idle_share, others), default=1) + 0.05 + 1e-9


def test_partial_sums_cost_an_eighth_at_most():
    """Bug: split sums in fp32 that move as many bytes as the weight they hurry."""
    for num_rows in (1, 16, 64, 500):
        splits = affordable_splits(num_rows, 21504, 2)
        assert splits * num_rows * 2 * 4 <= 21504 * 2 / 8
        assert (splits + 1) * num_rows * 2 * 4 > 21504 * 2 / 8
