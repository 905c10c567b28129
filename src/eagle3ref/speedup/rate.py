"""From an acceptance length to the conditional rate that gives it."""

from __future__ import annotations

_BISECTIONS = 60


def expected_length(rate: float, num_steps: int) -> float:
    """Expected tokens of a round that keeps each draft with one rate: ``1 + rate + ... + rate**num_steps``.

    Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), equation 1, with gamma = ``num_steps``.
    """
    return sum(rate**depth for depth in range(num_steps + 1))


def rate_for_length(length: float, num_steps: int) -> float | None:
    """The conditional acceptance rate, the same at each depth, that gives an acceptance length.

    Args:
        length: bonus counted.
        num_steps: depth of the tree.

    Returns:
        0 to 1; None if no rate gives that length: below 1, or above num_steps + 1.
    """
    if not 1 <= length <= num_steps + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_length(middle, num_steps) < length else (low, middle)
    return (low + high) / 2
