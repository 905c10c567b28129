"""A draft for ``replay`` and ``decode``: as it was trained, or as an engine would run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from eagle3ref.cli.console import stderr
from eagle3ref.cli.options import DEFAULT_TREE
from eagle3ref.config import AcceptanceRule, TreeConfig, default_rule
from eagle3ref.draft import Eagle3Draft, load_draft
from eagle3ref.engines import EngineProfile
from eagle3ref.explain import EngineDraft, load_draft_as
from eagle3ref.replay import gives_probabilities, replayability
from eagle3ref.target import Target
from eagle3ref.trace import Trace
from eagle3ref.trace.format import file_sha256


@dataclass(frozen=True)
class Setup:
    """What runs.

    Args:
        draft: loaded.
        tree: its settings.
        rule: at temperature > 0; None for the default.
        as_engine: the draft as an engine runs it; None for the draft as it was trained.
    """

    draft: Eagle3Draft
    tree: TreeConfig
    rule: AcceptanceRule | None
    as_engine: EngineDraft | None = None

    @property
    def profile(self) -> EngineProfile | None:
        """Of the engine."""
        return None if self.as_engine is None else self.as_engine.profile

    @property
    def draws_seeded(self) -> bool:
        """Whether the server's flags ask for SGLang's deterministic inference."""
        return self.as_engine is not None and bool(self.as_engine.explanation.case.flags.deterministic)


def set_up(
    context: typer.Context,
    engine: str | None,
    folder: Path,
    target: Target | Path | None,
    tree: TreeConfig | None,
    rule: AcceptanceRule | None,
    *,
    variant: Mapping[str, Any] | None = None,
    **options: Any,
) -> Setup:
    """Load the draft, and say on stderr where everything comes from and what the engine does differently.

    Args:
        context: whose further words are the server's flags.
        engine: None for the draft as it was trained.
        folder: of the draft.
        target: or its folder.
        tree: as asked for; None if nothing was.
        rule: as asked for; None if nothing was.
        variant: readings of the draft to measure with, which no engine has.
        options: device, dtype and capture_points.

    Raises:
        Eagle3RefError: as ``load_draft`` and ``load_draft_as``.
    """
    if engine is None:
        if context.args:
            context.fail(f"No such option or argument: {' '.join(context.args)}. Server flags need --engine.")
        draft = load_draft(folder, target=target, **(variant or {}), **options)
        _say(draft)
        return Setup(draft, tree or DEFAULT_TREE, rule)
    if target is None:
        context.fail("--engine needs the target: give --target.")
    if any(value is not None and value is not False for value in (variant or {}).values()):
        context.fail(f"An engine reads the draft's files as they are: leave {', '.join(variant or {})} out.")
    found = load_draft_as(engine, folder, target, context.args, **options)
    _say(found.draft)
    name = found.explanation.case.engine
    for difference in found.differences:
        stderr.print(Text.assemble((f"{name}: ", "bold yellow"), difference))
    if not found.differences:
        stderr.print(Text(f"{name}: runs the draft as it was trained", style="dim"))
    return Setup(found.draft, found.tree(tree), found.rule(rule), found)


def is_of_use(target: Path | None, trace: Trace, rule: AcceptanceRule | None) -> bool:
    """Whether the target's output projection would give the probabilities that the rule can use."""
    verdict = replayability(
        rule or default_rule(trace.header.sampling.temperature),
        trace.header,
        has_final_hidden_state=len(trace) > 0 and trace[0].final_hidden_state is not None,
        has_target=target is not None and gives_probabilities(target),
    )
    return verdict.expected


def recorded_target(trace: Trace) -> Path | None:
    """The target that the trace names, if it is still there: that config.json, not another one in its place."""
    recorded = trace.header.target
    try:
        same = file_sha256(Path(recorded.path) / "config.json") == recorded.config_sha256
    except (OSError, ValueError):  # nothing there, or no path at all
        return None
    return Path(recorded.path) if recorded.path and same else None


def _say(draft: Eagle3Draft) -> None:
    for part, origin in draft.origins.items():
        stderr.print(Text(f"{part}: {origin}", style="dim"))
