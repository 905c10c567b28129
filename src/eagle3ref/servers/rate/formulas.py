"""What accept rates have been: formulas by engine and date."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from eagle3ref.engines.formulas import drafts_per_draft_node, length_per_level, length_per_node


@dataclass(frozen=True)
class RateFormula:
    """One meaning that an accept rate has had.

    Args:
        name: the formula, e.g. ``"length / num_draft_tokens"``.
        counts_bonus: whether the bonus token is above the line.
        num_draft_tokens: what is below the line minus num_draft_tokens; None if that is not below it.
        num_steps: what is below the line minus num_steps; None if that is not below it.
        since: ISO date of the pull request that wrote it into SGLang; a tool of its own had its own from the start.
        where: who printed it, and when.
        is_released: whether a release had it; the others are thought of last.
    """

    name: str
    counts_bonus: bool
    num_draft_tokens: int | None
    num_steps: int | None
    since: str
    where: str
    is_released: bool = True

    def divisor(self, num_draft_tokens: int | None, num_steps: int | None) -> int | None:
        """What is below the line with these settings; None if they do not say."""
        if self.num_draft_tokens is not None and num_draft_tokens is not None:
            return num_draft_tokens + self.num_draft_tokens
        if self.num_steps is not None and num_steps is not None:
            return num_steps + self.num_steps
        return None


# In the order of plausibility, where nothing else tells them apart.
FORMULAS = (
    RateFormula("length / num_draft_tokens", True, 0, None, "2025-11-13", "SGLang 0.5.5.post3 to 0.5.10 (PR #13212)"),
    RateFormula(
        *("(length - 1) / (num_draft_tokens - 1)", False, -1, None, "2026-04-23"),
        "SGLang since 0.5.11 (PR #23530); of a chain also vLLM, tokenspeed and SGLang's request fields",
    ),
    RateFormula("length / (num_steps + 1)", True, None, 1, "2025-10-13", "SGLang 0.5.3.post2 to 0.5.5.post2"),
    RateFormula("(length - 1) / num_steps", False, None, 0, "2026-04-23", "vLLM, NeMo Automodel; SGLang of a chain"),
    RateFormula(
        "length / num_steps",
        True,
        None,
        0,
        "2025-10-02",
        "SGLang unreleased, October 2025",
        False,
    ),
)
OF_PROFILE: Mapping[Callable[..., float], str] = {
    length_per_node: "length / num_draft_tokens",
    length_per_level: "length / (num_steps + 1)",
    drafts_per_draft_node: "(length - 1) / (num_draft_tokens - 1)",
}
