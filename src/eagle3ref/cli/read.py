"""``eagle3ref read``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from eagle3ref.cli.console import stderr, stdout
from eagle3ref.cli.evidence import gather
from eagle3ref.cli.nothing_read import nothing_read
from eagle3ref.report.readings import live_line, readings_report
from eagle3ref.servers import Evidence, NotAcceptance, Reading, read_file
from eagle3ref.servers.evidence.summary import summarize


def read(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Logs, metrics, JSON; packed too; - is stdin.")],
    follow: Annotated[bool, typer.Option("--follow", help="Go on as the file grows, until Ctrl-C.")] = False,
    num_draft_tokens: Annotated[int | None, typer.Option(min=2, help="Of the server, the root counted.")] = None,
    num_steps: Annotated[int | None, typer.Option(min=1, help="Of the server.")] = None,
    engine: Annotated[str | None, typer.Option(metavar="NAME==VERSION", help="The server, if you know it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")] = False,
) -> None:
    """Say what a server's logs, metrics, answers or benchmarks count, and what their accept rate divides by what."""
    if follow and len(paths) > 1:
        raise typer.BadParameter(f"--follow takes one path, not {len(paths)}")
    facts = None
    if follow:
        evidence = Evidence.gather(_shown(read_file(paths[0], follow=True)), until_interrupted=True)
        if not evidence.readings:
            raise nothing_read(paths, evidence)
    else:
        evidence, facts = gather(paths)
    tree = None if facts is None else facts.tree
    summary = summarize(
        evidence,
        num_draft_tokens=num_draft_tokens or (None if tree is None else tree.num_draft_tokens),
        num_steps=num_steps or (None if tree is None else tree.num_steps),
        engine=engine,
    )
    if as_json:
        typer.echo(json.dumps(summary.to_dict(), indent=1, allow_nan=False))
    else:
        stdout.print(readings_report(summary))


def _shown(statements: Iterable[Reading | NotAcceptance]) -> Iterator[Reading | NotAcceptance]:
    """The same, each reading shown as it comes, once it counts."""
    for statement in statements:
        yield statement
        if isinstance(statement, Reading):
            stderr.print(live_line(statement), soft_wrap=True)
