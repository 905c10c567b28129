"""A replay as one JSON document, for programs."""

from __future__ import annotations

import math
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.draft import Eagle3Draft
from eagle3ref.engines import SGLANG_LOG_ERAS, EngineProfile
from eagle3ref.statistics import RatioOfSums
from eagle3ref.trace import Trace
from eagle3ref.trace.format import file_sha256
from eagle3ref.version import __version__

DOCUMENT_VERSION = 1
_CHECKPOINT_FILES = ("*.json", "*.safetensors", "*.bin")


def replay_document(
    counts: AcceptanceCounts, trace: Trace, draft: Eagle3Draft, draft_folder: Path, settings: dict[str, Any]
) -> dict[str, Any]:
    """Counts, intervals, what SGLang would log, and where all of it comes from; what is undefined is null.

    Of all positions SGLang logs nothing.

    Args:
        counts: of the replay.
        trace: that was replayed.
        draft: that was replayed.
        draft_folder: its checkpoint; every file in it gets its checksum.
        settings: what else the run was told.

    Raises:
        Eagle3RefError: no complete round.
    """
    return {
        "document_version": DOCUMENT_VERSION,
        "counts": counts.to_dict(),
        "intervals": [interval_document(ratio) for ratio in counts.ratios()],
        "expected_intervals": _expected_intervals(counts),
        "sglang_log": [_log(profile, counts) for profile in SGLANG_LOG_ERAS if counts.kind != "positions"],
        "provenance": provenance(trace, draft, draft_folder, settings),
    }


def provenance(trace: Trace, draft: Eagle3Draft, draft_folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Where numbers come from: versions, the trace, the draft's files with their checksums, the settings."""
    return {
        "eagle3ref": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "trace": {"path": str(trace.path), "sha256": trace.sha256(), "header": asdict(trace.header)},
        "draft": {
            "path": str(draft_folder),
            "sha256": _checksums(draft_folder),
            "capture_points": list(draft.capture_points),
            "dtype": str(draft.fc.weight.dtype).removeprefix("torch."),
            "origins": draft.origins,
            "warnings": draft.warnings,
        },
        "settings": settings,
    }


def _expected_intervals(counts: AcceptanceCounts) -> list[dict[str, Any]] | None:
    if counts.expected is None:
        return None
    return [interval_document(ratio) for ratio in (*counts.expected.ratios(), counts.expected.surplus)]


def interval_document(ratio: RatioOfSums) -> dict[str, Any]:
    """A ratio with its 95 % interval; null where there is none."""
    if math.isnan(ratio.value):
        return {"name": ratio.name, "estimate": None, "low": None, "high": None, "clusters": 0}
    values = asdict(ratio.interval())
    unknown = {end: None for end in ("low", "high") if math.isinf(values[end])}
    return {"name": ratio.name, **values, **unknown}


def _log(profile: EngineProfile, counts: AcceptanceCounts) -> dict[str, Any]:
    return {
        "engine": profile.engine,
        "version": profile.version,
        "since": profile.since,
        "source": profile.sources["accept_rate"].where,
        "accept_rate_meaning": profile.accept_rate_meaning,
        "accept_len": profile.figures(counts).get("accept_length"),
        "accept_rate": profile.figures(counts).get("accept_rate"),
        "log_line": profile.log_line(counts),
    }


def _checksums(folder: Path) -> dict[str, str]:
    files = sorted(path for pattern in _CHECKPOINT_FILES for path in folder.glob(pattern))
    return {path.name: file_sha256(path) for path in files}
