"""One pass, layer by layer: every sequence through layer i, then every sequence through layer i + 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import closing
from typing import Protocol

import torch
from torch import Tensor

from eagle3ref.target.base import LayerMajorTarget, Scores
from eagle3ref.trace.passes import Pass
from eagle3ref.trace.sequence import RecordedSequence


class KeptStates(Protocol):
    """What a pass leaves behind on its way through the layers."""

    def resume(self) -> tuple[int, list[Tensor]] | None:
        """The layer that an earlier run of this pass had reached, and the streams [T, C] entering it."""
        ...

    def keep(self, layer: int, streams: Sequence[Tensor]) -> None:
        """Take what is needed of the streams that enter ``layer``; they are overwritten when this has returned."""
        ...

    def finish(self) -> None:
        """Return when everything is kept."""
        ...

    def sequence(self, index: int) -> dict[int, Tensor]:
        """Capture point -> [T, C] of one sequence, on the CPU."""
        ...

    def forget(self, index: int) -> None:
        """That sequence is in the trace."""
        ...


class StatesInMemory:
    """Captured states of a pass that takes seconds: a kill loses it.

    Args:
        capture_points: ascending.
    """

    def __init__(self, capture_points: Sequence[int]) -> None:
        self._states: dict[int, list[Tensor | None]] = {point: [] for point in capture_points}

    def resume(self) -> None:
        """See ``KeptStates``; nothing is left of an earlier run."""

    def keep(self, layer: int, streams: Sequence[Tensor]) -> None:
        """See ``KeptStates``."""
        if layer in self._states:
            self._states[layer] = [stream.to("cpu", copy=True) for stream in streams]

    def finish(self) -> None:
        """See ``KeptStates``."""

    def sequence(self, index: int) -> dict[int, Tensor]:
        """See ``KeptStates``."""
        rows = {point: states[index] for point, states in self._states.items()}
        return {point: tensor for point, tensor in rows.items() if tensor is not None}

    def forget(self, index: int) -> None:
        """See ``KeptStates``."""
        for states in self._states.values():
            states[index] = None


@torch.inference_mode()
def record_layer_major(
    target: LayerMajorTarget,
    group: Pass,
    kept: KeptStates,
    done: Set[str],
    *,
    final_hidden_state: bool,
    on_layer: Callable[[int], None] = lambda _: None,
) -> Iterator[RecordedSequence]:
    """Run a pass, or the rest of it, and give its sequences in their order.

    Args:
        target: the model.
        group: the pass.
        kept: where the states go.
        done: ids of the sequences that are in the trace already.
        final_hidden_state: record it too.
        on_layer: called with each layer that all streams have reached.
    """
    sequences = group.sequences
    final = _run_layers(target, sequences, kept, on_layer)
    scores = _scores(target, final, sequences)
    lengths = [len(tokens) for tokens in sequences]
    rows = zip(final.split(lengths), scores.argmax.split(lengths), scores.logprob_gap.split(lengths), strict=True)
    for i, (prompt, tokens, (states, argmax, gap)) in enumerate(zip(group.prompts, sequences, rows, strict=True)):
        if prompt.id in done:
            kept.forget(i)
            continue
        yield RecordedSequence(
            id=prompt.id,
            tokens=tokens,
            prompt_length=len(prompt.tokens),
            aux_hidden_states=kept.sequence(i),
            argmax=argmax,
            final_hidden_state=states.cpu() if final_hidden_state else None,
            logprob_gap=gap,
        )
        kept.forget(i)


def _run_layers(
    target: LayerMajorTarget, sequences: list[Tensor], kept: KeptStates, on_layer: Callable[[int], None]
) -> Tensor:
    """Final hidden states of all sequences behind each other, [sum of T, C]."""
    resumed = kept.resume()
    if resumed is None:
        first_layer, streams = 0, target.embed(sequences)
        kept.keep(0, streams)
    else:
        first_layer, streams = resumed
        on_layer(first_layer)
    with closing(target.stream_layers(streams, first_layer=first_layer)) as layers:
        for layer in layers:
            kept.keep(layer, streams)
            on_layer(layer)
    kept.finish()
    return _finished(target, streams)


def _finished(target: LayerMajorTarget, streams: list[Tensor]) -> Tensor:
    """Final hidden states behind each other, made one sequence at a time: besides the streams they are all there is."""
    num_rows, first = sum(len(stream) for stream in streams), streams[0]
    final = torch.empty(num_rows, first.shape[1], dtype=first.dtype, device=target.device)
    for rows, stream in zip(final.split([len(stream) for stream in streams]), streams, strict=True):
        rows.copy_(target.finish([stream])[0])
    return final


def _scores(target: LayerMajorTarget, final: Tensor, sequences: list[Tensor]) -> Scores:
    """On the CPU. Nothing follows the last token of a sequence: it stands in for what does, and has no gap."""
    following = torch.cat([torch.cat((tokens[1:], tokens[-1:])) for tokens in sequences])
    argmax, gap = target.score(final, following.to(final.device))
    gap = gap.to("cpu", torch.float32, copy=True)
    gap[torch.tensor([len(tokens) for tokens in sequences]).cumsum(0) - 1] = 0
    return Scores(argmax.cpu(), gap)
