"""Weights of a checkpoint into modules, and routed experts that stay as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from eagle3ref.config import KimiK25Config
from eagle3ref.nn import Expert, GatedMatrices
from eagle3ref.target.checkpoint import (
    DequantizeInt4,
    LayerCensus,
    StoredTensor,
    StoredWeight,
    decode_weight,
    read_tensor,
)
from eagle3ref.target.int4 import dequantize_int4 as dequantize_int4_in_torch
from eagle3ref.target.kimi_layer import KimiLayer


def assign_weights(
    module: nn.Module,
    weights: Mapping[str, StoredWeight],
    *,
    device: torch.device,
    dtype: torch.dtype,
    dequantize_int4: DequantizeInt4 = dequantize_int4_in_torch,
) -> None:
    """Fill parameters of a module made on the meta device, by name.

    Raises:
        Eagle3RefError: a file that was cut short, or cannot be read.
    """
    for name, weight in weights.items():
        parts = [to_device(part, read_tensor(part), device) for part in weight.parts]
        set_weight(module, name, decode_weight(weight, parts, dtype=dtype, dequantize_int4=dequantize_int4))


def set_weight(module: nn.Module, name: str, value: Tensor) -> None:
    """Put a value in the place of a parameter, whatever that was: on the meta device, of another dtype."""
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, nn.Parameter(value, requires_grad=False))


def to_device(part: StoredTensor, tensor: Tensor, device: torch.device) -> Tensor:
    """A stored tensor where it is needed: ``weight_shape`` is only looked at, so it stays on the CPU."""
    return tensor if part.name.endswith("_shape") else tensor.to(device, non_blocking=True)


def load_layer(
    census: LayerCensus,
    config: KimiK25Config,
    latent_norm_eps: float,
    device: torch.device,
    dtype: torch.dtype,
    packed: bool,
    dequantize_int4: DequantizeInt4,
) -> KimiLayer:
    """A layer with all its weights; with ``packed``, routed experts stay as they are stored.

    Raises:
        Eagle3RefError: a file that was cut short, or cannot be read.
    """
    experts = StoredExperts(census.experts, device, dtype, dequantize_int4) if packed and census.experts else None
    with torch.device("meta"):
        layer = KimiLayer(config, census.index, latent_norm_eps, experts)
    weights = dict(census.weights)
    if experts is None:
        for index, expert in enumerate(census.experts):
            weights |= {f"mlp.experts.{index}.{name}": weight for name, weight in expert.items()}
    assign_weights(layer, weights, device=device, dtype=dtype, dequantize_int4=dequantize_int4)
    return layer


def decode_expert(
    expert: Mapping[str, StoredWeight],
    read: Callable[[StoredTensor], Tensor],
    dtype: torch.dtype,
    dequantize_int4: DequantizeInt4,
) -> GatedMatrices:
    """One routed expert to compute with; ``read`` gives a tensor as it is stored."""
    gate, up, down = (
        decode_weight(weight, [read(part) for part in weight.parts], dtype=dtype, dequantize_int4=dequantize_int4)
        for weight in (expert[f"{name}_proj.weight"] for name in ("gate", "up", "down"))
    )
    return GatedMatrices(gate, up, down)


class StoredExperts:
    """Routed experts of a layer in memory as they are on disk; each is expanded when it is used, and dropped.

    An ``nn.ExpertSource``. INT4 takes 4.5 bits a weight this way instead of 16.
    """

    def __init__(
        self,
        experts: Sequence[Mapping[str, StoredWeight]],
        device: torch.device,
        dtype: torch.dtype,
        dequantize_int4: DequantizeInt4,
    ) -> None:
        self._experts, self._dtype, self._dequantize_int4 = experts, dtype, dequantize_int4
        self._tensors = [
            {part: to_device(part, read_tensor(part), device) for weight in expert.values() for part in weight.parts}
            for expert in experts
        ]

    def visit(self, indices: Sequence[int], use: Callable[[int, Expert], None]) -> None:
        """See ``ExpertSource.visit``."""
        for index in indices:
            read = self._tensors[index].__getitem__
            use(index, decode_expert(self._experts[index], read, self._dtype, self._dequantize_int4))
