"""A layer whose weights come when they are needed and go when they are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from eagle3ref.config import KimiK25Config
from eagle3ref.nn import Expert
from eagle3ref.target.checkpoint import DequantizeInt4, LayerCensus, StoredWeight, decode_weight
from eagle3ref.target.kimi_layer import Half, KimiLayer
from eagle3ref.target.loading import decode_expert, set_weight
from eagle3ref.target.streaming.arrivals import Arrivals
from eagle3ref.target.streaming.memory import release_freed_memory
from eagle3ref.target.streaming.schedule import Schedule, weights_of


class StreamedLayer(KimiLayer):
    """A ``KimiLayer`` that holds the weights of one half at a time, and no routed expert longer than it is used.

    Args:
        census: the layer in the checkpoint.
        config: the text model's settings.
        latent_norm_eps: epsilon of the two latent norms.
        arrivals: the weights, in the order of the schedule.
        schedule: what comes next.
        dtype: of the weights.
        dequantize_int4: ``target.int4.dequantize_int4``, or a twin of it.
    """

    def __init__(
        self,
        census: LayerCensus,
        config: KimiK25Config,
        latent_norm_eps: float,
        arrivals: Arrivals,
        schedule: Schedule,
        dtype: torch.dtype,
        dequantize_int4: DequantizeInt4,
    ) -> None:
        experts = StreamedExperts(census, arrivals, schedule, dtype, dequantize_int4) if census.experts else None
        with torch.device("meta"):
            super().__init__(config, census.index, latent_norm_eps, experts)
        self.requires_grad_(False)
        self._census, self._arrivals, self._schedule = census, arrivals, schedule
        self._dtype, self._dequantize_int4 = dtype, dequantize_int4

    @property
    def device(self) -> torch.device:
        """Where the layer computes, also while its weights are not there."""
        return self._schedule.device_of(self._census.index)

    @contextmanager
    def weights_of(self, half: Half) -> Iterator[None]:
        """Fetch the weights of a half, and drop them when the context ends."""
        name_of = {weight: name for name, weight in weights_of(self._census, half).items()}
        for piece in self._schedule.pieces_of(self._census.index, half):
            with self._arrivals.next(self.device) as arrived:
                for weight in piece.weights:
                    set_weight(self, name_of[weight], self._decoded(weight, [arrived[part] for part in weight.parts]))
        try:
            release_freed_memory()
            yield
        finally:
            for name in name_of.values():
                set_weight(self, name, torch.empty(0, device="meta"))
            release_freed_memory()

    def _decoded(self, weight: StoredWeight, parts: list[Tensor]) -> Tensor:
        decoded = decode_weight(weight, parts, dtype=self._dtype, dequantize_int4=self._dequantize_int4)
        # A weight that needs no conversion is still the reader's buffer, which the reader will write over.
        return decoded.clone() if decoded.data_ptr() == parts[0].data_ptr() else decoded


class StreamedExperts:
    """The routed experts of a layer as they come from the files; an ``nn.ExpertSource``."""

    def __init__(
        self,
        census: LayerCensus,
        arrivals: Arrivals,
        schedule: Schedule,
        dtype: torch.dtype,
        dequantize_int4: DequantizeInt4,
    ) -> None:
        self._census, self._arrivals, self._schedule = census, arrivals, schedule
        self._dtype, self._dequantize_int4 = dtype, dequantize_int4

    def visit(self, indices: Sequence[int], use: Callable[[int, Expert], None]) -> None:
        """See ``ExpertSource.visit``; an expert that was read and is not among the indices is passed over."""
        index_of_layer, needed = self._census.index, set(indices)
        for group in self._schedule.experts_of(index_of_layer, indices):
            with self._arrivals.next(self._schedule.device_of(index_of_layer)) as arrived:
                for index in group:
                    if index in needed:
                        expert = self._census.experts[index]
                        use(index, decode_expert(expert, arrived.__getitem__, self._dtype, self._dequantize_int4))
            release_freed_memory()
