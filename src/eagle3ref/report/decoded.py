"""Live decoding for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eagle3ref.config import TreeConfig
from eagle3ref.decode import Decoded
from eagle3ref.report.document import interval_document
from eagle3ref.report.style import ends, facts, rate
from eagle3ref.statistics import RatioOfSums

_SHOWN = 32  # characters of an answer: the rounds are what the table is for; --json has all of it


@dataclass(frozen=True)
class DecodedPrompt:
    """One answer.

    Args:
        id: of the prompt.
        decoded: the answer and its rounds.
        text: None without a tokenizer.
        same_as_plain: whether plain decoding wrote the same; None if that was not checked.
    """

    id: str
    decoded: Decoded
    text: str | None = None
    same_as_plain: bool | None = None


def decoded_report(answers: Sequence[DecodedPrompt], tree: TreeConfig) -> RenderableType:
    """One line for each of at least one answer, and the rounds of all together."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("prompt", "tokens", "rounds", "length"):
        table.add_column(name, justify="left" if name == "prompt" else "right", no_wrap=True)
    table.add_column("accepted drafts, round by round", overflow="fold")
    table.add_column("answer", no_wrap=True)
    for answer in answers:
        accepted = answer.decoded.num_accepted
        table.add_row(
            Text(answer.id),
            f"{len(answer.decoded.tokens):,}",
            f"{len(accepted):,}",
            _length(accepted),
            " ".join(map(str, accepted)),
            Text(_beginning(answer.text or "")),
        )
    rule = answers[0].decoded.rule
    length = _acceptance_length(answers)
    rows = [
        ("tree", f"{tree} (num_steps/topk/num_draft_tokens)"),
        ("rule", rule.name + (", sampled drafts" if rule.drafts == "sampled" else "")),
        ("acceptance length", f"{_with_interval(length)} over {length.denominators.sum():,} rounds, bonus included"),
    ]
    return Group(table, "", facts([*rows, *_lossless(answers)]))


def decoded_document(answers: Sequence[DecodedPrompt], tree: TreeConfig) -> dict[str, Any]:
    """The same as plain values, for JSON."""
    return {
        "tree": str(tree),
        "rule": answers[0].decoded.rule.name,
        "drafts": answers[0].decoded.rule.drafts,
        "intervals": [interval_document(_acceptance_length(answers))],
        "answers": [
            {
                "id": answer.id,
                "tokens": answer.decoded.tokens.tolist(),
                "text": answer.text,
                "roots": answer.decoded.roots,
                "accepted": answer.decoded.num_accepted,
                "same_as_plain": answer.same_as_plain,
            }
            for answer in answers
        ],
    }


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


def _length(accepted: Sequence[int]) -> str:
    return f"{1 + sum(accepted) / len(accepted):.2f}" if accepted else "-"


def _acceptance_length(answers: Sequence[DecodedPrompt]) -> RatioOfSums:
    """Tokens committed per round, by prompt."""
    accepted = [answer.decoded.num_accepted for answer in answers]
    rounds = np.array([len(counts) for counts in accepted], np.int64)
    drafts = np.array([sum(counts) for counts in accepted], np.int64)
    return RatioOfSums("acceptance_length", "accepted_drafts + rounds", "rounds", drafts + rounds, rounds)


def _with_interval(ratio: RatioOfSums) -> str:
    known = (ratio.denominators > 0).sum() > 1
    return rate(ratio.value) + (f"  95 % {ends(ratio.interval(), 2)}" if known else "")


def _lossless(answers: Sequence[DecodedPrompt]) -> list[tuple[str, str]]:
    checked = [answer for answer in answers if answer.same_as_plain is not None]
    if not checked:
        return []
    other = [answer.id for answer in checked if not answer.same_as_plain]
    same = f"{len(checked) - len(other)} of {len(checked)} answers are those of plain decoding, token for token"
    return [("lossless", same + (f"; others: {', '.join(other)}" if other else ""))]
