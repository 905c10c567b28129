"""One pass over the made-up checkpoint, in a process of its own whose peak memory is the kernel's to say.

    python -m real_layer.stream CHECKPOINT RESULT.json < SETTINGS.json

Beside the result lies ``RESULT.safetensors``: of the first and the last sequence, the stream that enters each layer.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3ref.target.base import LayerMajorTarget
from eagle3ref.target.streaming import StreamedTarget
from real_layer.rates import dequantizers, drop_cache, share_in_memory
from real_layer.sampler import Sampler

_LONGEST = 500  # tokens of a sequence


class Setting(NamedTuple):
    """One pass.

    Args:
        num_tokens: in sequences of 500, and what is left over.
        dtype: name of the dtype that is computed in.
        device: where.
        memory: the bound in bytes; None for none.
        dequantizer: one of ``rates.dequantizers``.
        threads: of PyTorch.
        cold: whether the page cache is dropped first.
    """

    num_tokens: int
    dtype: str
    device: str
    memory: int | None
    dequantizer: str
    threads: int
    cold: bool = True


def main() -> None:
    folder, path = Path(sys.argv[1]), Path(sys.argv[2])
    result, streams = run(folder, Setting(**json.load(sys.stdin)))
    save_file(streams, path.with_suffix(".safetensors"))
    path.write_text(json.dumps(result), encoding="utf-8")


def run(folder: Path, setting: Setting) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Times, bytes and shares by step, the peak of memory; and streams, by ``<sequence>.<layer that they enter>``."""
    torch.set_num_threads(setting.threads)
    target = StreamedTarget.from_folder(
        folder,
        device=setting.device,
        dtype=getattr(torch, setting.dtype),
        memory=setting.memory,
        dequantize_int4=dequantizers(setting.device)[setting.dequantizer],
    )
    before = peak_memory()
    if setting.cold:
        drop_cache(folder)
    result: dict[str, Any] = {"share_in_memory_before": share_in_memory(folder), "peak_bytes_before": before}
    sequences = made_up_tokens(setting.num_tokens, target.config.vocab_size)
    streams = target.embed(sequences)
    kept = _kept(streams, 0)
    steps: list[dict[str, Any]] = []
    with contextlib.closing(target.stream_layers(streams)) as layers:
        while True:
            begun, read = time.perf_counter(), target.bytes_read
            with Sampler() as sampler:
                layer = next(layers, None)
            if layer is None:
                break
            seconds, num_bytes = time.perf_counter() - begun, target.bytes_read - read
            steps.append({"layer": layer - 1, "seconds": seconds, "bytes": num_bytes, "shares": sampler.shares()})
            kept |= _kept(streams, layer)
    begun = time.perf_counter()
    final = target.finish(streams)
    streams.clear()
    target.score(torch.cat(final), torch.cat(sequences))
    result |= {"steps": steps, "score_seconds": time.perf_counter() - begun, "peak_bytes": peak_memory()}
    if setting.device.startswith("cuda"):
        result["peak_device_bytes"] = torch.cuda.max_memory_allocated(setting.device)
    return result, kept


def kept_streams(target: LayerMajorTarget, num_tokens: int) -> dict[str, Tensor]:
    """The same streams of the same tokens, of any target."""
    streams = target.embed(made_up_tokens(num_tokens, target.config.vocab_size))
    kept = _kept(streams, 0)
    for layer in target.stream_layers(streams):
        kept |= _kept(streams, layer)
    return kept


def made_up_tokens(count: int, vocab_size: int) -> list[Tensor]:
    """Random ids, the same every time."""
    tokens = torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(count))
    return list(tokens.split(_LONGEST))


def peak_memory() -> int:
    """Bytes of memory that this process has had at most, the kernel's ``VmHWM``: everything, mapped files too."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def _kept(streams: list[Tensor], layer: int) -> dict[str, Tensor]:
    return {f"{index}.{layer}": streams[index].cpu().clone() for index in {0, len(streams) - 1}}


if __name__ == "__main__":
    main()
