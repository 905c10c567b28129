"""Probabilities of Student's t in logarithms, far into its tails: what a printed figure is worth to a hypothesis."""

from __future__ import annotations

import math

import numpy as np

_POINTS = 512
_MOST_DEGREES = 200.0  # beyond them the density is narrower than the steps of the integral, and normal anyway


def log_mass(low: float, high: float, mean: float, sd: float, degrees_of_freedom: float) -> float:
    """ln P(low <= X <= high) where (X - mean) / sd is Student's t.

    With t = sqrt(df) * tan(angle) the density is cos(angle)**(df - 1) over a constant (Abramowitz and Stegun 26.7.1),
    which is smooth on a bounded range. So one midpoint sum serves narrow intervals and whole tails.

    Args:
        low: may be ``-inf``.
        high: may be ``inf``; above ``low``.
        mean: of X.
        sd: positive, of X.
        degrees_of_freedom: positive; taken as 200 when larger.
    """
    df = min(degrees_of_freedom, _MOST_DEGREES)
    start, end = (math.atan((x - mean) / (sd * math.sqrt(df))) for x in (low, high))
    step = (end - start) / _POINTS
    angle = start + step * (np.arange(_POINTS) + 0.5)
    # Close to the right angle, 1 / t is the angle's distance from it, and cos(angle) has lost its digits.
    logs = (df - 1) * np.log(np.maximum(np.abs(np.cos(angle)), 1e-300))
    if step <= 0:  # the two ends are one double: far out, where the density is flat
        centre = ((low + high) / 2 - mean) / sd
        log_density = -(df + 1) / 2 * math.log1p(centre**2 / df) - math.log(sd * math.sqrt(df)) - _log_beta(df)
        return log_density + math.log(high - low)
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()) * step) - _log_beta(df)


def two_sided_p(low: float, high: float, mean: float, sd: float, degrees_of_freedom: float) -> float:
    """The probability of an X at least as far from its mean as [low, high] is; 1 if the mean is inside."""
    distance = max(low - mean, mean - high, 0.0)
    if distance == 0:
        return 1.0
    return min(1.0, 2 * math.exp(log_mass(mean + distance, math.inf, mean, sd, degrees_of_freedom)))


def _log_beta(df: float) -> float:
    """ln of the integral of cos**(df - 1) over [-pi/2, pi/2]."""
    return math.log(math.pi) / 2 + math.lgamma(df / 2) - math.lgamma((df + 1) / 2)
