"""Progress bars: by sequence with the tokens per second, by layer with the bytes per second and the time left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from eagle3ref.decode import RoundDone
from eagle3ref.report.style import duration, size
from eagle3ref.trace.passes import LayerDone
from eagle3ref.trace.plan import CapturePlan

_WHOLE_RUN = 10.0**9  # seconds over which the speed is averaged: a layer may take many minutes


class _TokensPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        seconds, num_tokens = task.finished_time or task.elapsed, task.fields["num_tokens"]
        return Text(f"{num_tokens / seconds:,.0f} tok/s" if seconds and num_tokens else "")


class SequenceProgress(Progress):
    """Bars that go on by sequences and tell the tokens per second."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(16), MofNCompleteColumn(), _TokensPerSecond())
        super().__init__(*columns, TimeElapsedColumn(), console=console)

    def begin(self, description: str, total: int, completed: int = 0) -> Callable[[int], None]:
        """A new bar; what is returned takes the number of tokens of each further sequence."""
        bar = self.add_task(description, total=total, completed=completed, num_tokens=0)
        so_far = 0

        def advance(num_tokens: int) -> None:
            nonlocal so_far
            so_far += num_tokens
            self.update(bar, advance=1, num_tokens=so_far)

        return advance


class _Rates(ProgressColumn):
    """What the layers or rounds so far say; empty until something is known."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["rates"])


class LayerProgress(Progress):
    """Bars of a streamed capture: the layers of all its passes, and the rounds of answers while there are any.

    Where no bar can be seen, in a file or a pipe, each layer and each round becomes a line.
    """

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(16), MofNCompleteColumn(), _Rates())
        remaining = TimeRemainingColumn(elapsed_when_finished=True)
        super().__init__(*columns, remaining, console=console, speed_estimate_period=_WHOLE_RUN)
        self._layers: TaskID | None = None
        self._rounds: TaskID | None = None
        self._reached = self._bytes_read = self._bytes = self._tokens = 0
        self._at, self._seconds = time.monotonic(), 0.0

    def begin(self, plan: CapturePlan) -> None:
        """The passes are about to start."""
        self._reached = plan.layers_done
        total = len(plan.passes) * plan.target.config.num_layers
        self._layers = self.add_task("layers", total=total, completed=self._reached, rates="")
        self._at = time.monotonic()

    def on_layer(self, done: LayerDone) -> None:
        """All sequences of a pass have reached another layer."""
        assert self._layers is not None  # begin comes first
        reached, now = done.number * done.num_layers + done.layer, time.monotonic()
        if reached == self._reached + 1:
            self._seconds += now - self._at
            self._bytes += done.bytes_read - self._bytes_read
            self._tokens += done.num_tokens
        self._reached, self._at, self._bytes_read = reached, now, done.bytes_read
        rates = ""
        if self._seconds:
            tokens = self._tokens / done.num_layers / self._seconds
            rates = f"{size(round(self._bytes / self._seconds))}/s {tokens:,.1f} tok/s"
        name = f"pass {done.number + 1} of {done.num_passes}, layer {done.layer}:"
        self.update(self._layers, completed=reached, description=name, rates=rates)
        self._tell(name.removesuffix(":"), self._layers, rates)
        if self._rounds is not None:
            self.remove_task(self._rounds)
            self._rounds = None

    def on_round(self, done: RoundDone) -> None:
        """Another round of answers is through."""
        self._at = time.monotonic()
        total = done.num_rounds + math.ceil(done.rounds_left)
        rates = f"{done.num_open} of {done.num_prompts} open, {done.num_tokens:,} tokens"
        if self._rounds is None:
            self._rounds = self.add_task("rounds of answers", total=total, rates=rates)
        self.update(self._rounds, total=total, completed=done.num_rounds, rates=rates)
        self._tell("answers", self._rounds, rates)

    def _tell(self, what: str, bar: TaskID, rates: str) -> None:
        if self.console.is_terminal:
            return
        task = next(task for task in self.tasks if task.id == bar)
        left = "" if task.time_remaining is None else f", {duration(task.time_remaining)} left"
        self.console.print(f"{what}: {task.completed:.0f} of {task.total:.0f}, {rates}{left}", soft_wrap=True)
