"""``eagle3ref doctor``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from eagle3ref.cli.console import stdout
from eagle3ref.cli.exit_status import DOES_NOT_AGREE
from eagle3ref.kernels.self_check import check_backends
from eagle3ref.report.doctor import doctor_report
from eagle3ref.report.doctor_document import doctor_document


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")] = False) -> None:
    """Say what is installed, which fast twins there are, and whether they do what the reference does.

    Exit status 1 means that a twin is here and differs, or fails.
    """
    document = doctor_document(check_backends())
    if as_json:
        typer.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        stdout.print(doctor_report(document))
    if not document["sound"]:
        raise typer.Exit(DOES_NOT_AGREE)
