"""What a target folder holds, by its config and the headers of its files; no tensor is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eagle3ref.config import TargetConfig
from eagle3ref.engines import FEWEST_LAYERS, default_capture_points
from eagle3ref.inspection.tensors import TensorGroup, tensor_groups
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
    return TargetInspection(
        str(folder), config, tensor_groups(weights), _facts(config, weights), _oddities(config, weights)
    )


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
    text = [name for name in weights.names if not name.startswith(("vision_tower.", "mm_projector."))]
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
