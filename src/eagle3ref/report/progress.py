"""Progress bars by sequence, with the tokens per second."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text


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
