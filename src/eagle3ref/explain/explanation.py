"""The answer to "what will this engine do with these files": the wiring in lines, and the traps in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3ref.config import TargetConfig
from eagle3ref.engines import engine_profile, engine_release
from eagle3ref.explain.case import Case, DraftFiles
from eagle3ref.explain.flags import parse_server_flags
from eagle3ref.explain.statements import Statement, statements
from eagle3ref.explain.trap import Trap
from eagle3ref.explain.traps import find_traps
from eagle3ref.explain.wiring import Wiring, resolve_wiring


@dataclass(frozen=True)
class Explanation:
    """What one engine does with one draft, one target and one set of flags.

    Args:
        wiring: what runs, of what files and flags.
        statements: the wiring in sentences, each with its source.
        traps: what goes wrong or surprises, the worst first.
    """

    wiring: Wiring
    statements: tuple[Statement, ...]
    traps: tuple[Trap, ...]

    @property
    def case(self) -> Case:
        """What was asked about."""
        return self.wiring.case

    @property
    def is_wrong(self) -> bool:
        """Whether the server fails, or does something else than was meant."""
        return any(trap.is_wrong for trap in self.traps)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        case, wiring = self.case, self.wiring
        return {
            "engine": case.release,
            "profile": case.profile.name,
            "draft": str(case.draft.folder),
            "target": case.target.path or case.target.name,
            "flags": case.flags.said,
            "unrelated_flags": list(case.flags.unrelated),
            "unknown_flags": list(case.flags.unknown),
            "tree": None if wiring.tree.tree is None else asdict(wiring.tree.tree),
            "captured": list(wiring.captured.points) if wiring.captures and not wiring.captured.failure else None,
            "trained_on": None if wiring.trained is None else list(wiring.trained),
            "embedding": wiring.embedding,
            "lm_head": wiring.lm_head,
            "ignored_keys": list(wiring.ignored_keys),
            "unknown_tensors": list(wiring.tensors.unknown),
            "missing_tensors": list(wiring.tensors.missing),
            "sampled_rule": None if wiring.rule is None else asdict(wiring.rule),
            "statements": [asdict(statement) for statement in self.statements],
            "traps": [asdict(trap) for trap in self.traps],
            "wrong": self.is_wrong,
        }


def explain(
    draft: str | Path,
    target: str | Path | TargetConfig,
    engine: str,
    flags: Sequence[str] = (),
    *,
    prompt_length: int | None = None,
    capture_points: Sequence[int] | None = None,
) -> Explanation:
    """Say what an engine will really run, and what goes wrong, before any server is started.

    Reads config.json and the names and shapes of the draft's tensors, and only small tensors themselves; of the target,
    config.json, and its embedding if both are small.

    Args:
        draft: the draft's folder.
        target: the target's folder, or its config.
        engine: as ``engine_profile`` takes it, e.g. ``"sglang==0.5.23"``.
        flags: the words of the server's command line, as the user typed them.
        prompt_length: tokens of the longest sequence to be expected.
        capture_points: what the draft was trained on, when its files do not say so.

    Raises:
        Eagle3RefError: an unknown engine or version, no EAGLE-3 draft, a draft of another target, or a flag that has no
            value.
    """
    profile = engine_profile(engine)
    config = target if isinstance(target, TargetConfig) else TargetConfig.from_folder(target)
    case = Case(
        profile=profile,
        release=engine_release(engine),
        flags=parse_server_flags(profile.engine, flags),
        draft=DraftFiles.open(draft),
        target=config,
        target_folder=config.path or config.name if isinstance(target, TargetConfig) else str(target),
        prompt_length=prompt_length,
        capture_points=None if capture_points is None else tuple(capture_points),
    )
    wiring = resolve_wiring(case)
    return Explanation(wiring, statements(wiring), find_traps(wiring))
