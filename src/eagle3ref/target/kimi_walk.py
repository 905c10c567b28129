"""What every Kimi-K2 target does with its layers, wherever their weights come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eagle3ref.config import KimiK25Config, MLAConfig, TargetConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import BLOCK_ROWS, KVCache, RMSNorm, Rows, in_blocks
from eagle3ref.nn.attention import EXPANDED_AT_ONCE
from eagle3ref.target.base import Scores, TargetCache, TargetOutput
from eagle3ref.target.inputs import check_tokens, checked_inputs
from eagle3ref.target.kimi_head import score
from eagle3ref.target.kimi_layer import KimiLayer


class Work(NamedTuple):
    """What a walk has to carry, in rows.

    Args:
        tokens: rows that run through the layers.
        block: of them, rows that attention takes at a time.
        expanded: rows whose keys and values of all heads are there at once.
        latent: rows that are attended to as latents at once.
        cached: rows that a cache is filled with.
    """

    tokens: int
    block: int
    expanded: int
    latent: int = 0
    cached: int = 0

    @classmethod
    def of_sequences(cls, lengths: Sequence[int], *, cached: bool = False) -> Work:
        """Whole sequences, one at a time through attention, all together through the MLP."""
        longest = max(lengths)
        return cls(sum(lengths), min(longest, BLOCK_ROWS), longest, cached=len(lengths) * longest * cached)


class KimiWalk(ABC):
    """The text model as a walk over its layers: forward of a few rows with a cache, or layer-major over many texts.

    Both take the same steps in the same order, and experts in ascending order, so that their bits do not depend on
    where weights were kept. Blocks of rows are chosen by shapes alone, never by the memory there is.
    """

    config: TargetConfig
    architecture: KimiK25Config

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Of token ids, of the streams before and behind the layers, and of what ``forward`` returns."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of the residual stream."""

    @abstractmethod
    def layers(self, first: int, work: Work) -> AbstractContextManager[Iterator[KimiLayer]]:
        """The layers from ``first`` on, in order. Each serves until the next is asked for.

        Raises:
            Eagle3RefError: there is no room for the work.
        """

    @abstractmethod
    def embed_rows(self, tokens: Tensor) -> Tensor:
        """int64 [...], in range -> [..., C]."""

    @abstractmethod
    def final_norm(self) -> RMSNorm:
        """The norm behind the last layer."""

    @abstractmethod
    def head(self) -> AbstractContextManager[Iterator[Tensor]]:
        """The output projection [V, C] in pieces of ``HEAD_ROWS`` rows; each serves until the next is asked for."""

    def new_cache(self, batch_size: int) -> KVCache:
        """An empty latent cache."""
        return KVCache(self.architecture.num_layers, batch_size, self.device)

    def forward(
        self,
        tokens: Tensor,
        *,
        cache: TargetCache | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        capture_points: Sequence[int] = (),
    ) -> TargetOutput:
        """See ``Target.forward``."""
        inputs = checked_inputs(self.config, tokens, cache, positions, mask, capture_points)
        prefixes = None if inputs.cache is None else inputs.cache.prefixes()
        stream = self.embed_rows(tokens).unsqueeze(1)  # [B, 1, Q, C]
        captured: dict[int, Tensor] = {}
        pending: list[Rows] = []
        with self.layers(0, _work_of_rows(tokens, inputs.cache, self.architecture.attention)) as layers:
            for index, layer in enumerate(layers):
                if index in capture_points:
                    captured[index] = stream.squeeze(1).to(self.device)
                stream, own_positions, own_mask = (
                    part.to(layer.device) for part in (stream, inputs.positions.unsqueeze(1), inputs.mask.unsqueeze(1))
                )
                stream, rows = layer(stream, own_positions, own_mask, None if prefixes is None else prefixes[index])
                pending.append(rows)
        stream = stream.to(self.device)
        if self.config.num_layers in capture_points:
            captured[self.config.num_layers] = stream.squeeze(1)
        if inputs.cache is not None:
            inputs.cache.offer(pending)
        return TargetOutput(captured, self.final_norm()(stream).squeeze(1))

    @torch.no_grad()
    def embed(self, sequences: Sequence[Tensor]) -> list[Tensor]:
        """See ``LayerMajorTarget.embed``."""
        lengths = [len(tokens) for tokens in sequences]
        if 0 in lengths or not lengths:
            raise Eagle3RefError(
                "embedding sequences",
                found=f"sequence {lengths.index(0)} without a token" if lengths else "no sequence",
                expected="at least one token in each",
                action="Leave empty sequences out.",
            )
        for index, tokens in enumerate(sequences):
            check_tokens(tokens[None], self.config.vocab_size, first_sequence=index)
        return list(self.embed_rows(torch.cat([tokens.to(self.device) for tokens in sequences])).split(lengths))

    @torch.no_grad()
    def stream_layers(
        self, streams: list[Tensor], *, first_layer: int = 0, cache: TargetCache | None = None
    ) -> Generator[int, None, None]:
        """See ``LayerMajorTarget.stream_layers``."""
        lengths, num_layers = [len(stream) for stream in streams], self.config.num_layers
        self._check_start(lengths, first_layer, cache)
        flat = torch.cat([stream.to(self.device, self.dtype) for stream in streams])
        streams[:] = flat.split(lengths)
        kept: list[Rows] = []
        work = Work.of_sequences(lengths, cached=cache is not None)
        with self.layers(first_layer, work) as layers:
            for index, layer in enumerate(layers, first_layer + 1):
                flat = flat.to(layer.device)
                streams[:] = flat.split(lengths)
                rows = layer.run(flat, lengths)
                if cache is not None:
                    kept.append(_padded(rows))
                del rows
                if index == num_layers:
                    flat = flat.to(self.device)
                    streams[:] = flat.split(lengths)
                    if isinstance(cache, KVCache):
                        cache.fill(kept, torch.tensor(lengths))
                yield index

    @torch.no_grad()
    def finish(self, streams: Sequence[Tensor]) -> list[Tensor]:
        """See ``LayerMajorTarget.finish``."""
        norm = self.final_norm()
        return [in_blocks(norm, stream.to(self.device, self.dtype)) for stream in streams]

    @torch.no_grad()
    def score(self, final_states: Tensor, next_tokens: Tensor) -> Scores:
        """See ``LayerMajorTarget.score``."""
        with self.head() as pieces:
            return score(final_states.to(self.device, self.dtype), next_tokens, pieces)

    def _check_start(self, lengths: list[int], first_layer: int, cache: TargetCache | None) -> None:
        if not 0 <= first_layer <= self.config.num_layers:
            raise ValueError(f"layer 0 to {self.config.num_layers}, not {first_layer}")
        if cache is not None:
            if not isinstance(cache, KVCache):
                raise TypeError(f"a cache from this target's new_cache, not {type(cache).__name__}")
            if first_layer or cache.lengths.tolist() != [0] * len(lengths):
                raise ValueError("an empty cache of as many sequences, filled from layer 0 on")


def _work_of_rows(tokens: Tensor, cache: KVCache | None, attention: MLAConfig) -> Work:
    """New rows [B, Q] of all sequences at once, behind what the cache holds, of which some may be expanded."""
    new, behind = tokens.numel(), 0 if cache is None else len(tokens) * int(cache.lengths.max())
    expanded = min(behind, EXPANDED_AT_ONCE // (attention.num_heads * (attention.qk_head_dim + attention.v_head_dim)))
    return Work(new, new, new + expanded, latent=new + behind if behind else 0)


def _padded(rows: list[Rows]) -> Rows:
    """Rows [1, 1, T, ...] of each sequence -> [B, longest T, ...]."""
    first, second = (
        pad_sequence([part[0, 0] for part in parts], batch_first=True) for parts in zip(*rows, strict=True)
    )
    return Rows(first, second)
