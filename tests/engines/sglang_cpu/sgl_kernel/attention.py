"""Paged attention in PyTorch, in the two forms that SGLang's CPU backend asks for (intel_amx_backend.py).

``keys`` and ``values`` are the pools, [slots, heads, width]; row r of ``slot_table`` lists the slots of one request in
the order of their positions. Scales of quantized pools are always 1 here.
"""

import torch
from torch import Tensor


def decode_attention_cpu(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scale: float,
    value_scale: float,
    output: Tensor,
    new_keys: Tensor | None,
    new_values: Tensor | None,
    new_slots: Tensor,
    _scratch: Tensor,
    slot_table: Tensor,
    requests: Tensor,
    lengths: Tensor,
    scaling: float,
    logit_cap: float,
    *other: object,
) -> None:
    """One query row for each request over its ``lengths`` slots, after storing its new key and value."""
    _refuse_what_is_not_here(key_scale, value_scale, logit_cap, *other)
    if new_keys is not None:
        keys[new_slots] = new_keys.view(-1, *keys.shape[1:])
        values[new_slots] = new_values.view(-1, *values.shape[1:])
    for row, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        slots = slot_table[request, :length]
        output[row] = _attend(query[row, None], keys[slots], values[slots], scaling, None)[0]


def extend_attention_cpu(
    query: Tensor,
    new_keys: Tensor,
    new_values: Tensor,
    output: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scale: float,
    value_scale: float,
    slot_table: Tensor,
    requests: Tensor,
    lengths: Tensor,
    new_lengths: Tensor,
    new_starts: Tensor,
    _longest: int,
    scaling: float,
    logit_cap: float,
    is_cross_attention: bool,
    sliding_window: int,
    encoder_lengths: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """The new rows of each request over its older slots and over each other, by ``tree_mask`` or causally.

    ``tree_mask`` holds one square of new rows for each request, flattened.
    """
    other = is_cross_attention, sliding_window, encoder_lengths, sinks, is_causal
    _refuse_what_is_not_here(key_scale, value_scale, logit_cap, *other)
    squares = None if tree_mask is None else tree_mask.view(torch.bool).split([n * n for n in new_lengths.tolist()])
    for i, request in enumerate(requests.tolist()):
        new, start = int(new_lengths[i]), int(new_starts[i])
        rows, old = slice(start, start + new), int(lengths[i]) - new
        mask = torch.ones(new, new, dtype=torch.bool).tril() if squares is None else squares[i].view(new, new)
        mask = torch.cat((mask.new_ones(new, old), mask), 1)
        slots = slot_table[request, :old]
        key = torch.cat((keys[slots], new_keys.view(-1, *keys.shape[1:])[rows]))
        value = torch.cat((values[slots], new_values.view(-1, *values.shape[1:])[rows]))
        output[rows] = _attend(query[rows], key, value, scaling, mask)


def _attend(query: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None) -> Tensor:
    """[rows, heads, width] over [slots, fewer heads, width]: each key head serves as many query heads in a row."""
    share = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(share, 1), values.repeat_interleave(share, 1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys.float()) * scaling
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values.float()).to(query.dtype)


def _refuse_what_is_not_here(
    key_scale: float,
    value_scale: float,
    logit_cap: float,
    is_cross_attention: object,
    sliding_window: object,
    encoder_lengths: object,
    sinks: object,
    is_causal: object = True,
) -> None:
    plain = (key_scale, value_scale, is_cross_attention, sliding_window, is_causal) == (1, 1, False, 0, True)
    if not plain or logit_cap or encoder_lengths is not None or sinks is not None:
        raise NotImplementedError("attention with scales, a logit cap, a window, sinks or an encoder")
