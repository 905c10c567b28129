"""The command line: parses arguments and prints; what it does is elsewhere."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from eagle3ref.cli.align import align
from eagle3ref.cli.capture import capture
from eagle3ref.cli.console import error_message, own_warnings_as_notes, stderr, stdout, widen_pipes
from eagle3ref.cli.crosscheck import crosscheck
from eagle3ref.cli.decode import decode
from eagle3ref.cli.demo import demo
from eagle3ref.cli.diagnose import diagnose
from eagle3ref.cli.doctor import doctor
from eagle3ref.cli.exit_status import BAD_INPUT, INTERRUPTED, READER_GONE
from eagle3ref.cli.explain import explain
from eagle3ref.cli.export import export
from eagle3ref.cli.import_ import import_
from eagle3ref.cli.inspect import inspect
from eagle3ref.cli.options import SERVER_FLAGS
from eagle3ref.cli.read import read
from eagle3ref.cli.replay import replay
from eagle3ref.cli.speedup import speedup
from eagle3ref.cli.tune import tune
from eagle3ref.errors import Eagle3RefError
from eagle3ref.version import __version__

# What Ctrl-C leaves, by command.
_KEPT = {
    "capture": " What was captured is kept: the same command goes on from there.",
    "import": " What was written is kept: the same command goes on from there.",
    "crosscheck": " With --server, every answer is in the journal: the same command goes on from there.",
}


class _Commands(TyperGroup):
    """Turns bad input and Ctrl-C into a message and an exit status; anything else keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:  # Any: typer has moved its click Context from release to release
        try:
            with own_warnings_as_notes():
                return super().invoke(ctx)
        except Eagle3RefError as error:
            stderr.print(error_message(error))
            raise typer.Exit(BAD_INPUT) from error
        except BrokenPipeError as error:
            # As in `eagle3ref ... | head`. What is still to be flushed must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(READER_GONE) from error
        except OSError as error:
            stderr.print(error_message(_refusal(error, ctx.invoked_subcommand)))
            raise typer.Exit(BAD_INPUT) from error
        except KeyboardInterrupt as error:
            note = _KEPT.get(ctx.invoked_subcommand, "")
            stderr.print(f"interrupted.{note}", highlight=False)
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    cls=_Commands,
    help="The ground truth for EAGLE-3 speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (capture, align, read, inspect, export, speedup, demo, doctor):
    app.command()(command)
app.command("import")(import_)  # a word that Python keeps for itself
for command_with_flags in (replay, decode, crosscheck, diagnose, explain, tune):
    app.command(context_settings=SERVER_FLAGS)(command_with_flags)


def main() -> None:
    """The ``eagle3ref`` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files need not be text, nor terminals UTF-8
    widen_pipes()
    app()


def _refusal(error: OSError, command: str) -> Eagle3RefError:
    what = error.strerror or str(error)
    return Eagle3RefError(
        f"running eagle3ref {command}",
        found=f"{what}: {error.filename}" if error.filename else what,
        expected="paths that can be read and written",
        action="Check the paths, their permissions and the room on the disk.",
    )


def _version(wanted: bool) -> None:
    if wanted:
        stdout.print(f"eagle3ref {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None: ...
