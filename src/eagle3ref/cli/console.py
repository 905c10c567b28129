"""Where commands print: reports on stdout, progress and notes and errors on stderr."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from eagle3ref.errors import Eagle3RefError


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """The library would end with 1, which means "does not agree" here."""
        raise BrokenPipeError


stdout, stderr = _Console(), _Console(stderr=True)
_PIPE_WIDTH = 200  # wide enough that no number and no tensor's name is broken in two


def widen_pipes() -> None:
    """Files and pipes have no width, and 80 columns would break lines that programs read; COLUMNS still decides."""
    for console in (stdout, stderr):
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = _PIPE_WIDTH


def error_message(error: Eagle3RefError) -> RenderableType:
    """What was being done, what was found, what was expected, what to do."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in (("found", error.found), ("expected", error.expected), ("do", error.action)):
        table.add_row(Text(f"  {name}"), Text(value))
    return Group(Text.assemble(("error: ", "bold red"), (error.doing, "bold")), table)


@contextmanager
def own_warnings_as_notes() -> Iterator[None]:
    """This package's warnings become notes on stderr; those of others are shown as ever."""
    show_plainly = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if category.__module__.startswith("eagle3ref."):
            stderr.print(Text.assemble(("warning: ", "bold yellow"), str(message)))
        else:
            show_plainly(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
