"""The compiled library itself: torch's rules for operators, how it is built, and what is said where it is not."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from native_parts import built

from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels import get_ops, native, native_file, native_library
from eagle3ref.kernels.native_library import _require_known_instructions as require_known_instructions
from eagle3ref.kernels.native_library import native_ops, why_not
from eagle3ref.tree import DraftTree

ROOT = Path(__file__).parents[1]

CHAIN = DraftTree.from_parents(torch.tensor([[3, 5, 8]] * 2), torch.tensor([[-1, 0, 1]] * 2), torch.tensor([1, 2]))
IDS = CHAIN.tokens
COINS = torch.tensor([0.5, 0.25], dtype=torch.float64)
SAMPLES: dict[str, tuple[object, ...]] = {
    "build_tree": (torch.tensor([[0.9, 0.5, 0.4]] * 2), IDS, CHAIN.parents, IDS[:, 0], IDS[:, 0], 3),
    "verify_greedy": (IDS, CHAIN.parents, IDS.roll(1, 1)),
    "verify_target_only": (
        IDS, CHAIN.parents, torch.full((2, 3, 9), 1 / 9), COINS.new_ones(2, 3), COINS, 1.0, 1.0, False,
    ),
    "visited_positions": (IDS,),
    "tally_settings": (torch.ones(5, 2, 2, dtype=torch.int16), torch.tensor([0, 2, 5]), IDS[0, :1] - 1, IDS[0, :1]),
    "unpack_int4": (torch.ones(2, 4, dtype=torch.int32),),
    "dequantize_int4": (torch.ones(2, 4, dtype=torch.int32), torch.ones(2, 1, dtype=torch.bfloat16)),
}  # fmt: skip


@built
@pytest.mark.slow  # torch.compile is imported for it
@pytest.mark.parametrize("name", SAMPLES)
def test_operators_keep_torchs_rules(name):
    """Bug: a fake of another shape or dtype, a schema that hides a mutation, an operator that cannot be traced."""
    torch.library.opcheck(getattr(native_ops(), name).default, SAMPLES[name])


@built
def test_every_operator_is_sampled():
    """Bug: a new operator that nobody checks."""
    declared = re.findall(r'"(\w+)\(Tensor', (ROOT / "csrc/library.cpp").read_text())
    assert sorted(declared) == sorted(SAMPLES)


@built
def test_operators_check_for_themselves():
    """Bug: a crash of who calls an operator without its Python function."""
    ops = native_ops()
    with pytest.raises(RuntimeError, match="target_tokens"):
        ops.verify_greedy(IDS, IDS, IDS[:, :1])
    with pytest.raises(RuntimeError, match="starts or num_steps"):
        ops.tally_settings(torch.ones(1, 1, 1, dtype=torch.int16), torch.tensor([0, 9]), IDS[0], IDS[0])
    with pytest.raises(RuntimeError, match="num_draft_tokens"):
        ops.build_tree(torch.rand(2, 3), IDS, IDS, IDS[:, 0], IDS[:, 0], 9)
    with pytest.raises(RuntimeError, match="packed"):
        ops.dequantize_int4(torch.zeros(1, 3, dtype=torch.int32), torch.ones(1, 1))


@built
def test_the_backend_has_what_its_module_has():
    """Bug: get_ops that gives another function, or the reference, under the twin's name."""
    ops = get_ops("native")
    for name in ("build_tree", "verify_greedy", "verify_target_only", "walk_positions", "unpack_int4"):
        assert getattr(ops, name) is getattr(native, name)


def test_without_the_library_the_error_says_how_to_build_it(monkeypatch):
    """Bug: a traceback, or the reference in the twin's place, where nothing was compiled."""
    monkeypatch.setattr(native_library, "_STEM", {"cpu": "_absent", "cuda": "_absent"})
    monkeypatch.setattr(native_library, "why_not", why_not.__wrapped__)
    for call in (native.require_built, lambda: native.unpack_int4(torch.ones(1, 4, dtype=torch.int32))):
        with pytest.raises(
            Eagle3RefError, match="built without the native twins for cpu.*EAGLE3REF_EXT=cpu pip install"
        ):
            call()


def test_a_library_that_cannot_be_loaded_says_so(monkeypatch, tmp_path):
    """Bug: a damaged or foreign library that ends in a traceback of the loader, or a message without its reason."""
    (tmp_path / "_native.abi3.so").write_bytes(b"no library of " + native_file.digest(ROOT / "csrc").encode())
    monkeypatch.setattr(native_library, "__file__", str(tmp_path / "native_library.py"))
    reason = why_not.__wrapped__("cpu")
    assert f"_native.abi3.so, which torch {torch.__version__} cannot load" in reason
    assert "invalid ELF header" in reason


@built
@pytest.mark.parametrize("kept", [0, 50, 64, 0.3, 0.9, -1])
def test_a_library_that_was_cut_off_is_not_loaded(monkeypatch, tmp_path, kept):
    """Bug: a copy that a full disk cut off: to load it ends the process with a bus error, past any handler."""
    (whole,) = Path(native_library.__file__).parent.glob("_native.*so")
    content = whole.read_bytes()
    assert native_file.fault(whole) is None
    cut = int(kept * len(content)) if isinstance(kept, float) else kept
    (tmp_path / whole.name).write_bytes(content[:cut])
    monkeypatch.setattr(native_library, "__file__", str(tmp_path / "native_library.py"))
    assert why_not.__wrapped__("cpu") == f"{whole.name}, a file that was cut off"


@pytest.mark.parametrize("change", [None, "edit", "rename", "add", "other"])
def test_a_library_of_other_sources_is_not_loaded(tmp_path, change):
    """Bug: tests and users that get the answers of sources that are no longer there."""
    csrc = tmp_path / "csrc"
    (csrc / "cpu").mkdir(parents=True)
    (csrc / "library.cpp").write_text("first")
    (csrc / "cpu/walk.cpp").write_text("second")
    library = tmp_path / "_native.abi3.so"
    library.write_bytes(b"..." + native_file.digest(csrc).encode() + b"...")
    if change == "edit":
        (csrc / "cpu/walk.cpp").write_text("Second")
    elif change == "rename":
        (csrc / "cpu/walk.cpp").rename(csrc / "walk.cpp")
    elif change == "add":
        (csrc / "new.h").touch()
    elif change == "other":
        (csrc / "cpu/.walk.cpp.swp").write_text("an editor's")
    stale = change in ("edit", "rename", "add")
    assert native_file.fault(library, csrc) == ("built from other sources than csrc/ holds now" if stale else None)
    (csrc / "library.cpp").unlink()
    assert native_file.fault(library, csrc) is None  # an installed package has no sources to be compared with


def test_instructions_that_nobody_knows_are_refused(monkeypatch):
    """Bug: a misspelled EAGLE3REF_SIMD that measures AVX2 twice."""
    monkeypatch.setattr(native_library, "_require_known_instructions", require_known_instructions.__wrapped__)
    monkeypatch.setenv("EAGLE3REF_SIMD", "Plain")
    with pytest.raises(Eagle3RefError, match="found EAGLE3REF_SIMD=Plain; expected plain, or avx2"):
        native_ops()


def asked_of_setuptools(monkeypatch: pytest.MonkeyPatch, **environment: str) -> dict[str, object]:
    """What setup.py would tell setuptools."""
    told: dict[str, object] = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("setuptools.setup", lambda **arguments: told.update(arguments))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    runpy.run_path("setup.py")
    return told


def test_a_plain_build_is_pure_python(monkeypatch):
    """Bug: an install without a compiler or without torch that fails."""
    monkeypatch.delenv("EAGLE3REF_EXT", raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.cpp_extension", None)  # importing it would raise
    assert asked_of_setuptools(monkeypatch) == {}
    assert asked_of_setuptools(monkeypatch, EAGLE3REF_EXT="none") == {}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"EAGLE3REF_EXT": "gpu"}, "EAGLE3REF_EXT=gpu.*none, cpu and cuda"),
        ({"EAGLE3REF_EXT": "cpu", "CXX": "no-such-compiler"}, "no C\\+\\+ compiler"),
        ({"EAGLE3REF_EXT": "cuda"}, "a build without CUDA" if torch.version.cuda is None else None),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_sentence(monkeypatch, environment, message):
    """Bug: a compiler's page of errors, or a build that silently leaves out what was asked for."""
    if message is None:
        environment, message = {**environment, "CXX": "no-such-compiler"}, "no C\\+\\+ compiler"
    with pytest.raises(SystemExit, match=message):
        asked_of_setuptools(monkeypatch, **environment)


def test_an_old_setuptools_is_refused_in_a_sentence(monkeypatch):
    """Bug: --no-build-isolation on the setuptools of a new environment, 65 on Python 3.11: pages about the license."""
    monkeypatch.setattr("setuptools.__version__", "65.5.0")
    monkeypatch.delenv("EAGLE3REF_EXT", raising=False)
    with pytest.raises(SystemExit, match="setuptools 65.5.0, which is too old. Run pip install 'setuptools>=77'"):
        asked_of_setuptools(monkeypatch)


def test_a_build_without_torch_is_refused_in_a_sentence(monkeypatch):
    """Bug: pip's isolated build, which has no torch, ending in an ImportError."""
    monkeypatch.setitem(sys.modules, "torch.utils.cpp_extension", None)
    with pytest.raises(SystemExit, match="no torch in the build's environment.*--no-build-isolation"):
        asked_of_setuptools(monkeypatch, EAGLE3REF_EXT="cpu")


def compiler(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    return found or pytest.skip(f"no compiler here: needs one of {', '.join(names)}")


@pytest.mark.slow
def test_a_team_does_what_one_thread_does(tmp_path):
    """Bug: work of a warp shared out wrongly, or a barrier left out where a lane reads what another wrote."""
    program = tmp_path / "lanes"
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=thread", "-pthread"]
    subprocess.run([compiler("g++"), *flags, str(ROOT / "tests/native_lanes.cpp"), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[:2000]


@pytest.mark.slow
def test_the_cuda_sources_compile(tmp_path):
    """Bug: CUDA code that nobody could build, on a machine without a GPU. What it computes is the lanes' test."""
    compiler("nvcc")
    environment = {**os.environ, "MAKEFLAGS": ""}
    settings = [f"CUDA_OBJECTS={tmp_path}", f"BIN={Path(sys.executable).parent}"]
    subprocess.run([compiler("make"), "--silent", "cuda-compiles", *settings], cwd=ROOT, env=environment, check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernels.o", "ops.o"]


@pytest.mark.slow
@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA, which is what is imitated")
def test_a_wheel_holds_the_library_for_every_python(tmp_path):
    """Bug: a library left out of the wheel, or bound to one version of Python."""
    compiler("g++", "c++")
    source = tmp_path / "source"
    keep = ("src", "csrc", "setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
    source.mkdir()
    for name in keep:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    for stale in source.rglob("*.so"):
        stale.unlink()
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        ".",
    ]
    subprocess.run(command, cwd=source, env={**os.environ, "EAGLE3REF_EXT": "cpu"}, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-cp310-abi3-" in wheel.name
    shutil.unpack_archive(wheel, tmp_path / "installed", format="zip")
    code = "from eagle3ref.kernels.native_library import require_built; require_built()"
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")}, check=True
    )
