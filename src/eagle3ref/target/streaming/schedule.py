"""In which order the weights of a pass are read, and how far ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from eagle3ref.target.checkpoint import Census, LayerCensus, StoredWeight
from eagle3ref.target.kimi_layer import MODULES_OF, Half
from eagle3ref.target.streaming.pieces import Piece, grouped


class Schedule:
    """Requests the pieces of layer after layer: attention, the MLP without routed experts, routed experts.

    With all experts, the reads run one layer ahead. Else those of a layer are requested when its routes are known, and
    behind them what the next layer needs before its own routes are.

    Args:
        census: what the checkpoint holds.
        request: hands a piece to the reader.
        buffer_bytes: the most that a piece may take.
        all_experts: as of ``checkpoint.reads_all_experts``.
        devices: layer i goes to device ``i % len(devices)``.
        first_layer: where the pass starts.
    """

    def __init__(
        self,
        census: Census,
        request: Callable[[Piece], None],
        *,
        buffer_bytes: int,
        all_experts: bool,
        devices: Sequence[torch.device],
        first_layer: int,
    ) -> None:
        self._layers, self._request, self._buffer_bytes = census.layers, request, buffer_bytes
        self._all_experts, self._devices = all_experts, devices
        self._next = first_layer  # the first layer of which nothing was requested
        self._halves: dict[tuple[int, Half], list[Piece]] = {}
        self._experts: dict[int, list[list[int]]] = {}

    def device_of(self, layer: int) -> torch.device:
        """Where a layer computes."""
        return self._devices[layer % len(self._devices)]

    def enter(self, layer: int) -> None:
        """The pass has come to this layer."""
        self._request_up_to(layer + 1 if self._all_experts or not self._layers[layer].experts else layer)

    def pieces_of(self, layer: int, half: Half) -> list[Piece]:
        """The pieces of a half of the layer, which come next from the reader."""
        return self._halves.pop((layer, half))

    def experts_of(self, layer: int, needed: Sequence[int]) -> list[list[int]]:
        """The experts of each piece that comes next from the reader; those that are needed are among them."""
        if not self._all_experts:
            self._request_experts(layer, needed)
            self._request_up_to(layer + 1)
        return self._experts.pop(layer)

    def _request_up_to(self, layer: int) -> None:
        while self._next <= min(layer, len(self._layers) - 1):
            census = self._layers[self._next]
            for half in MODULES_OF:
                units = [[weight] for weight in weights_of(census, half).values()]
                self._halves[self._next, half] = self._request_units(self._next, units)[1]
            if self._all_experts and census.experts:
                self._request_experts(self._next, range(len(census.experts)))
            self._next += 1

    def _request_experts(self, layer: int, indices: Sequence[int]) -> None:
        units = [list(self._layers[layer].experts[index].values()) for index in indices]
        groups, _ = self._request_units(layer, units)
        self._experts[layer] = [[indices[place] for place in group] for group in groups]

    def _request_units(self, layer: int, units: list[list[StoredWeight]]) -> tuple[list[list[int]], list[Piece]]:
        groups = grouped(units, self._buffer_bytes)
        device = self.device_of(layer)
        pieces = [Piece(tuple(weight for place in group for weight in units[place]), device) for group in groups]
        for piece in pieces:
            self._request(piece)
        return groups, pieces


def weights_of(layer: LayerCensus, half: Half) -> Mapping[str, StoredWeight]:
    """The weights of half a layer by parameter name, without the routed experts."""
    return {name: weight for name, weight in layer.weights.items() if name.split(".")[0] in MODULES_OF[half]}
