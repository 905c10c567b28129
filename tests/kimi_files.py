"""Every tensor of the published Kimi-K2 checkpoints, written down from their descriptions and not from this library.

Also writes them as files of full size that take no disk: true headers, and sparse bytes behind them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path

from eagle3ref.config import KimiK25Config, MLAConfig, MoEConfig, RopeConfig

Listed = tuple[str, str, tuple[int, ...]]  # name, dtype, shape
Stored = Callable[[str, tuple[int, int]], Iterator[Listed]]  # the tensors that a matrix of that name and shape lies in

NUM_LAYERS, WIDTH, VOCAB, EXPERTS, INNER, DENSE_INNER = 61, 7168, 163840, 384, 2048, 18432
SIZE = {"F8_E4M3": 1, "BF16": 2, "F32": 4, "I32": 4}
ATTENTION = {
    "q_a_proj": (1536, WIDTH),
    "q_b_proj": (12288, 1536),
    "kv_a_proj_with_mqa": (576, WIDTH),
    "kv_b_proj": (16384, 512),
    "o_proj": (WIDTH, 8192),
}
NORMS = {
    "input_layernorm": WIDTH,
    "post_attention_layernorm": WIDTH,
    "self_attn.q_a_layernorm": 1536,
    "self_attn.kv_a_layernorm": 512,
}


def architecture() -> KimiK25Config:
    """Kimi-K2.5's settings."""
    rope = RopeConfig(64, 50000.0, "yarn", 64.0, 4096, mscale_all_dim=1.0)
    attention = MLAConfig(64, 1536, 512, 128, 64, 128, rope)
    moe = MoEConfig(EXPERTS, 8, 1, INNER, 2.827, normalize_weights=True)
    return KimiK25Config(NUM_LAYERS, WIDTH, VOCAB, DENSE_INNER, 1, 1e-5, attention, moe)


def _bf16(name: str, shape: tuple[int, int]) -> Iterator[Listed]:
    yield f"{name}.weight", "BF16", shape


def _int4(name: str, shape: tuple[int, int]) -> Iterator[Listed]:
    yield f"{name}.weight_packed", "I32", (shape[0], shape[1] // 8)
    yield f"{name}.weight_scale", "BF16", (shape[0], shape[1] // 32)
    yield f"{name}.weight_shape", "I32", (2,)


def _fp8(name: str, shape: tuple[int, int]) -> Iterator[Listed]:
    yield f"{name}.weight", "F8_E4M3", shape
    yield f"{name}.weight_scale_inv", "F32", ((shape[0] + 127) // 128, (shape[1] + 127) // 128)


def _mlp(name: str, inner: int) -> dict[str, tuple[int, int]]:
    return {
        f"{name}.gate_proj": (inner, WIDTH),
        f"{name}.up_proj": (inner, WIDTH),
        f"{name}.down_proj": (WIDTH, inner),
    }


def layer(start: str, index: int, routed: Stored = _int4, other: Stored = _bf16) -> list[Listed]:
    """The tensors of one decoder layer."""
    found: list[Listed] = [(f"{start}{name}.weight", "BF16", (size,)) for name, size in NORMS.items()]
    for name, shape in ATTENTION.items():
        found += other(f"{start}self_attn.{name}", shape)
    if index == 0:
        for name, shape in _mlp(f"{start}mlp", DENSE_INNER).items():
            found += other(name, shape)
        return found
    found.append((f"{start}mlp.gate.weight", "BF16", (EXPERTS, WIDTH)))
    found.append((f"{start}mlp.gate.e_score_correction_bias", "F32", (EXPERTS,)))
    for name, shape in _mlp(f"{start}mlp.shared_experts", INNER).items():
        found += other(name, shape)
    for expert in range(EXPERTS):
        for name, shape in _mlp(f"{start}mlp.experts.{expert}", INNER).items():
            found += routed(name, shape)
    return found


def kimi_k25(num_layers: int = NUM_LAYERS) -> list[list[Listed]]:
    """Kimi-K2.5, a list for each of its 64 shards: the layers, what is outside them, projector, vision tower."""
    body = "language_model.model."
    shards = [layer(f"{body}layers.{index}.", index) for index in range(num_layers)]
    shards.append(
        [
            (f"{body}embed_tokens.weight", "BF16", (VOCAB, WIDTH)),
            (f"{body}norm.weight", "BF16", (WIDTH,)),
            ("language_model.lm_head.weight", "BF16", (VOCAB, WIDTH)),
        ]
    )
    shards.append([("mm_projector.pre_norm.weight", "BF16", (1152,))])
    shards.append([("vision_tower.patch_embed.proj.weight", "BF16", (1152, 3, 14, 14))])
    return shards


def kimi_k2_instruct() -> list[Listed]:
    """Kimi-K2-Instruct: FP8 blocks wherever a matrix is multiplied, and a rotary buffer in each layer."""
    found: list[Listed] = []
    for index in range(NUM_LAYERS):
        found += layer(f"model.layers.{index}.", index, _fp8, _fp8)
        found.append((f"model.layers.{index}.self_attn.rotary_emb.inv_freq", "F32", (32,)))
    found.append(("model.embed_tokens.weight", "BF16", (VOCAB, WIDTH)))
    found.append(("model.norm.weight", "BF16", (WIDTH,)))
    found.append(("lm_head.weight", "BF16", (VOCAB, WIDTH)))
    return found


def num_bytes(tensors: Sequence[Listed]) -> int:
    """Bytes of all of them on disk."""
    return sum(SIZE[dtype] * prod(shape) for _, dtype, shape in tensors)


def write_sparse(folder: Path, shards: Sequence[Sequence[Listed]]) -> Path:
    """The shards and their index. The bytes behind the headers are holes: they read as zeros and take no disk."""
    folder.mkdir(parents=True, exist_ok=True)
    file_of: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):06d}.safetensors"
        entries, end = {}, 0
        for name, dtype, shape in tensors:
            start, end = end, end + SIZE[dtype] * prod(shape)
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        text = json.dumps(entries).encode()
        (folder / file).write_bytes(len(text).to_bytes(8, "little") + text)
        os.truncate(folder / file, 8 + len(text) + end)
        file_of |= dict.fromkeys(entries, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": file_of}))
    return folder
