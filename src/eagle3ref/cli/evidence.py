"""Evidence on the command line: files, journals and the server's own flags, in one row of words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import typer

from eagle3ref.cli.nothing_read import nothing_read, refuse_what_is_none
from eagle3ref.config import TreeConfig
from eagle3ref.engines import EngineProfile, engine_profile
from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers import Evidence, ServerFacts, is_journal, read_file, read_journal

EVIDENCE_HELP = "Logs, metrics, answers, benchmark files, journals of a live run; - is stdin. Server flags go last."


def split_flags(context: typer.Context, words: Sequence[str]) -> list[str]:
    """The paths among the words; the server's flags, which follow them, go to ``context.args``."""
    first = next((i for i, word in enumerate(words) if word.startswith("-") and word != "-"), len(words))
    context.args = list(words[first:])
    return list(words[:first])


def gather(paths: Sequence[str]) -> tuple[Evidence, ServerFacts | None]:
    """Everything that the files and journals say, and what a live server said of itself.

    Raises:
        Eagle3RefError: a path that cannot be read or is no evidence, nothing about acceptance, or journals of different
            servers.
    """
    refuse_what_is_none(paths)
    journals = [Path(path) for path in paths if path != "-" and Path(path).is_dir() and is_journal(Path(path))]
    collections = {str(journal): read_journal(journal) for journal in journals}
    servers = [collection.server for collection in collections.values()]
    if len({(server.engine_name, server.model, server.tree) for server in servers}) > 1:
        raise Eagle3RefError(
            "reading the evidence",
            found=f"journals of {len(servers)} servers that are not alike",
            expected="evidence of one server",
            action="Check one after the other.",
        )
    # One statement at a time: a log may be larger than the memory.
    statements = (collections[path].readings if path in collections else read_file(path) for path in map(_plain, paths))
    evidence = Evidence.gather(chain.from_iterable(statements))
    if not evidence.readings:
        raise nothing_read(paths, evidence)
    return evidence, servers[0] if servers else None


def _plain(path: str) -> str:
    """As ``Path`` writes it, so that ``run/`` is ``run``."""
    return path if path == "-" else str(Path(path))


def stated_tree(evidence: Evidence, facts: ServerFacts | None) -> TreeConfig | None:
    """The tree that the server states, or that its figures give; None if they leave it open.

    Where only the depth or only the number of draft tokens is stated, it is a chain if the engine has nothing else.
    """
    if facts is not None and facts.tree is not None:
        return facts.tree
    for reading in evidence.readings:
        steps, drafts = reading.num_steps, reading.num_draft_tokens
        if reading.tool == "vLLM" and (steps or drafts or reading.accept_rate_at):
            steps = steps or (drafts - 1 if drafts else len(reading.accept_rate_at))
            return TreeConfig(steps, 1, steps + 1)
        if steps and drafts and (reading.topk is not None or drafts == steps + 1):
            return TreeConfig(steps, reading.topk or 1, drafts)
    return None


def no_tree(evidence: Evidence, doing: str) -> Eagle3RefError:
    """For evidence that leaves the tree open, where nobody gave one."""
    return Eagle3RefError(
        doing,
        found=f"{len(evidence.readings)} statements of the server, none of which says what tree it runs",
        expected="the settings that it runs with: acceptance without them means nothing",
        action="Give --num-steps, --topk and --num-draft-tokens, or --engine with the server's flags.",
    )


def stated_profile(facts: ServerFacts | None) -> EngineProfile | None:
    """Of the engine that the server says it is; None if it does not say, or its release was not read."""
    if facts is None or facts.engine_name is None:
        return None
    try:
        return engine_profile(facts.engine_name)
    except Eagle3RefError:
        return None
