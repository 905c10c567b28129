"""How fast this machine reads, dequantizes, multiplies and attends: short samples of the very work that a pass does."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3ref.nn.attend import SCORES_AT_A_TIME, Stretch, attend
from eagle3ref.target.checkpoint import StoredWeight, as_tensor, attention_flops, decode_weight, expert_shapes
from eagle3ref.target.streaming import StreamedTarget

_SECONDS = 0.5  # of each sample, about
_READ_BYTES = 8 * 2**20  # at a time
_COLD_BYTES = 64 * 2**20  # of packed weights, taken in turn: more than caches hold, as in a pass
_MOST_ROWS = 1024  # more make products no faster


@dataclass(frozen=True)
class Speeds:
    """Measured rates, each by a sample of about half a second on a machine that may have other work.

    Args:
        read: bytes per second of the largest shard, past the page cache where the system lets it be dropped.
        dequantize: packed weights per second, from memory to the dtype of the pass; inf where none is packed.
        multiply: FLOPs per second of a product as large as one expert's.
        attend: FLOPs per second of scores, softmax and weighted sums, masked pairs not counted.
    """

    read: float
    dequantize: float
    multiply: float
    attend: float


def measure_speeds(target: StreamedTarget, num_tokens: int, longest: int) -> Speeds:
    """Take the samples.

    Args:
        target: whose files are read, and which says where and in which dtype layers run.
        num_tokens: of a pass; so many rows meet in an expert.
        longest: tokens of the longest sequence.

    Raises:
        OSError: the operating system refuses to read the checkpoint.
    """
    return Speeds(
        read=_read_rate(target),
        dequantize=_dequantize_rate(target),
        multiply=_multiply_rate(target, num_tokens),
        attend=_attend_rate(target, min(longest, _MOST_ROWS)),
    )


def quantized_weights(target: StreamedTarget) -> list[StoredWeight]:
    """Those of all layers that are not stored as they are computed with, routed experts excluded."""
    weights = [weight for layer in target.census.layers for weight in layer.weights.values()]
    return [weight for weight in weights if weight.kind != "plain"]


def quantized_experts(target: StreamedTarget) -> list[StoredWeight]:
    """Those of the routed experts."""
    experts = [expert for layer in target.census.layers for expert in layer.experts]
    return [weight for expert in experts for weight in expert.values() if weight.kind != "plain"]


def _read_rate(target: StreamedTarget) -> float:
    shards: set[Path] = {part.path for weight in target.census.all_weights() for part in weight.parts}
    path = max(shards, key=lambda shard: shard.stat().st_size)
    size, done = path.stat().st_size, 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        buffer = memoryview(bytearray(_READ_BYTES))
        begin = time.perf_counter()
        while done < size and time.perf_counter() - begin < _SECONDS:
            done += os.preadv(descriptor, [buffer], done)
        return done / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)


def _dequantize_rate(target: StreamedTarget) -> float:
    weight = next(iter(quantized_experts(target) or quantized_weights(target)), None)
    if weight is None:
        return math.inf
    copies = max(1, min(8, _COLD_BYTES // weight.num_bytes))
    stored = [
        [
            # The third part of an INT4 weight is its shape. The others hold any bytes but zeros, which take no memory.
            torch.tensor(weight.shape)
            if part.name.endswith("_shape")
            else as_tensor(part, torch.full((part.num_bytes,), 0x3C, dtype=torch.uint8)).to(target.device)
            for part in weight.parts
        ]
        for _ in range(copies)
    ]
    turn = 0

    def decode() -> None:
        nonlocal turn
        turn = (turn + 1) % copies
        decode_weight(weight, stored[turn], dtype=target.dtype, dequantize_int4=target.dequantize_int4)

    return math.prod(weight.shape) * _calls_per_second(decode, target.device)


def _multiply_rate(target: StreamedTarget, num_tokens: int) -> float:
    moe = target.architecture.moe
    num_rows = min(math.ceil(num_tokens * moe.num_experts_per_token / moe.num_experts), _MOST_ROWS)
    shape = expert_shapes(target.architecture)["gate_proj.weight"]
    weight = torch.ones(shape, device=target.device, dtype=target.dtype)
    rows = torch.ones(num_rows, shape[1], device=target.device, dtype=target.dtype)
    calls = _calls_per_second(lambda: torch.nn.functional.linear(rows, weight), target.device)
    return 2 * weight.numel() * num_rows * calls


def _attend_rate(target: StreamedTarget, num_rows: int) -> float:
    """Of as many heads as a pass takes at a time, which are counted as a share of all heads of all layers."""
    attention = target.architecture.attention
    heads = max(1, min(attention.num_heads, SCORES_AT_A_TIME // num_rows**2))
    query, value = (
        torch.ones(1, 1, num_rows, heads, width, device=target.device, dtype=target.dtype)
        for width in (attention.qk_head_dim, attention.v_head_dim)
    )
    seen = Stretch(
        query, value, torch.ones(num_rows, num_rows, dtype=torch.bool, device=target.device).tril()[None, None]
    )
    calls = _calls_per_second(lambda: attend(query, [seen], attention.softmax_scale), target.device)
    share = heads / attention.num_heads / target.architecture.num_layers
    return share * attention_flops(target.architecture, [num_rows]) * calls


def _calls_per_second(call: Callable[[], object], device: torch.device) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    call()  # the first one allocates and compiles
    wait()
    begin, count = time.perf_counter(), 0
    while count < 1 or time.perf_counter() - begin < _SECONDS:
        call()
        wait()
        count += 1
    return count / (time.perf_counter() - begin)
