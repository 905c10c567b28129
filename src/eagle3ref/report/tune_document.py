"""A tuned surface as one JSON document, for programs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from eagle3ref.draft import Eagle3Draft
from eagle3ref.report.document import DOCUMENT_VERSION, provenance
from eagle3ref.trace import Trace
from eagle3ref.tune import Adaptive, Advice, ByCategory


def tune_document(
    advice: Advice, trace: Trace, draft: Eagle3Draft, draft_folder: Path, settings: dict[str, Any]
) -> dict[str, Any]:
    """What is recommended, every setting with its integers and how it fared, and where all of it comes from.

    Args:
        advice: on the surface.
        trace: that was tuned on.
        draft: that was tuned.
        draft_folder: its checkpoint.
        settings: what else the run was told.
    """
    return {
        "document_version": DOCUMENT_VERSION,
        "figure": advice.ranking.figure,
        "confidence": advice.confidence,
        "best": str(advice.ranking.best),
        "recommended": str(advice.ranking.recommended),
        "best_by_length": str(advice.by_length.best),
        "sentences": list(advice.sentences),
        "worth": advice.worth and advice.worth.to_dict(),
        "adaptive": advice.adaptive and _adaptive(advice.adaptive),
        "categories": advice.categories and _categories(advice.categories),
        **_surface(advice),
        "provenance": provenance(trace, draft, draft_folder, settings),
    }


def _surface(advice: Advice) -> dict[str, Any]:
    document, ranking = advice.surface.to_dict(), advice.ranking
    for tree, one in zip(advice.surface.settings, document["settings"], strict=True):
        behind, at_most = ranking.behind(tree) if tree in ranking else (math.inf, math.inf)
        speed = advice.by_speed.value(tree) if advice.by_speed is not None and tree in ranking else None
        one |= {"tokens_per_second": speed, "behind": _finite(behind), "at_most_behind": _finite(at_most)}
        one |= {"mark": advice.mark(tree), "refused": advice.refused.get(tree)}
    return document


def _adaptive(found: Adaptive) -> dict[str, Any]:
    gains = {"gain_over_best_chain": found.over_chain, "gain_over_best": found.over_all}
    return {
        "candidate_steps": list(found.rule.candidate_steps),
        "tokens_per_second": found.tokens_per_second,
        "shares_of_rounds": list(found.shares),
        **{name: _ends(gain.estimate, gain.low, gain.high) for name, gain in gains.items()},
        "pays": found.pays,
    }


def _categories(found: ByCategory) -> dict[str, Any]:
    choices = [
        {
            "category": choice.name,
            "prompts": choice.prompts,
            "best": choice.ranking and str(choice.ranking.best),
            "recommended": choice.ranking and str(choice.ranking.recommended),
            "may_be_best": choice.ranking and int(choice.ranking.comparison.may_be_best.sum()),
        }
        for choice in found.choices
    ]
    gain = _ends(found.gain.estimate, *found.gain.ends(found.confidence))
    return {"choices": choices, "gain": gain, "pays": found.pays}


def _ends(estimate: float, low: float, high: float) -> dict[str, float | None]:
    return {"estimate": estimate, "low": _finite(low), "high": _finite(high)}


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value
