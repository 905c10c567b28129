"""Traps in the command as a whole: nothing that turns speculation on, other folders, a backend of no known name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from eagle3ref.explain.case import Case
from eagle3ref.explain.flag_names import DIALECTS
from eagle3ref.explain.trap import Trap, read_in
from eagle3ref.explain.wiring import Wiring

_HUB_FOLDER = "models--"  # a hub's local cache: models--OWNER--NAME/snapshots/REVISION


def speculation_assumed(wiring: Wiring) -> Iterator[Trap]:
    """A command that says nothing of speculation: people explain files alone, and also forget the flags."""
    case = wiring.case
    flags = case.flags
    counts = (flags.algorithm, flags.draft_path, flags.num_steps, flags.topk, flags.num_draft_tokens)
    if case.profile.engine not in DIALECTS or counts != (None,) * 5 or _is_incomplete(case):
        return
    yield Trap(
        "speculation-assumed",
        "harmless",
        f"no speculative settings in this command: what follows assumes {case.profile.capture_setting}",
        "such a server would not speculate; its log has no acceptance figures",
        f"Give the server's own flags, with {case.profile.capture_setting}.",
        read_in(case.profile.engine, "its argument parser"),
    )


def incomplete_config(wiring: Wiring) -> Iterator[Trap]:
    """vLLM's settings without the number of tokens, or without the draft."""
    case = wiring.case
    if not _is_incomplete(case):
        return
    missing, seen = "num_speculative_tokens", "ValueError: num_speculative_tokens must be provided"
    if case.flags.num_steps is not None:
        if not wiring.captures:  # another method may need no draft, and is a trap of its own
            return
        missing, seen = "model", "ValueError: num_speculative_tokens was provided but without speculative model"
    value = "3" if missing == "num_speculative_tokens" else f'"{case.draft.folder}"'
    yield Trap(
        "incomplete-config",
        "fails at start",
        f"speculative settings without {missing}",
        seen,
        f'Add "{missing}": {value} to --speculative-config.',
        read_in("vLLM", "config/speculative.py"),
    )


def other_folders(wiring: Wiring) -> Iterator[Trap]:
    """A command for other files than those that are explained."""
    case = wiring.case
    pairs = {
        "draft": (case.flags.draft_path, str(case.draft.folder)),
        "target": (case.flags.target_path, case.target.path),
    }
    for role, (named, explained) in pairs.items():
        if named and explained and _differ(named, Path(explained)):
            yield Trap(
                "other-folder",
                "harmless",
                f"the command names the {role} {named}, and {explained} is explained",
                "nothing, if the two hold the same files",
                f"Explain {named}, or serve {explained}.",
                read_in(case.profile.engine, "its argument parser"),
            )


def unknown_backend(wiring: Wiring) -> Iterator[Trap]:
    """An attention backend that the newest release has not."""
    case = wiring.case
    flags, dialect = case.flags, DIALECTS.get(case.profile.engine)
    named = {flags.attention_backend, flags.decode_attention_backend, flags.draft_attention_backend} - {None}
    for name in sorted(str(name) for name in named):
        if dialect is not None and name.lower() not in dialect.backends:
            yield Trap(
                "unknown-backend",
                "harmless",
                f"no attention backend {name} is known here",
                "an error while the server starts, unless this release or a plugin has it",
                "Check the name; nothing is known here of what this backend can run.",
                read_in(case.profile.engine, "the list of its attention backends"),
            )


def _is_incomplete(case: Case) -> bool:
    """Whether vLLM was told something of speculation, and not all that it needs."""
    flags = case.flags
    settings = (
        flags.algorithm,
        flags.draft_attention_backend,
        flags.draft_quantization,
        flags.draft_context_length,
        flags.draft_sample_method,
        flags.rejection_sample_method,
        flags.parallel_drafting,
    )
    if case.profile.engine != "vLLM" or (*settings, flags.draft_path, flags.num_steps) == (None,) * 9:
        return False
    return flags.num_steps is None or flags.draft_path is None


def _differ(named: str, explained: Path) -> bool:
    """Of folders, whether they are two; of a name in a hub, or on another machine, only its last part can tell."""
    if Path(named).is_dir():
        return Path(named).resolve() != explained.resolve()
    parts = explained.resolve().parts
    cached = {part.rpartition("--")[2] for part in parts if part.startswith(_HUB_FOLDER)}
    return Path(named).name not in {parts[-1], *cached}
