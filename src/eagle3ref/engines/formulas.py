"""The figures that engines log, each as a function of the integers that were counted."""

from __future__ import annotations

from collections.abc import Callable

from eagle3ref.acceptance import AcceptanceCounts

Formula = Callable[[AcceptanceCounts], float]


def length_with_bonus(counts: AcceptanceCounts) -> float:
    """(accepted drafts + rounds) / rounds, in tokens per round."""
    return counts.acceptance_length


def length_without_bonus(counts: AcceptanceCounts) -> float:
    """Accepted drafts / rounds."""
    return counts.acceptance_length - 1


def length_per_level(counts: AcceptanceCounts) -> float:
    """Length with bonus / (num_steps + 1)."""
    return counts.acceptance_length / (counts.tree.num_steps + 1)


def length_per_node(counts: AcceptanceCounts) -> float:
    """Length with bonus / num_draft_tokens."""
    return counts.acceptance_length / counts.tree.num_draft_tokens


def drafts_per_draft_node(counts: AcceptanceCounts) -> float:
    """Accepted drafts / verified drafts, which are num_draft_tokens - 1 in each round."""
    return counts.node_acceptance_rate
