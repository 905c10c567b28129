"""Writes a made-up checkpoint of Kimi-K2.5's real widths: the dense layer and one with experts, in Moonshot's layout.

The numbers are random, of the size that keeps activations near one. Experts are stretches of one long quantized matrix
that start at different places, so that 9.8 GB of them, no two alike, are written as fast as the disk takes them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import torch
from torch import Tensor

from eagle3ref.config import KimiK25Config
from eagle3ref.target.checkpoint import expert_shapes, layer_shapes
from eagle3ref.target.int4 import GROUP_SIZE, pack_int4, quantize_int4

ORDERS = ("library", "numbered")
TEXT_CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 2,  # of 61: the dense one, and one of the sixty with experts
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "type": "yarn",
        "factor": 64.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 8192,  # of 163,840: embedding and head are not what is measured
}
_PREFIX = "language_model."
_BITS = {"BF16": torch.int16, "F32": torch.int32, "I32": torch.int32}
_RANK = {"F32": 0, "I32": 1, "BF16": 2}  # of the library's order
_STEP = 1031  # groups between the starts of two matrices


class Planned(NamedTuple):
    """A tensor that will stand in a file; ``make`` gives its numbers, in ``dtype``, when its turn comes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], Tensor]

    @property
    def num_bytes(self) -> int:
        """On disk."""
        return torch.Size(self.shape).numel() * _BITS[self.dtype].itemsize


def write(folder: Path, *, order: str = "library", seed: int = 0, hollow: bool = False, **changes: Any) -> Path:
    """Write config.json, a shard for each layer and one for the rest, and their index.

    Args:
        folder: made if need be.
        order: of the tensors in a shard. ``library``: by dtype, then by name, as the safetensors library saves them, so
            that an expert's scales lie far from its words and expert 10 follows expert 1. ``numbered``: expert by
            expert, each in one place.
        seed: of the numbers.
        hollow: without the numbers: files of the full size that take no room on the disk.
        changes: to ``TEXT_CONFIG``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(**changes), indent=1), encoding="utf-8")
    shards = plan(KimiK25Config.from_folder(folder), seed)
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):06d}.safetensors"
        save(folder / file, in_order(tensors, order), hollow=hollow)
        weight_map |= {tensor.name: file for tensor in tensors}
    index = {"metadata": {"total_size": sum(t.num_bytes for shard in shards for t in shard)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def config_json(**changes: Any) -> dict[str, Any]:
    """K2.5's, with some keys of its text model changed."""
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": {**TEXT_CONFIG, **changes},
    }


class Numbers:
    """Where the random numbers come from: normal ones, and one long matrix of them that has been rounded to INT4.

    A tensor's numbers depend on its name, and not on when its turn comes: files of another order hold the same model.
    """

    def __init__(self, seed: int, num_groups: int) -> None:
        self._seed, self._num_groups = seed, num_groups

    def normal(self, name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> Tensor:
        """fp32, those of this name."""
        generator = torch.Generator().manual_seed(self._seed + crc32(name.encode()))
        return torch.randn(shape, generator=generator).mul_(std).add_(mean)

    def int4(self, number: int, num_groups: int) -> tuple[Tensor, Tensor]:
        """The matrix of this number, for weights of standard deviation one: int32, four for each group, and scales."""
        words, scales = self._long_matrix
        start = number * _STEP % (len(scales) - num_groups)
        return words[start : start + num_groups], scales[start : start + num_groups]

    @cached_property
    def _long_matrix(self) -> tuple[Tensor, Tensor]:
        values, scales = quantize_int4(self.normal("experts", (1, self._num_groups * GROUP_SIZE), 1.0))
        return pack_int4(values).view(-1, GROUP_SIZE // 8), scales.flatten()


def plan(architecture: KimiK25Config, seed: int) -> list[list[Planned]]:
    """The tensors of every layer, and of embedding, norm and head, in the order of the model."""
    largest = architecture.hidden_size * architecture.moe.intermediate_size // GROUP_SIZE
    numbers = Numbers(seed, 4 * largest)
    layers = [list(_layer(architecture, index, numbers)) for index in range(architecture.num_layers)]
    width, table = architecture.hidden_size, (architecture.vocab_size, architecture.hidden_size)
    rest = [
        _plain(f"{_PREFIX}model.embed_tokens.weight", table, numbers, std=1.0),
        _plain(f"{_PREFIX}model.norm.weight", (width,), numbers),
        _plain(f"{_PREFIX}lm_head.weight", table, numbers),
    ]
    return [*layers, rest]


def _layer(architecture: KimiK25Config, index: int, numbers: Numbers) -> Iterator[Planned]:
    start = f"{_PREFIX}model.layers.{index}."
    for name, shape in layer_shapes(architecture, index).items():
        yield _plain(start + name, shape, numbers)
    matrix = count(3 * index * architecture.moe.num_experts)
    for expert in range(architecture.moe.num_experts if index >= architecture.num_dense_layers else 0):
        for name, (rows, columns) in expert_shapes(architecture).items():
            yield from _int4(f"{start}mlp.experts.{expert}.{name}", rows, columns, numbers, next(matrix))


def _plain(name: str, shape: tuple[int, ...], numbers: Numbers, std: float | None = None) -> Planned:
    if name.endswith("e_score_correction_bias"):
        return Planned(name, "F32", shape, lambda: numbers.normal(name, shape, 0.05))
    if len(shape) == 1:
        return Planned(name, "BF16", shape, lambda: numbers.normal(name, shape, 0.1, 1.0).bfloat16())
    spread = shape[-1] ** -0.5 if std is None else std
    return Planned(name, "BF16", shape, lambda: numbers.normal(name, shape, spread).bfloat16())


def _int4(name: str, rows: int, columns: int, numbers: Numbers, number: int) -> Iterator[Planned]:
    groups, std = rows * columns // GROUP_SIZE, columns**-0.5
    yield Planned(f"{name}_packed", "I32", (rows, columns // 8), lambda: numbers.int4(number, groups)[0])
    yield Planned(f"{name}_scale", "BF16", (rows, columns // GROUP_SIZE), lambda: numbers.int4(number, groups)[1] * std)
    yield Planned(f"{name}_shape", "I32", (2,), lambda: torch.tensor([rows, columns], dtype=torch.int32))


def in_order(tensors: list[Planned], order: str) -> list[Planned]:
    """See ``write``."""
    return tensors if order == "numbered" else sorted(tensors, key=lambda tensor: (_RANK[tensor.dtype], tensor.name))


def save(path: Path, tensors: list[Planned], *, hollow: bool = False) -> None:
    """A safetensors file, tensor by tensor, so that no more than one is in memory."""
    header, end = {}, 0
    for tensor in tensors:
        start, end = end, end + tensor.num_bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if hollow:
            file.truncate(8 + len(text) + end)
        for tensor in () if hollow else tensors:
            file.write(memoryview(tensor.make().contiguous().view(_BITS[tensor.dtype]).numpy()).cast("B"))
