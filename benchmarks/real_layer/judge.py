"""Holds rows of a streamed pass against fp64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from real_layer.exact import LayerFormulas

# Where the last expert of a token lies no further above the next one than this, rounding may choose the other.
_CLOSE_CALL = {torch.bfloat16: 3e-3, torch.float16: 1e-3, torch.float32: 1e-5, torch.float64: 0.0}
_ROOM = 2.0  # times the error of plain PyTorch in the same dtype


def check_rows(folder: Path, streams: Path, dtype: torch.dtype, num_layers: int, num_rows: int) -> list[dict[str, Any]]:
    """Layer by layer, so many tokens of the first and the last sequence: each given what truly entered the layer.

    A token with a close call between experts is passed over for the next one, and counted: rounding may send it to
    either of them, and both are right.

    Args:
        folder: of the checkpoint.
        streams: of ``real_layer.stream``.
        dtype: that the pass was computed in.
        num_layers: that it went through.
        num_rows: tokens to check in each.

    Returns:
        One row for each layer: the largest error of a token, as a share of its stream's norm, of the pass and of plain
        PyTorch in the same dtype; the largest ratio of the two errors of a token; whether it is 2 at most.
    """
    found = []
    for layer in range(num_layers):
        exact, eager = (LayerFormulas(folder, layer, each) for each in (torch.float64, dtype))
        errors, passed_over = [], 0
        for before, after, row in _rows(streams, layer):
            if not exact.is_dense and exact.routed(before, row).margin <= _CLOSE_CALL[dtype]:
                passed_over += 1
                continue
            truth = exact.output(before, row)
            both = after, eager.output(before, row)
            errors.append([float((x.double() - truth).norm() / truth.norm()) for x in both])
            if len(errors) == num_rows:
                break
        ours, plain = (max(column) for column in zip(*errors, strict=True))
        ratio = max(one / other for one, other in errors)
        found.append(
            {
                "layer": layer,
                "tokens": len(errors),
                "passed_over": passed_over,
                "error": ours,
                "error_of_plain_pytorch": plain,
                "largest_ratio": ratio,
                "right": len(errors) == num_rows and ratio <= _ROOM,
            }
        )
    return found


def _rows(streams: Path, layer: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Streams [T, C] before a layer, the row [C] behind it, and which one: all over the sequences, in turns."""
    tensors = load_file(streams)
    sequences = sorted({int(name.split(".")[0]) for name in tensors})
    pairs = [(tensors[f"{sequence}.{layer}"], tensors[f"{sequence}.{layer + 1}"]) for sequence in sequences]
    generator = torch.Generator().manual_seed(layer)
    orders = [torch.randperm(len(before), generator=generator).tolist() for before, _ in pairs]
    for turn in zip(*orders, strict=False):
        yield from ((before, after[row], row) for (before, after), row in zip(pairs, turn, strict=True))
