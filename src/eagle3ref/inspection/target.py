"""What a target folder holds, by its config and the headers of its files; no tensor is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eagle3ref.config import TargetConfig
from eagle3ref.config.target import KIMI_MODEL_TYPES
from eagle3ref.engines import FEWEST_LAYERS, default_capture_points
from eagle3ref.errors import Eagle3RefError
from eagle3ref.inspection.tensors import TensorGroup, tensor_groups
from eagle3ref.target.checkpoint import Census, StoredWeight, is_vision, open_census
from eagle3ref.trace.prompts import tokenizer_sha256
from eagle3ref.weights import Weights


@dataclass(frozen=True)
class TargetInspection:
    """A target checkpoint.

    Args:
        path: its folder.
        config: its settings.
        tensors: what is stored.
        facts: a sentence each on head, tokenizer, end tokens, default capture points.
        oddities: what deserves a look.
    """

    path: str
    config: TargetConfig
    tensors: tuple[TensorGroup, ...]
    facts: Mapping[str, str]
    oddities: tuple[str, ...]


def inspect_target(folder: str | Path) -> TargetInspection:
    """Look at a target without loading it.

    Raises:
        Eagle3RefError: no readable config.json, or damaged or missing files.
    """
    config, weights = TargetConfig.from_folder(folder), Weights(folder)
    facts, oddities = _facts(config, weights), _oddities(config, weights)
    if config.model_type in KIMI_MODEL_TYPES:
        try:
            census = open_census(folder)
            facts["census"] = _describe_census(census)
            oddities = (*oddities, *_rounded_biases(census))
        except Eagle3RefError as error:
            oddities = (*oddities, f"it cannot be loaded: {error.found}")
    return TargetInspection(str(folder), config, tensor_groups(weights), facts, oddities)


def _describe_census(census: Census) -> str:
    """How many tensors, how many bytes, how the weights are stored: ``routed experts INT4 in groups of 32; ...``."""
    routed = [weight for layer in census.layers for expert in layer.experts for weight in expert.values()]
    rest = [weight for layer in census.layers for name, weight in layer.weights.items() if not name.endswith("bias")]
    others = [census.embedding, census.norm, census.lm_head, *rest]  # the bias is fp32 whatever the rest is
    num_bytes = census.num_bytes
    size = f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.1f} MB"
    parts = [f"{census.num_tensors:,} text tensors, {size}"]
    parts += [f"routed experts {_formats(routed)}"] if routed else []
    parts += [f"the rest {_formats(others)}"]
    parts += [f"{census.num_passed_over:,} passed over (vision, rotary buffers)"] if census.num_passed_over else []
    return "; ".join(parts)


def _rounded_biases(census: Census) -> tuple[str, ...]:
    biases = [layer.weights["mlp.gate.e_score_correction_bias"] for layer in census.layers if layer.experts]
    rounded = [bias for bias in biases if bias.parts[0].dtype != "F32"]
    if not rounded:
        return ()
    dtype, example = rounded[0].parts[0].dtype, rounded[0].name
    return (
        f"{len(rounded)} router biases are stored as {dtype}, not F32, e.g. {example}: close calls go to other experts",
    )


def _formats(weights: list[StoredWeight]) -> str:
    """The format with the most bytes first."""
    bytes_of: dict[str, int] = {}
    for weight in weights:
        stored = weight.parts[0].dtype
        name = {"int4": "INT4 in groups of 32", "fp8_block": "FP8 in blocks of 128 x 128"}.get(weight.kind, stored)
        bytes_of[name] = bytes_of.get(name, 0) + weight.num_bytes
    return " and ".join(sorted(bytes_of, key=bytes_of.__getitem__, reverse=True))


def _facts(config: TargetConfig, weights: Weights) -> dict[str, str]:
    tokenizer = tokenizer_sha256(weights.folder)
    has_head = any(name.endswith("lm_head.weight") for name in weights.names)
    facts = {
        "lm_head": "in the files" if has_head else "none in the files, so tied to the embedding",
        "tokenizer": f"sha256 {tokenizer}" if tokenizer else "none; give prompts as token ids",
        "end tokens": ", ".join(map(str, config.eos_token_ids)) or "none; answers run to their limit",
    }
    if config.num_layers >= FEWEST_LAYERS:
        points = default_capture_points(config.num_layers)
        facts["capture points"] = f"{points} by default, for {config.num_layers} layers"
    return facts


def _oddities(config: TargetConfig, weights: Weights) -> tuple[str, ...]:
    text = [name for name in weights.names if not is_vision(name)]
    layers = {int(match.group(1)) for name in text if (match := re.search(r"(?:^|\.)layers\.(\d+)\.", name))}
    found = []
    missing = sorted(set(range(config.num_layers)) - layers)
    if missing:
        found.append(f"config.json says {config.num_layers} layers, but the files have none of layer {missing[0]}")
    extra = sorted(layers - set(range(config.num_layers)))
    if extra:
        found.append(f"layer {extra[0]} is stored beyond num_hidden_layers = {config.num_layers}: an MTP layer?")
    if config.num_layers < FEWEST_LAYERS:
        found.append(f"{config.num_layers} layers are too few for the default capture points (2, n // 2, n - 3)")
    if any(token >= config.vocab_size for token in config.eos_token_ids):
        found.append(f"an end token beyond the vocabulary of {config.vocab_size}: answers can never end with it")
    if not any(name.endswith("embed_tokens.weight") for name in text):
        found.append("no embed_tokens.weight: a draft that shares the embedding cannot be given one from these files")
    return tuple(found)
