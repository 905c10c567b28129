"""Whether fc's output is large enough for the norm that reads it; its mean says nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3ref.config import DraftConfig
from eagle3ref.draft import Eagle3Draft
from eagle3ref.inspection.finding import Finding
from eagle3ref.inspection.stored import StoredDraft, blocks, wide
from eagle3ref.trace import Trace

_ROWS_OF_STATES = 2048
_SILENT_SHARE = 1e-8


@dataclass(frozen=True)
class FcScale:
    """What ``hidden_norm`` gets from fc: it divides by ``sqrt(mean square + eps)``.

    Args:
        mean_square: of fc's output.
        eps: of ``hidden_norm``.
        weight_mean: of the entries of fc.
        weight_rms: of the entries of fc.
        shares: of the output's mean square for inputs of unit RMS, what each capture point brings; sums to 1.
        inputs: which states fc read.
    """

    mean_square: float
    eps: float
    weight_mean: float
    weight_rms: float
    shares: tuple[float, ...]
    inputs: str

    @property
    def kept(self) -> float:
        """RMS of the normed output, before the norm's weight: 1 if eps does not matter, near 0 if it drowns fc."""
        return math.sqrt(self.mean_square / (self.mean_square + self.eps)) if self.mean_square else 0.0

    def __str__(self) -> str:
        shares = " + ".join(f"{100 * share:.0f}" for share in self.shares)
        return (
            f"RMS {math.sqrt(self.mean_square):.3g} on {self.inputs}; hidden_norm (eps {self.eps:g}) makes "
            f"RMS {self.kept:.3f} of it. Weights by capture point {shares} %, mean {self.weight_mean:.1e}, RMS "
            f"{self.weight_rms:.1e}; a mean near 0 is as it should be"
        )


def measure_fc(stored: StoredDraft, config: DraftConfig, draft: Eagle3Draft | None, trace: Trace | None) -> FcScale:
    """The scale of fc's output: on a trace's states if draft and trace are given, else for inputs of unit RMS.

    Norms before fc make the RMS of its inputs their own weights'.
    """
    weight = stored.tensor("fc.weight")
    square_sums = torch.zeros(weight.shape[1], dtype=torch.float64)
    total = 0.0
    for (block,) in blocks(weight):
        values = wide(block)
        square_sums += values.square().sum(0, dtype=torch.float64)
        total += float(values.sum(dtype=torch.float64))
    by_input = square_sums / weight.shape[0] * _input_squares(stored, config)
    by_point = by_input.view(config.num_aux_hidden_states, -1).sum(1)
    mean_square, inputs = float(by_point.sum()), "inputs of unit RMS"
    if trace is not None:
        inputs += " (the trace's states need the loaded draft, and its capture points)"
    states = None if draft is None or trace is None else sampled_states(trace, draft.capture_points)
    if draft is not None and states is not None:
        with torch.inference_mode():
            mean_square = float(draft.fuse(states.to(draft.fc.weight.device)).double().square().mean())
        inputs = f"{len(states):,} states of the trace"
    shares = (by_point / by_point.sum()).tolist() if by_point.sum() else [0.0] * len(by_point)
    weight_rms = math.sqrt(float(square_sums.sum()) / weight.numel())
    return FcScale(mean_square, config.rms_norm_eps, total / weight.numel(), weight_rms, tuple(shares), inputs)


def check_fc(scale: FcScale) -> Iterator[Finding]:
    """Output below eps, and capture points that fc does not look at."""
    if 0 < scale.mean_square < scale.eps:
        yield Finding(
            "fc.weight",
            f"gives a mean square of {scale.mean_square:.1e} on {scale.inputs}, below hidden_norm's eps {scale.eps:g}",
            f"the norm makes RMS {scale.kept:.2g} of it instead of 1, so the draft hardly sees the target.",
            "Check that fc was trained and saved in a dtype that holds it, and rms_norm_eps in config.json.",
            True,
        )
    silent = [i for i, share in enumerate(scale.shares) if share < _SILENT_SHARE]
    if scale.mean_square and silent:
        which = " and ".join(str(i + 1) for i in silent)
        yield Finding(
            "fc.weight",
            f"ignores capture point {which} of {len(scale.shares)}: its columns are zeros beside the others",
            "what the target says at that layer is thrown away; it was trained on states that were not there.",
            "Check what the training recorded, and that the shards of fc were joined.",
            False,
        )


def sampled_states(trace: Trace, points: tuple[int, ...]) -> Tensor | None:
    """[rows, A * C], of the first sequences; None if the trace has not recorded these points."""
    if not set(points) <= set(trace.header.capture_points):
        return None
    rows: list[Tensor] = []
    for sequence in trace:
        rows.append(torch.cat([sequence.aux_hidden_states[point] for point in points], -1))
        if sum(map(len, rows)) >= _ROWS_OF_STATES:
            break
    return torch.cat(rows)[:_ROWS_OF_STATES] if rows else None


def _input_squares(stored: StoredDraft, config: DraftConfig) -> Tensor:
    """float64 [A * Ct], the mean square of each input of fc for states of unit RMS."""
    if config.norm_before_fc and "input_norm.weight" in stored:
        return stored.tensor("input_norm.weight").double().square()
    names = [f"fc_norm.{i}.weight" for i in range(config.num_aux_hidden_states)]
    if config.fc_norm and all(name in stored for name in names):
        return torch.cat([stored.tensor(name).double().square() for name in names])
    return torch.ones(config.num_aux_hidden_states * config.target_hidden_size, dtype=torch.float64)
