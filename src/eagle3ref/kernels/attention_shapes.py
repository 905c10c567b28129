"""What a tree attention is given, checked by shape, dtype and device; the values stay where they are."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError

WORD_BITS = 32  # own rows that one word of ``ancestors`` speaks of
_INTEGERS = (torch.int32, torch.int64)


class AttentionShape(NamedTuple):
    """The sizes of one call. The latent form has one key-value head, whose keys and values are both R wide."""

    num_groups: int  # G
    num_queries: int  # Q
    num_heads: int  # H
    num_kv_heads: int  # Hkv
    key_size: int  # D or R
    value_size: int  # Dv or R
    num_prefixes: int  # B
    num_tokens: int  # T, rows that each prefix has room for
    num_own: int  # N


def check_attention(
    query: Tensor,
    prefix_keys: Tensor,
    prefix_values: Tensor,
    prefix_lengths: Tensor,
    own_keys: Tensor,
    own_values: Tensor,
    ancestors: Tensor,
    prefix_of: Tensor | None,
) -> AttentionShape:
    """The sizes of a ``tree_attention``.

    Raises:
        Eagle3RefError: shapes, dtypes or devices that do not fit.
    """
    sizes = _sizes(
        {
            "query": (query, "GQHD"),
            "prefix_keys": (prefix_keys, "BTKD"),
            "prefix_values": (prefix_values, "BTKV"),
            "own_keys": (own_keys, "GNKD"),
            "own_values": (own_values, "GNKV"),
        }
    )
    _check_integers(sizes, query.device, prefix_lengths, ancestors, prefix_of)
    heads, kv_heads = sizes["H"], sizes["K"]
    if kv_heads == 0 or heads % kv_heads:
        _refuse(f"{heads} heads over {kv_heads} key-value heads", "as many heads for each key-value head")
    return AttentionShape(*(sizes[letter] for letter in "GQHKDVBTN"))


def check_attention_mla(
    query_latent: Tensor,
    query_rope: Tensor,
    prefix_latent: Tensor,
    prefix_rope: Tensor,
    prefix_lengths: Tensor,
    own_latent: Tensor,
    own_rope: Tensor,
    ancestors: Tensor,
    prefix_of: Tensor | None,
) -> AttentionShape:
    """The sizes of a ``tree_attention_mla``.

    Raises:
        Eagle3RefError: shapes, dtypes or devices that do not fit.
    """
    sizes = _sizes(
        {
            "query_latent": (query_latent, "GQHR"),
            "query_rope": (query_rope, "GQHD"),
            "prefix_latent": (prefix_latent, "BTR"),
            "prefix_rope": (prefix_rope, "BTD"),
            "own_latent": (own_latent, "GNR"),
            "own_rope": (own_rope, "GND"),
        }
    )
    _check_integers(sizes, query_latent.device, prefix_lengths, ancestors, prefix_of)
    return AttentionShape(sizes["G"], sizes["Q"], sizes["H"], 1, *(sizes[letter] for letter in "RRBTN"))


def _sizes(parts: dict[str, tuple[Tensor, str]]) -> dict[str, int]:
    """The size that each letter stands for; tensors whose letters, dtypes or devices disagree are refused."""
    sizes: dict[str, int] = {}
    (first, (reference, _)), *_ = parts.items()
    for name, (tensor, letters) in parts.items():
        if (tensor.dtype, tensor.device) != (reference.dtype, reference.device) or not tensor.is_floating_point():
            found = f"{name} {tensor.dtype} on {tensor.device}, {first} {reference.dtype} on {reference.device}"
            _refuse(found, "one floating dtype and one device")
        shape = list(tensor.shape)
        if len(shape) != len(letters) or any(
            sizes.setdefault(letter, size) != size for letter, size in zip(letters, shape, strict=True)
        ):
            known = [sizes.get(letter, letter) for letter in letters]
            _refuse(f"{name} of shape {shape}", f"{known}, where {first} is {list(reference.shape)}")
    return sizes


def _check_integers(
    sizes: dict[str, int], device: torch.device, prefix_lengths: Tensor, ancestors: Tensor, prefix_of: Tensor | None
) -> None:
    groups, words = sizes["G"], -(-sizes["N"] // WORD_BITS)
    if prefix_of is None and groups != sizes["B"]:
        _refuse(f"{groups} groups, {sizes['B']} prefixes and no prefix_of", "prefix_of, or a prefix for each group")
    if groups and not sizes["B"]:
        _refuse("no prefix", "a prefix for each group, which may have no rows")
    per_group = {"prefix_lengths": prefix_lengths} | ({} if prefix_of is None else {"prefix_of": prefix_of})
    for name, tensor in per_group.items():
        if list(tensor.shape) != [groups] or tensor.dtype not in _INTEGERS or tensor.device != device:
            found = f"{name} {tensor.dtype} {list(tensor.shape)} on {tensor.device}"
            _refuse(found, f"int32 or int64 [{groups}] on {device}")
    shape = list(ancestors.shape)
    fits = len(shape) == 3 and shape[:2] == [groups, sizes["Q"]] and shape[2] >= words
    if not fits or ancestors.dtype != torch.int32 or ancestors.device != device:
        found = f"ancestors {ancestors.dtype} {shape} on {ancestors.device}"
        _refuse(found, f"int32 [{groups}, {sizes['Q']}, {words} or more] on {device}, a bit for each own row")


def _refuse(found: str, expected: str) -> NoReturn:
    action = "Check the query, the rows and the mask that this round hands over; docs/kernels.md has the shapes."
    raise Eagle3RefError("attending over a draft tree", found=found, expected=expected, action=action)
