"""Build entry point; the metadata is in pyproject.toml.

``EAGLE3REF_EXT`` says what is built of ``csrc/``: ``none`` (the default: a pure Python package, no compiler needed),
``cpu``, or ``cuda`` (both). What is built uses torch's headers, and pip's isolated build has no torch, so, with torch
and setuptools 77 installed: ``EAGLE3REF_EXT=cpu pip install --no-build-isolation .``
"""

from __future__ import annotations

import os
import runpy
import shutil
from pathlib import Path
from typing import Any

import setuptools

# The oldest torch that the package supports: only what its stable ABI has may be used, and later ones load it too.
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020b000000000000"
# No fast math and no fused multiply-add: the twins give the reference's bits.
CXX_FLAGS = ["-O3", "-g0", "-ffp-contract=off", "-fvisibility=hidden", STABLE_ABI]
NVCC_FLAGS = ["-O3", "--fmad=false", "-Xcompiler=-fvisibility=hidden", STABLE_ABI]


WANTED = os.environ.get("EAGLE3REF_EXT", "none")


def refuse(found: str, action: str) -> None:
    """End the build with one sentence."""
    raise SystemExit(f"building eagle3ref with EAGLE3REF_EXT={WANTED}: found {found}. {action}")


def require_setuptools() -> None:
    """Without build isolation nobody has read what pyproject.toml asks of the build."""
    if int(setuptools.__version__.partition(".")[0]) < 77:
        refuse(f"setuptools {setuptools.__version__}, which is too old", "Run pip install 'setuptools>=77'.")


def require_tools(cuda: bool) -> None:
    """Refuse to build what cannot be built here."""
    try:
        from torch import version
        from torch.utils.cpp_extension import CUDA_HOME
    except ImportError as error:
        refuse(f"no torch in the build's environment ({error})", "Install torch, and give pip --no-build-isolation.")
    if not shutil.which(os.environ.get("CXX", "c++")):
        refuse("no C++ compiler", "Install g++ or clang++, or name one in CXX.")
    if cuda and version.cuda is None:
        refuse(f"torch {version.__version__}, a build without CUDA", "Install a CUDA build of torch, or ask for cpu.")
    if cuda and CUDA_HOME is None:
        refuse("no nvcc", "Install the CUDA toolkit or set CUDA_HOME, or ask for cpu.")


def files(pattern: str) -> list[str]:
    """Of csrc/, at any depth."""
    return sorted(str(path) for path in Path("csrc").rglob(pattern))


def native() -> dict[str, Any]:
    """What ``setup`` is told beyond pyproject.toml."""
    if WANTED not in ("none", "cpu", "cuda"):
        refuse("another value than none, cpu and cuda", "Say one of these.")
    if WANTED == "none":
        return {}
    require_tools(WANTED == "cuda")
    from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

    digest = runpy.run_path("src/eagle3ref/kernels/native_file.py")["digest"](Path("csrc"))
    common = {
        "define_macros": [("EAGLE3REF_SOURCES", digest)],
        # All of them: the digest is of all, and one that changed must not leave a library with the old one.
        "depends": ["setup.py", *files("*.h"), *files("*.cpp"), *files("*.cu")],
        "py_limited_api": True,
    }
    extensions = [
        CppExtension(
            "eagle3ref.kernels._native",
            ["csrc/library.cpp", *files("cpu/*.cpp")],
            extra_compile_args=CXX_FLAGS,
            **common,
        )
    ]
    if WANTED == "cuda":
        extensions.append(
            CUDAExtension(
                "eagle3ref.kernels._native_cuda",
                [*files("cuda/*.cpp"), *files("cuda/*.cu")],
                extra_compile_args={"cxx": [*CXX_FLAGS, "-DUSE_CUDA"], "nvcc": NVCC_FLAGS},
                **common,
            )
        )
    return {
        "ext_modules": extensions,
        "cmdclass": {"build_ext": BuildExtension.with_options(use_ninja=False)},
        # Nothing in the library asks for Python, so one wheel serves all versions.
        "options": {"bdist_wheel": {"py_limited_api": "cp310"}},
    }


require_setuptools()
setuptools.setup(**native())
