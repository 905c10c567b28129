"""What a pass takes of the memory, counted before it starts."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Literal

import torch

from eagle3ref.config import KimiK25Config
from eagle3ref.nn import BLOCK_ROWS
from eagle3ref.nn.attend import SCORES_AT_A_TIME
from eagle3ref.nn.norm import at_least_float32
from eagle3ref.target.checkpoint import Census, StoredWeight
from eagle3ref.target.kimi_head import HEAD_ROWS
from eagle3ref.target.kimi_walk import Work
from eagle3ref.target.streaming.schedule import weights_of

Phase = Literal["attention", "dense", "experts"]  # what a layer does one after the other
SLACK = 96 * 2**20  # freed memory that allocators keep while a pass runs, and scratch of the matrix libraries
KEPT = 64 * 2**20  # what libraries keep from the first pass on: compiled products, threads' own heaps
_ONEDNN_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
_DECODING = 8  # bytes per weight of a matrix while it is unpacked and scaled in plain PyTorch


def release_freed_memory() -> None:
    """Give what was freed back to the operating system, where the C library can (glibc).

    Its heap keeps the gaps that activations of ever other sizes leave, and from layer to layer they add up: a pass
    counted at 760 MiB grew to 820. Called between the phases of a layer it is 1 % of the pass.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def resident_bytes() -> int:
    """What the process has in memory now, after freed memory went back to the operating system."""
    release_freed_memory()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bound_onednn_caches() -> None:
    """Keep 32 compiled products instead of 1024.

    oneDNN compiles a bf16 product for every number of rows that it meets, half a MiB each, and experts meet them all:
    0.6 GB on top of any count. It looks at these variables before its first product; one that the user set stays.
    """
    for variable in _ONEDNN_CACHES:
        os.environ.setdefault(variable, "32")


def weights_bytes(census: Census, dtype: torch.dtype) -> dict[Phase, int]:
    """The most that decoded weights take in each phase: half a layer, in the MLP with one routed expert."""
    found: dict[Phase, int] = {}
    for layer in census.layers:
        attention = _decoded(weights_of(layer, "attention").values(), dtype)
        found["attention"] = max(found.get("attention", 0), attention)
        mlp: Phase = "experts" if layer.experts else "dense"
        expert = _decoded(layer.experts[0].values(), dtype) if layer.experts else 0
        found[mlp] = max(found.get(mlp, 0), _decoded(weights_of(layer, "mlp").values(), dtype) + expert)
    return found


def head_bytes(architecture: KimiK25Config, dtype: torch.dtype) -> int:
    """A piece of the head, and the logits that it gives for a block of rows."""
    rows, wide = min(HEAD_ROWS, architecture.vocab_size), at_least_float32(dtype).itemsize
    return rows * (2 * architecture.hidden_size * dtype.itemsize + BLOCK_ROWS * (dtype.itemsize + 2 * wide))


def _decoded(weights: Iterable[StoredWeight], dtype: torch.dtype) -> int:
    listed = list(weights)
    decoded = sum(prod(weight.shape) * dtype.itemsize for weight in listed)
    return decoded + max((_DECODING * prod(weight.shape) for weight in listed if weight.kind != "plain"), default=0)


def stream_bytes(architecture: KimiK25Config, dtype: torch.dtype, tokens: int) -> int:
    """The residual streams of so many tokens."""
    return tokens * architecture.hidden_size * dtype.itemsize


def activation_bytes(architecture: KimiK25Config, dtype: torch.dtype, work: Work) -> dict[Phase, int]:
    """The most that a walk holds in each phase besides weights and the streams themselves."""
    attention = architecture.attention
    narrow, wide = dtype.itemsize, at_least_float32(dtype).itemsize
    latent = attention.kv_lora_rank + attention.qk_rope_head_dim
    cached = (architecture.num_layers * work.cached + work.tokens) * latent * narrow
    return {
        "attention": cached + _attention(architecture, narrow, wide, work),
        "dense": cached + _dense(architecture, narrow, wide, work),
        "experts": cached + _experts(architecture, narrow, wide, work),
    }


def _attention(architecture: KimiK25Config, narrow: int, wide: int, work: Work) -> int:
    attention, width = architecture.attention, architecture.hidden_size
    heads, head = attention.num_heads, attention.qk_head_dim
    latent = attention.kv_lora_rank + attention.qk_rope_head_dim
    rows = max(work.expanded, work.block)
    # Of every row: the normed stream and the output, each once more while its blocks are joined; kv_b_proj's output,
    # the keys it is cut into (also in fp32), and the values once more for the product with them.
    expanded = heads * (attention.qk_nope_head_dim + attention.v_head_dim) + heads * head + heads * attention.v_head_dim
    per_row = 4 * width * narrow + 3 * latent * wide
    per_key = expanded * narrow + heads * head * (wide if wide > narrow else 0)
    # Of a block: queries on their way through projection, rope and fp32, then the heads' outputs.
    query_width, output_width = (latent, latent) if work.latent else (head, attention.v_head_dim)
    query = heads * (query_width * (3 * narrow + 2 * wide) + 3 * output_width * wide)
    query += 3 * (attention.q_lora_rank or 0) * wide
    scores = min(SCORES_AT_A_TIME, heads * work.block * max(work.expanded, work.latent))
    scores = max(scores, heads * max(work.expanded, work.latent))  # one query row is the least
    return (
        rows * per_row
        + work.expanded * per_key
        + work.latent * latent * (2 * narrow + wide)
        + work.block * (query + 3 * width * wide)
        + scores * (4 * wide + narrow)
    )


def _dense(architecture: KimiK25Config, narrow: int, wide: int, work: Work) -> int:
    # Of every row: the output, once more while its blocks are joined. Of a block: the norm, the three matrices.
    block = min(work.tokens, BLOCK_ROWS)
    return work.tokens * 2 * architecture.hidden_size * narrow + block * (
        3 * architecture.hidden_size * wide + 4 * architecture.intermediate_size * narrow
    )


def _experts(architecture: KimiK25Config, narrow: int, wide: int, work: Work) -> int:
    width, moe = architecture.hidden_size, architecture.moe
    inner = moe.intermediate_size * max(1, moe.num_shared_experts)
    # Of every row: normed, routed sum in fp32, its rounded copy; its routes, which are sorted by expert.
    per_row = width * (2 * narrow + wide) + 64 * moe.num_experts_per_token
    # Of a block: gathered rows, what the three matrices make of them, the weighed output; the router's scores.
    per_block_row = width * (3 * narrow + 2 * wide) + 4 * inner * narrow + 4 * moe.num_experts * wide
    return work.tokens * per_row + min(work.tokens, BLOCK_ROWS) * per_block_row
