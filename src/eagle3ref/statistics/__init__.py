"""Statistics whose independent unit is the prompt: intervals, and whether two ratios are the same."""

from eagle3ref.statistics.best import BestOf, best_of, over_the_best
from eagle3ref.statistics.equivalence import (
    DEFAULT_CONFIDENCE,
    DEFAULT_MARGIN,
    Criterion,
    Difference,
    Verdict,
    check_criterion,
    independent_difference,
    mean_over_prompts,
    paired_difference,
    rounds_to_tell,
    variance_of,
)
from eagle3ref.statistics.intervals import (
    Interval,
    Method,
    RatioOfSums,
    bootstrap_interval,
    ratio_interval,
    student_t_critical,
)

__all__ = [
    "DEFAULT_CONFIDENCE",
    "DEFAULT_MARGIN",
    "BestOf",
    "Criterion",
    "Difference",
    "Interval",
    "Method",
    "RatioOfSums",
    "Verdict",
    "best_of",
    "bootstrap_interval",
    "check_criterion",
    "independent_difference",
    "mean_over_prompts",
    "over_the_best",
    "paired_difference",
    "ratio_interval",
    "rounds_to_tell",
    "student_t_critical",
    "variance_of",
]
