"""What a capture with streamed weights will take, known before a weight is read."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.checkpoint import PassCost, plan_pass
from eagle3ref.target.streaming import StreamedTarget
from eagle3ref.trace.speeds import Speeds, measure_speeds, quantized_experts, quantized_weights


@dataclass(frozen=True)
class CapturePlan:
    """The work of a capture and the room it needs.

    Args:
        target: whose files were checked.
        passes: those to come, in order. The sequences of a pass share every reading of the weights.
        layers_done: of the first pass, by an earlier run that was stopped in it.
        longest: tokens of the longest sequence.
        memory: what the largest of them takes, bytes by what they are for.
        rounds: of the answers of a pass, at most; in each, the layers are read once more.
        answering: one such round of each pass whose prompts the target answers first, with a token of each prompt.
        disk_needed: bytes that trace and work folder still take, at most.
        disk_free: bytes.
    """

    target: StreamedTarget
    passes: tuple[PassCost, ...]
    layers_done: int
    longest: int
    memory: dict[str, int]
    rounds: int
    answering: tuple[PassCost, ...]
    disk_needed: int
    disk_free: int

    @property
    def bytes_to_read(self) -> int:
        """Of weights, by all passes; rounds of answers come on top."""
        return round(self._total([cost.bytes_to_read for cost in self.passes]))

    @property
    def flops(self) -> int:
        """Of all passes; rounds of answers come on top."""
        return round(self._total([cost.flops for cost in self.passes]))

    @property
    def unanswered(self) -> int:
        """Prompts without an answer."""
        return sum(cost.num_sequences for cost in self.answering)

    def check_room(self, folder: Path) -> None:
        """Refuse a disk that has no room for the trace in ``folder``.

        Raises:
            Eagle3RefError: with both numbers.
        """
        if self.disk_needed > self.disk_free:
            raise Eagle3RefError(
                f"planning the capture to {folder}",
                found=f"{self.disk_free:,} bytes free on its disk",
                expected=f"{self.disk_needed:,} bytes for the trace and the work folder of a pass",
                action="Make room, choose another disk, fewer capture points or fewer prompts; no weight was read.",
            )

    def measure(self) -> Speeds:
        """Sample this machine's speeds at this work; takes three seconds or so.

        Raises:
            OSError: the operating system refuses to read the checkpoint.
        """
        return measure_speeds(self.target, max((cost.num_tokens for cost in self.passes), default=1), self.longest)

    def work(self) -> dict[str, float]:
        """What the passes do, in the units of ``Speeds``; answers come on top."""
        return {
            "read": self.bytes_to_read,
            "dequantize": self._total([self._weights_to_dequantize(cost) for cost in self.passes]),
            "multiply": self._total([cost.linear_flops for cost in self.passes]),
            "attend": self._total([cost.attention_flops for cost in self.passes]),
        }

    def seconds(self, speeds: Speeds) -> dict[str, float]:
        """Expected of each kind of that work. Reading goes on beside the others."""
        return {kind: amount / getattr(speeds, kind) for kind, amount in self.work().items()}

    def answering_seconds(self, speeds: Speeds) -> float:
        """Of all rounds of answers, if none ends early and no draft helps.

        A round has few tokens. Its products wait for the weights: they cost what one row costs, which is little.
        """
        weights = sum(self._weights_to_dequantize(cost) for cost in self.answering)
        read = sum(cost.bytes_to_read for cost in self.answering)
        return self.rounds * max(read / speeds.read, weights / speeds.dequantize)

    def _weights_to_dequantize(self, cost: PassCost) -> float:
        """INT4 and FP8 weights that a pass turns into numbers."""
        routed, others = (
            sum(math.prod(weight.shape) for weight in weights)
            for weights in (quantized_experts(self.target), quantized_weights(self.target))
        )
        return others + routed * cost.experts_per_layer / self.target.architecture.moe.num_experts

    def _total(self, of_passes: Sequence[float]) -> float:
        """The first pass counts with the layers that are left of it."""
        layers = self.target.config.num_layers
        return sum(of_passes) - (of_passes[0] * self.layers_done / layers if of_passes else 0)


def plan_passes(
    target: StreamedTarget,
    passes: Sequence[Sequence[int]],
    *,
    num_capture_points: int,
    final_hidden_state: bool,
    layers_done: int,
    tokens_recorded: int,
    bytes_written: int,
    unanswered: Sequence[int],
    rounds: int,
    folder: Path,
) -> CapturePlan:
    """The plan of the passes that are left.

    Args:
        target: only the headers of its files are needed.
        passes: tokens of each sequence of each pass.
        num_capture_points: residual streams to record.
        final_hidden_state: record it too.
        layers_done, tokens_recorded: of the first pass: layers that are through, tokens that are in the trace.
        bytes_written: of the work folder.
        unanswered: prompts without an answer, of each pass that has some.
        rounds: as of ``CapturePlan``.
        folder: on the disk of the trace; it need not be there yet.
    """

    def cost_of(lengths: Sequence[int]) -> PassCost:
        return plan_pass(
            target.census,
            target.architecture,
            lengths,
            num_capture_points=num_capture_points,
            with_final=final_hidden_state,
            dtype=target.dtype,
        )

    costs = tuple(map(cost_of, passes))
    recorded = costs[0].trace_bytes * tokens_recorded // costs[0].num_tokens if costs else 0
    # While a pass is assembled its states move into the trace one sequence at a time. Its streams stay to the end, and
    # are there twice while a layer's are written.
    streams = 2 * max((cost.stream_bytes for cost in costs), default=0)
    return CapturePlan(
        target=target,
        passes=costs,
        layers_done=layers_done,
        longest=max((max(lengths) for lengths in passes), default=1),
        memory=target.memory_parts(max(passes, key=sum)) if passes else {},
        rounds=rounds,
        answering=tuple(cost_of([1] * number) for number in unanswered),
        disk_needed=max(0, sum(cost.trace_bytes for cost in costs) - recorded + streams - bytes_written),
        disk_free=shutil.disk_usage(_existing(folder)).free,
    )


def _existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
