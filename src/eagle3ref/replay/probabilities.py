"""The target's probabilities at recorded positions: final hidden states through its output projection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from eagle3ref.config import TargetConfig
from eagle3ref.config.target import KIMI_MODEL_TYPES
from eagle3ref.errors import Eagle3RefError
from eagle3ref.sampling import argmax_first, target_probs
from eagle3ref.target import Target, shared_weights
from eagle3ref.trace import RecordedSequence, Trace, TraceHeader

# Architectures whose logits are the output projection and nothing else: no bias, factor or cap.
_PLAIN_HEADS = frozenset(KIMI_MODEL_TYPES) | {
    "deepseek_v2",
    "deepseek_v3",
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
}
_LOGITS_AT_ONCE = 2**24
_CHECKED_ROWS = 16


class TargetHead(NamedTuple):
    """Final hidden states [n, C] of this dtype and device -> logits [n, V]."""

    logits: Callable[[Tensor], Tensor]
    dtype: torch.dtype
    device: torch.device


class RecordedProbabilities:
    """What the target would have drawn from, after any token of some recorded sequences.

    Args:
        sequences: with their final hidden states, which are read row by row.
        head: of the target.
        header: of their trace, for the vocabulary and for temperature, top-k and top-p.
    """

    def __init__(self, sequences: Sequence[RecordedSequence], head: TargetHead, header: TraceHeader) -> None:
        self._states = [final_states(sequence) for sequence in sequences]
        self._head, self.sampling = head, header.sampling
        self._rows_at_once = max(1, _LOGITS_AT_ONCE // header.target.vocab_size)

    def after(self, rows: Tensor, positions: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Blocks of (rows, positions, float64 probabilities [block, V] of the token after each), few enough to be held.

        Args:
            rows: int64 [n], which sequence.
            positions: int64 [n], token index.
        """
        blocks = zip(rows.split(self._rows_at_once), positions.split(self._rows_at_once), strict=True)
        for some_rows, some_positions in blocks:
            pairs = zip(some_rows.tolist(), some_positions.tolist(), strict=True)
            states = torch.stack([self._states[row][position] for row, position in pairs])
            logits = self._head.logits(states.to(self._head.device, self._head.dtype))
            probs = target_probs(
                logits,
                temperature=self.sampling.temperature,
                top_k=self.sampling.top_k,
                top_p=self.sampling.top_p,
            )
            yield some_rows, some_positions, probs.double().to(rows.device)


def final_states(sequence: RecordedSequence) -> Tensor:
    """The final hidden states of a sequence, [T, C].

    Raises:
        Eagle3RefError: none were recorded.
    """
    if sequence.final_hidden_state is not None:
        return sequence.final_hidden_state
    raise Eagle3RefError(
        f"computing the target's probabilities along sequence {sequence.id!r}",
        found="no final hidden state in the record",
        expected="one for each token",
        action="Capture again with --final-hidden-state, or replay without the target.",
    )


def target_head(target: Target | str | Path, trace: Trace, device: torch.device) -> TargetHead:
    """The output projection of the target that a trace was recorded from; nothing else of a folder is read.

    Args:
        target: loaded, or its folder.
        trace: with final hidden states.
        device: where the projection of a folder goes.

    Raises:
        Eagle3RefError: another target than the trace's, one whose logits are more than a projection and that is not
            loaded, no final hidden states, or a projection that does not lead from them to the recorded choices.
    """
    shared = shared_weights(target)
    _check_identity(shared.config, trace.header)
    weight = shared.lm_head()
    if isinstance(target, str | Path):
        _check_plain(shared.config)
        weight = weight.to(device, trace.header.torch_dtype)
        head = TargetHead(lambda states: torch.nn.functional.linear(states, weight), weight.dtype, device)
    else:
        head = TargetHead(target.logits, weight.dtype, weight.device)
    _check_choices(head, trace[0])
    return head


def gives_probabilities(target: Target | str | Path) -> bool:
    """Whether ``target_head`` can read this target: any loaded one, or the folder of one with a plain head."""
    return not isinstance(target, str | Path) or TargetConfig.from_folder(target).model_type in _PLAIN_HEADS


def _check_identity(config: TargetConfig, header: TraceHeader) -> None:
    if config.config_sha256 != header.target.config_sha256:
        raise Eagle3RefError(
            "taking the target's probabilities",
            found=f"target {config.name} with config.json {config.config_sha256[:12] or 'unknown'}",
            expected=f"the recorded target {header.target.name} with {header.target.config_sha256[:12] or 'unknown'}",
            action="Pass the target that the trace was recorded from.",
        )


def _check_plain(config: TargetConfig) -> None:
    if config.model_type not in _PLAIN_HEADS:
        raise Eagle3RefError(
            f"taking the probabilities of target {config.path} from its folder",
            found=f"model_type {config.model_type!r}",
            expected=f"one whose logits are known to be the output projection alone: {', '.join(sorted(_PLAIN_HEADS))}",
            action="Load it with load_target and pass the loaded target: it knows its factors and caps.",
        )


def _check_choices(head: TargetHead, sequence: RecordedSequence) -> None:
    """Fine-tunes share a config.json, and states may be recorded before the norm: look at what comes out."""
    states = final_states(sequence)[-_CHECKED_ROWS:]
    if sequence.argmax is None:
        return
    wanted = sequence.argmax[-_CHECKED_ROWS:]
    same = argmax_first(head.logits(states.to(head.device, head.dtype))).cpu() == wanted
    if 2 * int(same.sum()) < len(same):  # a few near-ties are the dtype's
        raise Eagle3RefError(
            f"taking the target's probabilities along sequence {sequence.id!r}",
            found=f"first choices that are the recorded ones at {int(same.sum())} of {len(same)} positions",
            expected="nearly all: the projection of the target that was recorded, on states after its final norm",
            action="Pass the target that the trace was recorded from, or record the trace again.",
        )
