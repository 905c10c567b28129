"""What a given engine version does: which streams it captures, and what its acceptance figures mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.errors import Eagle3RefError

Formula = Callable[[AcceptanceCounts], float]
CaptureFamily = Literal["llama", "deepseek"]


def _bonus_included(counts: AcceptanceCounts) -> float:
    return counts.acceptance_length


def _length_per_level(counts: AcceptanceCounts) -> float:
    return counts.acceptance_length / (counts.tree.num_steps + 1)


def _length_per_node(counts: AcceptanceCounts) -> float:
    return counts.acceptance_length / counts.tree.num_draft_tokens


def _drafts_per_draft_node(counts: AcceptanceCounts) -> float:
    return counts.node_acceptance_rate


@dataclass(frozen=True)
class EngineProfile:
    """How one engine, over a stretch of its history, turns verification rounds into the figures it prints.

    Args:
        engine: name, e.g. ``"SGLang"``.
        version: a release, or the change that began the era.
        since: ISO date of that change.
        source: where the definition is stated.
        accept_length: the "accept len" of the log line, in tokens per round.
        accept_rate: the "accept rate" of the log line.
        accept_rate_meaning: what that rate divides by what, in the counts' own words.
    """

    engine: str
    version: str
    since: str
    source: str
    accept_length: Formula
    accept_rate: Formula
    accept_rate_meaning: str

    def log_line(self, counts: AcceptanceCounts) -> str:
        """The two figures as the engine logs them, two decimals each.

        Raises:
            Eagle3RefError: no complete round.
        """
        return f"accept len: {self.accept_length(counts):.2f}, accept rate: {self.accept_rate(counts):.2f}"


SGLANG_0_5_23 = EngineProfile(
    engine="SGLang",
    version="0.5.23",
    since="2026-04-23",
    source="sgl-project/sglang PR #23530",
    accept_length=_bonus_included,
    accept_rate=_drafts_per_draft_node,
    accept_rate_meaning="accepted drafts per round / (num_draft_tokens - 1)",
)

# The length never changed; the rate did, twice, under one name. In time order.
SGLANG_LOG_ERAS = (
    EngineProfile(
        engine="SGLang",
        version="from PR #11572",
        since="2025-10-13",
        source="sgl-project/sglang PR #11572",
        accept_length=_bonus_included,
        accept_rate=_length_per_level,
        accept_rate_meaning="accept len / (num_steps + 1)",
    ),
    EngineProfile(
        engine="SGLang",
        version="from PR #13212",
        since="2025-11-13",
        source="sgl-project/sglang PR #13212",
        accept_length=_bonus_included,
        accept_rate=_length_per_node,
        accept_rate_meaning="accept len / num_draft_tokens",
    ),
    SGLANG_0_5_23,
)

FEWEST_LAYERS = 7  # below, the default capture points are not three different, ascending ones


def default_capture_points(num_layers: int) -> tuple[int, int, int]:
    """``(2, n // 2, n - 3)``: the residual streams that EAGLE-3 reads when nothing else is said.

    Source: the authors' EAGLE-3 code; SGLang 0.5.23, vLLM and speculators have the same default.

    Raises:
        Eagle3RefError: fewer than ``FEWEST_LAYERS``, where the three are not different and ascending.
    """
    points = (2, num_layers // 2, num_layers - 3)
    if num_layers < FEWEST_LAYERS:
        raise Eagle3RefError(
            "choosing default capture points",
            found=f"{num_layers} layers, which would give {points}",
            expected=f"at least {FEWEST_LAYERS} layers, for three ascending points",
            action="Name the capture points explicitly.",
        )
    return points


def sglang_capture_points(ids: Sequence[int] | None, num_layers: int, family: CaptureFamily) -> tuple[int, ...]:
    """The streams that SGLang 0.5.23 really captures for ``eagle_config.eagle_aux_hidden_state_layer_ids``.

    ``"llama"`` adds 1 to every id. ``"deepseek"`` (DeepSeek-V2/V3, all Kimi-K2.x) adds 1 only if the first id is 1
    and otherwise takes the ids as they are (PR #25454, 2026-05-16); before that change it followed the llama rule.
    The result is ascending and without repeats, because layers run in order and each is captured once.

    Args:
        ids: the list in the draft's config; None when it has none, which gives ``default_capture_points``.
        num_layers: of the target.
        family: which of SGLang's model files serves the target.

    Raises:
        Eagle3RefError: no ids, an unknown family, or a point outside ``0..num_layers - 1``, which SGLang never
            captures: it accepts the list and fails at the first forward.
    """
    if family not in ("llama", "deepseek"):
        _refuse_ids(ids, f"family {family!r}", "family 'llama' or 'deepseek'", "Use deepseek for Kimi targets.")
    if ids is None:
        return default_capture_points(num_layers)
    if not ids:
        _refuse_ids(ids, "an empty list", "at least one id", "Remove the key to get the default.")
    shift = 1 if family == "llama" or ids[0] == 1 else 0
    points = tuple(sorted({layer_id + shift for layer_id in ids}))
    if points[0] < 0 or points[-1] >= num_layers:
        expected = f"points from 0 (embedding output) to {num_layers - 1} (input of the last layer)"
        _refuse_ids(ids, f"capture points {points}", expected, "Correct the ids in the draft's config.json.")
    return points


def _refuse_ids(ids: Sequence[int] | None, found: str, expected: str, action: str) -> None:
    raise Eagle3RefError(f"translating SGLang layer ids {ids}", found=found, expected=expected, action=action)
