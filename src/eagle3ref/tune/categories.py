"""Is another setting for each category of prompts worth it, or is that reading too much into the noise?"""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eagle3ref.config import TreeConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.statistics import DEFAULT_CONFIDENCE, Difference
from eagle3ref.tune.held_out import chosen_elsewhere, gain, number_of_folds, pick
from eagle3ref.tune.ranking import Ranking, rank, speed_terms
from eagle3ref.tune.surface import Surface
from eagle3ref.tune.times import StepTimes

_ID_KEYS = ("id", "question_id")  # the second is MT-bench's
_WITHOUT = "other"


@dataclass(frozen=True, eq=False)
class CategoryChoice:
    """What is best for one category alone.

    Args:
        name: of the category.
        prompts: how many it has.
        ranking: of the settings on these prompts; None if they have no complete round.
    """

    name: str
    prompts: int
    ranking: Ranking | None


@dataclass(frozen=True, eq=False)
class ByCategory:
    """A setting for each category against one for all.

    Args:
        choices: by category; each looks better than it is, since it was chosen on the prompts that it is shown on.
        gain: of choosing by category, in tokens per second; settings are chosen on other prompts than they are judged
            on, on both sides.
        confidence: of its interval.
    """

    choices: tuple[CategoryChoice, ...]
    gain: Difference
    confidence: float

    @property
    def pays(self) -> bool:
        """Whether the gain is larger than its interval is wide."""
        return self.gain.ends(self.confidence)[0] > 0


def by_category(
    surface: Surface,
    categories: Sequence[str],
    times: StepTimes,
    *,
    refused: Container[TreeConfig] = (),
    confidence: float = DEFAULT_CONFIDENCE,
) -> ByCategory:
    """Compare the best setting of each category with the best for all, each chosen on nine tenths of the prompts.

    Args:
        surface: of the settings.
        categories: one name for each of its prompts.
        times: of the steps of a round; by acceptance length alone the largest tree is best everywhere.
        refused: as in ``rank``.
        confidence: of sets and intervals.

    Raises:
        Eagle3RefError: as ``rank``, or all prompts are of one category.
    """
    check_categories(categories)
    overall = rank(surface, times, refused=refused, confidence=confidence)
    chosen = [surface.index(tree) for tree in overall.settings]
    above, below = speed_terms(surface, times, chosen)
    apart = chosen_elsewhere(above, below, categories)
    together = chosen_elsewhere(above, below, [""] * len(categories))
    members = np.array(categories)
    choices = []
    for name in dict.fromkeys(categories):
        places = np.flatnonzero(members == name)
        has_rounds = below[places].any()
        part = surface.restricted(places)
        ranking = rank(part, times, refused=refused, confidence=confidence) if has_rounds else None
        choices.append(CategoryChoice(name, len(places), ranking))
    difference = gain(
        (pick(above, apart), pick(below, apart)),
        (pick(above, together), pick(below, together)),
        number_of_folds(categories),
    )
    return ByCategory(tuple(choices), difference, confidence)


def check_categories(categories: Sequence[str]) -> None:
    """Refuse a single category: there is nothing to choose between.

    Raises:
        Eagle3RefError: all are one.
    """
    if len(set(categories)) < 2:
        name = next(iter(categories), "none")
        raise _refusal("tuning by category", f"one category, {name!r}", "two or more", "Tune without categories.")


def categories_of(ids: Sequence[str], separator: str) -> list[str]:
    """What stands before the first separator in each id; ``other`` for ids without one.

    Raises:
        Eagle3RefError: an empty separator.
    """
    if not separator:
        raise _refusal("splitting prompt ids into categories", "an empty separator", "some text", "Write / or another.")
    return [prompt_id.partition(separator)[0] if separator in prompt_id else _WITHOUT for prompt_id in ids]


def read_categories(path: str | Path, ids: Sequence[str]) -> list[str]:
    """The category of each prompt, from JSONL with ``id`` (or ``question_id``) and ``category`` on each line.

    Raises:
        Eagle3RefError: an unreadable file or line, or a prompt without a category or with two.
    """
    named: dict[str, str] = {}
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            prompt_id, category = _pair(path, number, line)
            if named.setdefault(prompt_id, category) != category:
                raise _refusal(
                    f"reading categories from {path}, line {number}",
                    f"{category!r} for {prompt_id!r}, which is of {named[prompt_id]!r} in a line before",
                    "one category for each prompt",
                    "Correct one of the lines.",
                )
    missing = [prompt_id for prompt_id in ids if prompt_id not in named]
    if missing:
        raise _refusal(
            f"reading categories from {path}",
            f"none for {len(missing)} of {len(ids)} prompts, such as {missing[0]!r}",
            "a line for every prompt of the trace",
            "Add them, or tune without --categories.",
        )
    return [named[prompt_id] for prompt_id in ids]


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "bytes that are no UTF-8"
        action = "Check the path, or convert the file."
        raise _refusal(f"reading categories from {path}", found, "a JSONL file in UTF-8", action) from error


def _pair(path: str | Path, number: int, line: str) -> tuple[str, str]:
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    found = fields if isinstance(fields, dict) else {}
    prompt_id = next((found[key] for key in _ID_KEYS if key in found), None)
    category = found.get("category")
    if not isinstance(prompt_id, str | int) or not isinstance(category, str) or not category:
        expected = 'an object such as {"id": "81", "category": "writing"}'
        raise _refusal(f"reading categories from {path}, line {number}", line[:80], expected, "Correct that line.")
    return str(prompt_id), category


def _refusal(doing: str, found: str, expected: str, action: str) -> Eagle3RefError:
    return Eagle3RefError(doing, found=found, expected=expected, action=action)
