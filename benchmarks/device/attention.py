"""Tree attention: grouped heads and MLA's latent, for the rows of a draft pass and for the nodes of a whole tree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from device.calls import Call, Timed, check_case, time_case
from device.recorder import Case
from device.setting import Setting
from eagle3ref.kernels import pack_mask

_GOAL = 0.7
_TOPK = 4


class Shape(NamedTuple):
    """G groups over B prefixes of T rows, Q queries and N own rows each."""

    groups: int
    prefixes: int
    tokens: int
    queries: int
    own: int


def cases(setting: Setting) -> list[Case]:
    """Checks of every form in every dtype, then times."""
    checks = [
        check_case(
            f"{form} attention of {shape.queries} rows over {shape.own} own, {dtype}",
            lambda f=form, s=shape, d=dtype: attention(setting, f, s, d, whole=False),
        )
        for dtype in setting.dtypes
        for form in ("one head a key", "grouped", "latent")
        for shape in _checked(setting)
    ]
    checks += [
        check_case(f"{form} attention of prefixes far apart", lambda f=form: far_apart(setting, f))
        for form in ("grouped", "latent")
    ]
    return checks + [time_case(setting, one) for one in timed(setting)]


def timed(setting: Setting) -> list[Timed]:
    """A draft pass of one branch and of four, and the nodes of a whole tree, over prefixes of one length."""
    nodes = setting.sizes.tree_nodes
    passes = [(queries, 4 * queries) for queries in (1, _TOPK)]
    shapes = [Shape(b, b, tokens, *rows) for b, tokens in setting.sizes.timed_prefixes for rows in passes]
    shapes += [Shape(b, b, tokens, nodes, nodes) for b, tokens in setting.sizes.timed_prefixes[-1:]]
    return [_timed(setting, form, shape) for form in ("one head a key", "grouped", "latent") for shape in shapes]


def attention(setting: Setting, form: str, shape: Shape, dtype: torch.dtype, *, whole: bool) -> Call:
    """Random rows; prefixes of every length, an empty and a full one among them, or all of them whole."""
    lengths = setting.integers(shape.tokens, shape.groups)
    lengths[:2] = torch.tensor([shape.tokens, 0], device=setting.device)[: shape.groups]
    if whole:
        lengths.fill_(shape.tokens)
    seen = torch.rand(shape.groups, shape.queries, shape.own, device=setting.device) < 0.3
    seen |= torch.eye(shape.queries, shape.own, dtype=torch.bool, device=setting.device)  # each sees a row at least
    keywords: dict[str, Any] = {}
    if shape.prefixes < shape.groups:
        keywords["prefix_of"] = setting.integers(shape.prefixes - 1, shape.groups)
    if form == "latent":
        operation, (query, prefix, own, width) = "tree_attention_mla", _latent(setting, shape, dtype)
    else:
        operation, (query, prefix, own, width) = "tree_attention", _heads(setting, form, shape, dtype)
    return Call(operation, (*query, *prefix, lengths, *own, pack_mask(seen), width**-0.5), keywords)


def far_apart(setting: Setting, form: str) -> Call:
    """Prefixes of a cache so large that the place of the second has no room in 32 bits."""
    call = attention(setting, form, _checked(setting)[-1], setting.served, whole=False)
    first = 2 if form == "latent" else 1  # of the arguments; the parts of the query stand before
    arguments = list(call.arguments)
    for index in (first, first + 1):
        arguments[index] = _at_distance(arguments[index], 2**12 if setting.rehearsed else 2**31)
    return replace(call, arguments=tuple(arguments))


def _at_distance(rows: Tensor, distance: int) -> Tensor:
    """The same [B, ...], so many numbers from one to the next."""
    cache = rows.new_empty((len(rows) - 1) * distance + rows[0].numel())
    return cache.as_strided(rows.shape, (distance, *rows.stride()[1:])).copy_(rows)


_Parts = tuple[list[Tensor], list[Tensor], list[Tensor], int]  # query, prefix rows, own rows, width of a key


def _heads(setting: Setting, form: str, shape: Shape, dtype: torch.dtype) -> _Parts:
    sizes = setting.sizes
    tail = (sizes.heads if form == "one head a key" else sizes.kv_heads, sizes.head_dim)
    query = [setting.random(shape.groups, shape.queries, sizes.heads, sizes.head_dim, dtype=dtype)]
    prefix = [setting.random(shape.prefixes, shape.tokens, *tail, dtype=dtype) for _ in range(2)]
    own = [setting.random(shape.groups, shape.own, *tail, dtype=dtype) for _ in range(2)]
    return query, prefix, own, sizes.head_dim


def _latent(setting: Setting, shape: Shape, dtype: torch.dtype) -> _Parts:
    sizes = setting.sizes
    widths = (sizes.latent, sizes.rope)
    query = [setting.random(shape.groups, shape.queries, sizes.heads, width, dtype=dtype) for width in widths]
    prefix = [setting.random(shape.prefixes, shape.tokens, width, dtype=dtype) for width in widths]
    own = [setting.random(shape.groups, shape.own, width, dtype=dtype) for width in widths]
    return query, prefix, own, sum(widths)


def _checked(setting: Setting) -> list[Shape]:
    tokens, nodes = setting.sizes.prefix, setting.sizes.tree_nodes
    return [Shape(3, 3, tokens, 1, 1), Shape(3, 3, tokens, _TOPK, 3 * _TOPK), Shape(3, 2, tokens, nodes, nodes)]


def _timed(setting: Setting, form: str, shape: Shape) -> Timed:
    sizes = setting.sizes
    if form == "latent":
        row, score, value = sizes.latent + sizes.rope, sizes.latent + sizes.rope, sizes.latent
    else:
        kv_heads = sizes.heads if form == "one head a key" else sizes.kv_heads
        row, score, value = 2 * kv_heads * sizes.head_dim, sizes.head_dim, sizes.head_dim
    rows = shape.groups * (shape.tokens + shape.own)
    queries = shape.groups * shape.queries * sizes.heads
    return Timed(
        f"{form} attention, {shape.groups} x {shape.queries} rows over {shape.tokens}",
        lambda: attention(setting, form, shape, setting.served, whole=True),
        num_bytes=setting.served.itemsize * (rows * row + queries * (score + value)),
        flops=2 * queries * (shape.tokens + shape.own) * (score + value),
        goal=_GOAL,
        compiled=shape.queries == _TOPK and shape.groups > 1,
    )
