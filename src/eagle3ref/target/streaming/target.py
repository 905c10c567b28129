"""Kimi-K2.5 without its weights in memory: each forward, or each pass over many texts, reads them once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from eagle3ref.config import KimiK25Config, TargetConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import RMSNorm
from eagle3ref.target.checkpoint import (
    Census,
    DequantizeInt4,
    decode_weight,
    open_census,
    read_tensor,
    reads_all_experts,
)
from eagle3ref.target.int4 import dequantize_int4 as dequantize_int4_in_torch
from eagle3ref.target.kimi_head import HEAD_ROWS
from eagle3ref.target.kimi_layer import KimiLayer
from eagle3ref.target.kimi_walk import KimiWalk, Work
from eagle3ref.target.loading import set_weight
from eagle3ref.target.placement import parse_devices
from eagle3ref.target.streaming.arrivals import Arrivals
from eagle3ref.target.streaming.budget import Budget, Buffers
from eagle3ref.target.streaming.files import CheckpointFiles
from eagle3ref.target.streaming.layer import StreamedLayer
from eagle3ref.target.streaming.matrix import mapped, read_rows
from eagle3ref.target.streaming.pieces import Piece, rows_of
from eagle3ref.target.streaming.reader import Reader
from eagle3ref.target.streaming.schedule import Schedule


class StreamedTarget(KimiWalk):
    """A ``LayerMajorTarget`` that reads the checkpoint layer by layer, ahead of the computation, and forgets it.

    The bits are those of ``KimiK25Target`` in the same dtype. All prompts in one pass cost one reading of the files:
    ``stream_layers`` is the way to use it. ``forward`` reads the layers too, with few tokens only the routed experts
    that they are sent to.

    Args:
        config: what every target has.
        architecture: the text model's settings.
        census: what the checkpoint holds; its files must not change.
        devices: layer i computes on device ``i % len(devices)``.
        dtype: of weights and activations.
        memory: the most that the whole process may have in memory, in bytes; None: no bound.
        latent_norm_eps: as of ``KimiK25Target``.
        dequantize_int4: ``target.int4.dequantize_int4``, or a twin of it.

    ``bytes_read`` counts what was read of the layers and the head so far. With a GPU the memory bound is that of the
    host; nothing was measured there yet.
    """

    def __init__(
        self,
        config: TargetConfig,
        architecture: KimiK25Config,
        census: Census,
        *,
        devices: Sequence[torch.device],
        dtype: torch.dtype,
        memory: int | None,
        latent_norm_eps: float | None,
        dequantize_int4: DequantizeInt4,
    ) -> None:
        self.config, self.architecture, self.census, self.memory = config, architecture, census, memory
        self._devices, self._dtype, self.dequantize_int4 = tuple(devices), dtype, dequantize_int4
        self._eps = architecture.rms_norm_eps if latent_norm_eps is None else latent_norm_eps
        self._files = CheckpointFiles(part.path for weight in census.all_weights() for part in weight.parts)
        self._budget = Budget(census, architecture, dtype, memory, on_host=_any_is(devices, "cpu"))
        self.bytes_read = 0

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        memory: int | None = None,
        latent_norm_eps: float | None = None,
        dequantize_int4: DequantizeInt4 = dequantize_int4_in_torch,
    ) -> StreamedTarget:
        """Open a checkpoint folder. Every name, dtype and shape is checked; no weight is read.

        Args:
            folder: config.json and the shards.
            device: one, or several with commas in between, which take the layers in turn.
            dtype: see above, as the other settings.
            memory: see above.
            latent_norm_eps: see above.
            dequantize_int4: see above.

        Raises:
            Eagle3RefError: a tensor is missing, unknown or of the wrong shape, a file is damaged, or a device is not
                there.
        """
        return cls(
            TargetConfig.from_folder(folder),
            KimiK25Config.from_folder(folder),
            open_census(folder),
            devices=_checked(parse_devices(device)),
            dtype=dtype,
            memory=memory,
            latent_norm_eps=latent_norm_eps,
            dequantize_int4=dequantize_int4,
        )

    @property
    def device(self) -> torch.device:
        """The first one."""
        return self._devices[0]

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self._dtype

    def max_tokens(self, longest: int, *, per_token: int = 0) -> int:
        """How many tokens one pass may have within the memory bound.

        0 if not even the longest sequence fits. Room for one copy of all streams is left to the caller.

        Args:
            longest: tokens of the longest sequence.
            per_token: bytes that the caller will hold of every token besides.
        """
        return self._budget.max_tokens(longest, per_token)

    def memory_parts(self, lengths: Sequence[int]) -> dict[str, int]:
        """What a pass over sequences of these lengths will take of the memory: bytes by what they are for.

        Raises:
            Eagle3RefError: it does not fit the bound; tells the least that would do.
        """
        return self._budget.parts(lengths)

    def layer_bytes(self, layer: int, num_tokens: int) -> int:
        """What is read of a layer for so many tokens; for few, if no two of them chose the same expert."""
        census, moe = self.census.layers[layer], self.architecture.moe
        experts = [sum(weight.num_bytes for weight in expert.values()) for expert in census.experts]
        if not reads_all_experts(moe, num_tokens):
            experts = sorted(experts)[-num_tokens * moe.num_experts_per_token :]
        return sum(weight.num_bytes for weight in census.weights.values()) + sum(experts)

    @contextmanager
    def layers(self, first: int, work: Work) -> Iterator[Iterator[KimiLayer]]:
        """See ``KimiWalk.layers``. The reader lives as long as the context."""
        buffers = self._budget.buffers(work)
        with self._reader(buffers) as reader:
            arrivals = Arrivals(reader)
            schedule = Schedule(
                self.census,
                arrivals.request,
                buffer_bytes=buffers.size,
                all_experts=reads_all_experts(self.architecture.moe, work.tokens),
                devices=self._devices,
                first_layer=first,
            )
            yield self._streamed(first, arrivals, schedule)

    def embed_rows(self, tokens: Tensor) -> Tensor:
        """See ``KimiWalk.embed_rows``; only these rows are read."""
        return read_rows(self._files, self.census.embedding, tokens, device=self.device, dtype=self.dtype)

    def final_norm(self) -> RMSNorm:
        """See ``KimiWalk.final_norm``."""
        return self._final_norm

    @contextmanager
    def head(self) -> Iterator[Iterator[Tensor]]:
        """See ``KimiWalk.head``. The reader lives as long as the context."""
        with self._reader(self._budget.head_buffers()) as reader:
            yield self._head_pieces(Arrivals(reader))

    @torch.no_grad()
    def logits(self, final_hidden_state: Tensor) -> Tensor:
        """See ``Target.logits``; the output projection is read once per call."""
        with self.head() as pieces:
            return torch.cat([functional.linear(final_hidden_state, piece) for piece in pieces], -1)

    def embedding(self) -> Tensor:
        """[V, C] as stored, mapped from the file: on the CPU, in the file's dtype."""
        return self._embedding

    def lm_head(self) -> Tensor:
        """[V, C] as stored, mapped from the file: on the CPU, in the file's dtype."""
        return self._lm_head

    @cached_property
    def _embedding(self) -> Tensor:
        return mapped(self.census.embedding)

    @cached_property
    def _lm_head(self) -> Tensor:
        return mapped(self.census.lm_head)

    @cached_property
    def _final_norm(self) -> RMSNorm:
        with torch.device("meta"):
            norm = RMSNorm(self.architecture.hidden_size, self.architecture.rms_norm_eps)
        weight = self.census.norm
        set_weight(norm, "weight", decode_weight(weight, [read_tensor(weight.parts[0])], dtype=self.dtype))
        return norm.to(self.device)

    def _streamed(self, first: int, arrivals: Arrivals, schedule: Schedule) -> Iterator[KimiLayer]:
        for census in self.census.layers[first:]:
            schedule.enter(census.index)
            yield StreamedLayer(
                census, self.architecture, self._eps, arrivals, schedule, self.dtype, self.dequantize_int4
            )

    def _head_pieces(self, arrivals: Arrivals) -> Iterator[Tensor]:
        size = self.config.vocab_size
        starts = range(0, size, HEAD_ROWS)
        pieces = [rows_of(self.census.lm_head, start, min(HEAD_ROWS, size - start)) for start in starts]
        for weight in pieces:
            arrivals.request(Piece((weight,), self.device))
        for weight in pieces:
            with arrivals.next(self.device) as arrived:
                yield decode_weight(weight, [arrived[weight.parts[0]]], dtype=self.dtype)

    def _reader(self, buffers: Buffers) -> Reader:
        return Reader(
            self._files,
            num_buffers=buffers.number,
            buffer_bytes=buffers.size,
            pinned=_any_is(self._devices, "cuda"),
            on_read=self._count,
        )

    def _count(self, num_bytes: int) -> None:
        self.bytes_read += num_bytes


def _any_is(devices: Sequence[torch.device], kind: str) -> bool:
    return any(device.type == kind for device in devices)


def _checked(devices: Sequence[torch.device]) -> Sequence[torch.device]:
    for device in devices:
        if device.type not in ("cpu", "cuda"):
            raise Eagle3RefError(
                f"placing a model on {device}",
                found="streamed weights for this kind of device",
                expected="cpu or cuda devices",
                action="Correct --device, or load the weights whole (--weights resident).",
            )
    return devices
