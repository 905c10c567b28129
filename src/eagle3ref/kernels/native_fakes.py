"""Shapes and dtypes that the operators of ``csrc/`` return, for torch.compile and fake tensors."""

from __future__ import annotations

import torch
from torch import Tensor

NAMESPACE = "eagle3ref_native"


def register_fakes() -> None:
    """Once the library has declared its operators."""
    for name, fake in (
        ("build_tree", _build_tree),
        ("verify_greedy", _verify),
        ("verify_target_only", _verify),
        ("visited_positions", _visited_positions),
        ("tally_settings", _tally_settings),
        ("unpack_int4", _unpack_int4),
        ("dequantize_int4", _dequantize_int4),
    ):
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake)


def _build_tree(
    scores: Tensor, tokens: Tensor, parents: Tensor, root_tokens: Tensor, prefix_lengths: Tensor, num_draft_tokens: int
) -> tuple[Tensor, ...]:
    """Tokens, parents, depths, positions, mask, and whether the tree must be refused."""
    del scores, parents, root_tokens, prefix_lengths
    batch = tokens.shape[0]
    by_node = [tokens.new_empty(batch, num_draft_tokens) for _ in range(4)]
    mask = tokens.new_empty((batch, num_draft_tokens, num_draft_tokens), dtype=torch.bool)
    return *by_node, mask, tokens.new_empty(batch, dtype=torch.bool)


def _verify(tokens: Tensor, *_: object) -> tuple[Tensor, ...]:
    """Accepted drafts, their nodes and tokens, the bonus token, and whether the input must be refused."""
    batch, size = tokens.shape
    nodes, accepted_tokens = (tokens.new_empty(batch, size - 1) for _ in range(2))
    return tokens.new_empty(batch), nodes, accepted_tokens, tokens.new_empty(batch), nodes.new_empty(batch).bool()


def _visited_positions(num_accepted: Tensor) -> Tensor:
    return torch.empty_like(num_accepted, dtype=torch.bool)


def _tally_settings(
    ranks: Tensor, starts: Tensor, num_steps: Tensor, num_draft_tokens: Tensor
) -> tuple[Tensor, Tensor]:
    del num_draft_tokens
    settings, sequences = len(num_steps), len(starts) - 1
    histogram = starts.new_empty(settings, sequences, ranks.shape[1] + 1)
    return histogram, starts.new_empty(settings, sequences)


def _unpack_int4(packed: Tensor) -> Tensor:
    return packed.new_empty((packed.shape[0], packed.shape[1] * 8), dtype=torch.int8)


def _dequantize_int4(packed: Tensor, scale: Tensor) -> Tensor:
    return scale.new_empty(packed.shape[0], packed.shape[1] * 8)
