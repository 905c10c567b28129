"""What ``eagle3ref doctor`` found, as a JSON document."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from eagle3ref.kernels.self_check import BackendCheck
from eagle3ref.version import __version__

_LIBRARIES = ("torch", "triton", "transformers", "safetensors", "einops", "numpy", "typer", "rich", "httpx")


def doctor_document(checks: Sequence[BackendCheck]) -> dict[str, Any]:
    """Versions, devices, compilers and backends of this installation. ``sound``: no twin differs or fails."""
    return {
        "versions": {
            "eagle3ref": __version__,
            "python": platform.python_version(),
            **{library: _version(library) for library in _LIBRARIES},
        },
        "cpu": {
            "capability": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "cuda": {
            "torch_built_for": torch.version.cuda,
            "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
        "compilers": {"c++": shutil.which(os.environ.get("CXX", "c++")), "nvcc": shutil.which("nvcc")},
        "backends": [
            {
                "backend": check.backend,
                "device": check.device,
                "missing": check.missing,
                "action": check.action,
                "operations": dict(check.operations),
                "crashes": dict(check.crashes),
            }
            for check in checks
        ],
        "sound": all(check.is_sound for check in checks),
    }


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
