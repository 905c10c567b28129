"""What was there instead of evidence, said so that the next step is clear."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from eagle3ref.errors import Eagle3RefError
from eagle3ref.servers import Evidence
from eagle3ref.trace.format import HEADER_FILE, MANIFEST_FILE

_EXPECTED = "a decode log, request fields, /metrics, or a benchmark of SGLang, vLLM, TensorRT-LLM or llama.cpp"
_ASK_FOR_THEM = (
    "Check that speculation is on. vLLM counts in its answers with --per-request-spec-decode-metrics detailed; without "
    "it, give its /metrics of before and after."
)
_HEAD = 4096  # bytes that tell a text from what is none
_TEXT_AFTER_ALL = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\xff\xfe", b"\xfe\xff")  # packed, or UTF-16


def refuse_what_is_none(paths: Sequence[str]) -> None:
    """Name a folder that cannot be evidence before gigabytes of it are read.

    Raises:
        Eagle3RefError: a checkpoint, a trace, an empty folder, or a journal without the half that explains it.
    """
    for path in paths:
        if path != "-" and (what := _folder(Path(path))) is not None:
            raise _error(path, *what)


def nothing_read(paths: Sequence[str], evidence: Evidence) -> Eagle3RefError:
    """The error for paths in which nothing speaks of acceptance."""
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in evidence.not_acceptance.items())
    named = ", ".join(paths)
    if any("cut off" in kind or "too early" in kind for kind in evidence.not_acceptance):
        return _error(named, f"no statement about acceptance; only {kinds}", "Fetch the file again: it is cut off.")
    what = None if kinds else next((what for path in paths if (what := _file(path)) is not None), None)
    if what is not None:
        return _error(named, *what)
    return _error(
        named,
        f"no statement about acceptance; only {kinds}" if kinds else "no line of a known format",
        "Check that speculation is on and its figures are logged; docs/reading.md lists what is known.",
    )


def _folder(path: Path) -> tuple[str, str] | None:
    """What a folder is if it is no evidence, and what to do."""
    if not path.is_dir():
        return None
    if (path / HEADER_FILE).is_file() and (path / MANIFEST_FILE).is_file():
        return "a trace, not evidence", "Give what the server said; the trace is what it is compared with."
    if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return "a checkpoint, not evidence", "Give what the server said; eagle3ref inspect reads a checkpoint."
    if _is_half_a_journal(path):
        return "a journal without its server.json", "Restore server.json, or ask the server anew in another folder."
    if not any(file.is_file() for file in path.rglob("*")):
        return "a folder without files", "Check the path, and that the server wrote its log there."
    return None


def _file(path: str) -> tuple[str, str] | None:
    """What a file is if nothing in it can be read, and what to do."""
    if path == "-" or not Path(path).is_file():
        return None
    with Path(path).open("rb") as file:
        head = file.read(_HEAD)
    if not head:
        return "an empty file", "Check that the server writes its log there; it may go to stderr: 2>&1."
    if b"\x00" in head and not head.startswith(_TEXT_AFTER_ALL):
        return "a binary file", "Give the log, the answers or the metrics as text."
    if any(name in head for name in (b'"output_ids"', b'"token_ids"')):
        return "answers without figures of acceptance", _ASK_FOR_THEM
    return None


def _is_half_a_journal(folder: Path) -> bool:
    events = folder / "requests.jsonl"
    if (folder / "server.json").exists() or not events.is_file():
        return False
    try:
        with events.open(encoding="utf-8", errors="replace") as file:
            first = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.get("event") in ("sent", "answered", "failed", "pages")


def _error(named: str, found: str, action: str) -> Eagle3RefError:
    return Eagle3RefError(f"reading {named}", found=found, expected=_EXPECTED, action=action)
