"""Kimi-K2 checkpoints of any size, written without holding or computing them: one random block, repeated."""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterator
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch

GOLDEN = Path(__file__).parent / "golden" / "kimi_tiny" / "int4"
_BYTES = {"BF16": 2, "F32": 4, "I32": 4}
_PREFIX = "language_model.model."


def write(folder: Path, *, packed_layers: Collection[int] = (), **sizes: Any) -> Path:
    """A folder with config.json, one shard per layer, one for the rest, and the index.

    Args:
        folder: made if need be.
        packed_layers: layers whose routed experts are INT4; in the others they are bf16.
        sizes: keys of ``text_config`` that differ from kimi_tiny's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((GOLDEN / "config.json").read_text())
    text = config["text_config"] = {**config["text_config"], **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    width, weight_map = text["hidden_size"], {}
    vocabulary = ("BF16", (text["vocab_size"], width))
    files = {"rest": {f"{_PREFIX}embed_tokens.weight": vocabulary, "language_model.lm_head.weight": vocabulary}}
    files["rest"][f"{_PREFIX}norm.weight"] = ("BF16", (width,))
    for layer in range(text["num_hidden_layers"]):
        tensors = _layer(text, dense=layer < text["first_k_dense_replace"], packed=layer in packed_layers)
        files[f"layer-{layer}"] = {f"{_PREFIX}layers.{layer}.{name}": tensor for name, tensor in tensors}
    for name, tensors in files.items():
        _write_shard(folder / f"{name}.safetensors", tensors)
        weight_map |= dict.fromkeys(tensors, f"{name}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def _layer(text: dict[str, Any], *, dense: bool, packed: bool) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    width, heads, rank, query_rank = (
        text[key] for key in ("hidden_size", "num_attention_heads", "kv_lora_rank", "q_lora_rank")
    )
    nope, rope, value = (text[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    for norm, size in (("input_layernorm", width), ("post_attention_layernorm", width)):
        yield f"{norm}.weight", ("BF16", (size,))
    attention = {
        "q_a_proj": (query_rank, width),
        "q_a_layernorm": (query_rank,),
        "q_b_proj": (heads * (nope + rope), query_rank),
        "kv_a_proj_with_mqa": (rank + rope, width),
        "kv_a_layernorm": (rank,),
        "kv_b_proj": (heads * (nope + value), rank),
        "o_proj": (width, heads * value),
    }
    for name, shape in attention.items():
        yield f"self_attn.{name}.weight", ("BF16", shape)
    if dense:
        yield from _mlp("mlp.", width, text["intermediate_size"], packed=False)
        return
    yield "mlp.gate.weight", ("BF16", (text["n_routed_experts"], width))
    yield "mlp.gate.e_score_correction_bias", ("F32", (text["n_routed_experts"],))
    yield from _mlp("mlp.shared_experts.", width, text["moe_intermediate_size"], packed=False)
    for expert in range(text["n_routed_experts"]):
        yield from _mlp(f"mlp.experts.{expert}.", width, text["moe_intermediate_size"], packed=packed)


def _mlp(prefix: str, width: int, inner: int, *, packed: bool) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    for name, (rows, columns) in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
        stem = f"{prefix}{name}_proj.weight"
        if packed:
            yield f"{stem}_packed", ("I32", (rows, columns // 8))
            yield f"{stem}_scale", ("BF16", (rows, columns // 32))
            yield f"{stem}_shape", ("I32", (2,))
        else:
            yield stem, ("BF16", (rows, columns))


def _write_shard(path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + prod(shape) * _BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (dtype, shape) in tensors.items():
            if name.endswith("_shape"):
                rows, words = tensors[name.removesuffix("_shape") + "_packed"][1]
                file.write(struct.pack("<2i", rows, 8 * words))
            else:
                _write_noise(
                    file, _TILES["norm" if name.endswith("norm.weight") else dtype], prod(shape) * _BYTES[dtype]
                )


def _write_noise(file: BinaryIO, tile: bytes, num_bytes: int) -> None:
    for start in range(0, num_bytes, len(tile)):
        file.write(tile[: num_bytes - start])


def _tiles() -> dict[str, bytes]:
    """A random MiB of each dtype: norms about 1, scales and weights small enough that streams stay near 1."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2**19, generator=generator)
    return {
        "norm": (1 + 0.1 * noise).bfloat16().view(torch.uint8).numpy().tobytes(),
        "BF16": (0.02 * noise).bfloat16().view(torch.uint8).numpy().tobytes(),
        "F32": noise.view(torch.uint8).numpy().tobytes(),
        "I32": torch.randint(-(2**31), 2**31, (2**18,), generator=generator).int().view(torch.uint8).numpy().tobytes(),
    }


_TILES = _tiles()
