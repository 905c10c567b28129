"""What ``eagle3ref inspect --json`` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from eagle3ref.inspection import DraftInspection, Health, TargetInspection, TraceSummary


def inspection_document(found: DraftInspection | TargetInspection | TraceSummary) -> dict[str, Any]:
    """All that was found, for programs; what is unknown is null."""
    if isinstance(found, TraceSummary):
        shares = {"off_argmax_share": found.off_argmax.share, "distinct_ngram_share": found.distinct_ngram_share}
        return {"kind": "trace", **asdict(found), "path": str(found.path), **shares}
    common = {"path": found.path, "config": asdict(found.config), "tensors": [asdict(group) for group in found.tensors]}
    if isinstance(found, TargetInspection):
        return {"kind": "target", **common, "facts": dict(found.facts), "oddities": list(found.oddities)}
    problem = found.problem
    return {
        "kind": "draft",
        **common,
        "variant": None if found.variant is None else list(found.variant),
        "mapped_ids": None if found.mapped_ids is None else len(found.mapped_ids),
        "origins": dict(found.origins),
        "unchecked": list(found.unchecked),
        "oddities": list(found.oddities),
        "findings": [asdict(finding) for finding in found.findings],
        "faulty": found.is_faulty,
        "problem": None if problem is None else {"doing": problem.doing, "found": problem.found, "do": problem.action},
        "measured": None if found.health is None else _measured(found.health),
    }


def _measured(health: Health) -> dict[str, Any]:
    parts = {name: getattr(health, name) for name in ("fc", "head_rows", "head", "embedding")}
    return {
        **{name: None if part is None else asdict(part) for name, part in parts.items()},
        "coverage": None if health.coverage is None else health.coverage.to_dict(),
    }
