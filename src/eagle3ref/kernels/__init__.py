"""Kernels, usable alone: ``get_ops("torch" | "triton" | "native")``. Importing this loads neither Triton nor csrc/."""

from __future__ import annotations

from eagle3ref.kernels.eager_attention import pack_mask
from eagle3ref.kernels.ops import BACKENDS, Ops, backends_with, get_ops

__all__ = ["BACKENDS", "Ops", "backends_with", "get_ops", "pack_mask"]
