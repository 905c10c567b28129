"""Fusion and INT4 products in plain PyTorch: the "torch" backend, and what the kernels are held against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import linear

from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import RMSNorm
from eagle3ref.target.int4 import GROUP_SIZE, scale_int4, unpack_int4

_PER_WORD = 8


def fuse(
    chunks: Sequence[Tensor],
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    norm_weights: Sequence[Tensor] | None = None,
    input_norm_weight: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """The first recurrent state of a draft: ``fc`` over the concatenated aux hidden states, as ``Eagle3Draft.fuse``.

    Args:
        chunks: A of [M, Ct], one a capture point; cast to the weight's dtype first.
        weight: [C, A * Ct].
        bias: [C].
        norm_weights: A of [Ct], one RMSNorm a chunk (``fc_norm``).
        input_norm_weight: [A * Ct], one RMSNorm over the concatenation (``norm_before_fc``), before those.
        eps: of the norms.

    Returns:
        [M, C], in the weight's dtype.

    Raises:
        Eagle3RefError: shapes that do not fit.
    """
    check_fusion("fusing aux hidden states", chunks, weight, bias, norm_weights, input_norm_weight)
    x = torch.cat([chunk.to(weight.dtype) for chunk in chunks], -1)
    if input_norm_weight is not None:
        x = _normed(x, input_norm_weight, eps)
    if norm_weights is not None:
        parts = zip(x.chunk(len(chunks), -1), norm_weights, strict=True)
        x = torch.cat([_normed(part, norm_weight, eps) for part, norm_weight in parts], -1)
    return linear(x, weight, bias)


def int4_matmul(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """x [M, in] times a weight in Moonshot's INT4 (``target/int4.py``) -> [M, out], in x's dtype.

    Args:
        x: [M, in].
        packed: int32 [out, in / 8].
        scale: [out, in / 32]. ``value * scale`` is rounded to its dtype, as engines do, then cast to x's.

    Raises:
        Eagle3RefError: shapes or dtypes that do not fit.
    """
    check_int4("multiplying by an INT4 weight", x, packed, scale)
    return x @ scale_int4(unpack_int4(packed), scale).to(x.dtype).T


def int4_grouped_matmul(x: Tensor, offsets: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """Each row times the INT4 weight of its expert: the routed experts of a mixture, rows sorted by expert.

    Args:
        x: [M, in].
        offsets: int32 or int64 [E + 1], rising from 0 to M; rows ``offsets[e] .. offsets[e + 1] - 1`` are expert e's.
        packed: int32 [E, out, in / 8].
        scale: [E, out, in / 32].

    Returns:
        [M, out], in x's dtype.

    Raises:
        Eagle3RefError: shapes or dtypes that do not fit, or offsets that do not rise from 0 to M.
    """
    check_int4("multiplying by INT4 experts", x, packed, scale, offsets)
    bounds = offsets.tolist()
    if bounds[0] != 0 or bounds[-1] != len(x) or bounds != sorted(bounds):
        raise Eagle3RefError(
            "multiplying by INT4 experts",
            found=f"offsets {bounds}",
            expected=f"offsets that rise from 0 to {len(x)}, the rows of x",
            action="Sort the rows by expert and add up how many each has.",
        )
    parts = [int4_matmul(x[bounds[e] : bounds[e + 1]], packed[e], scale[e]) for e in range(len(packed))]
    return torch.cat(parts)


def check_fusion(
    doing: str,
    chunks: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor | None,
    norm_weights: Sequence[Tensor] | None,
    input_norm_weight: Tensor | None,
) -> None:
    """Raises: Eagle3RefError, when the arguments of ``fuse`` do not fit together."""
    shapes = [list(chunk.shape) for chunk in chunks]
    if not chunks or weight.dim() != 2 or chunks[0].dim() != 2 or shapes[1:] != shapes[:-1]:
        expected = "one or more chunks of one shape [M, Ct] and a weight [C, A * Ct]"
        _refuse(doing, f"chunks {shapes} and a weight {list(weight.shape)}", expected)
    if not weight.numel():
        _refuse(doing, f"a weight {list(weight.shape)}", "one with rows and columns")
    size, fused = shapes[0][1], len(shapes) * shapes[0][1]
    if weight.shape[1] != fused:
        _refuse(doing, f"a weight {weight.shape[1]} wide", f"{fused}: {len(shapes)} chunks of {size}")
    if bias is not None and bias.shape != weight.shape[:1]:
        _refuse(doing, f"a bias {list(bias.shape)}", f"[{len(weight)}], one for each row of the weight")
    if norm_weights is not None and [list(norm.shape) for norm in norm_weights] != [[size]] * len(shapes):
        found = [list(norm.shape) for norm in norm_weights]
        _refuse(doing, f"norm_weights {found}", f"{len(shapes)} of [{size}], one a chunk")
    if input_norm_weight is not None and list(input_norm_weight.shape) != [fused]:
        _refuse(doing, f"an input_norm_weight {list(input_norm_weight.shape)}", f"[{fused}]")


def check_int4(doing: str, x: Tensor, packed: Tensor, scale: Tensor, offsets: Tensor | None = None) -> None:
    """Raises: Eagle3RefError, when the arguments of an INT4 product do not fit together."""
    experts = [] if offsets is None else [scale.shape[0]]
    rows, groups = scale.shape[-2:] if scale.dim() >= 2 else (0, 0)
    wanted = ([*experts, rows, groups * GROUP_SIZE // _PER_WORD], [*experts, rows, groups], groups * GROUP_SIZE)
    fits = x.dim() == 2 and (list(packed.shape), list(scale.shape), x.shape[1]) == wanted
    if not fits or packed.dtype != torch.int32 or not scale.numel():
        lead = "" if offsets is None else "E, "
        found = f"x {list(x.shape)}, {packed.dtype} {list(packed.shape)} and scales {list(scale.shape)}"
        _refuse(doing, found, f"x [M, in], torch.int32 [{lead}out, in / 8] and scales [{lead}out, in / 32]")
    if offsets is None:
        return
    if offsets.shape != (len(packed) + 1,) or offsets.dtype not in (torch.int32, torch.int64):
        found = f"offsets {offsets.dtype} {list(offsets.shape)}"
        _refuse(doing, found, f"int32 or int64 [{len(packed) + 1}], the experts and one more")


def _normed(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    with torch.device("meta"):
        norm = RMSNorm(x.shape[-1], eps)
    normed: Tensor = functional_call(norm, {"weight": scale}, x)
    return normed


def _refuse(doing: str, found: str, expected: str) -> None:
    raise Eagle3RefError(doing, found=found, expected=expected, action="Check the tensors that were passed.")
