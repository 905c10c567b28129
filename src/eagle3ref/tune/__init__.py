"""Tuning: the acceptance of every (num_steps, topk, num_draft_tokens) from one replay, and which of them to serve."""

from eagle3ref.tune.adaptive import Adaptive, AdaptiveRule, adaptive
from eagle3ref.tune.advice import Advice, advise
from eagle3ref.tune.categories import (
    ByCategory,
    CategoryChoice,
    by_category,
    categories_of,
    check_categories,
    read_categories,
)
from eagle3ref.tune.limits import EngineLimits
from eagle3ref.tune.ranking import Ranking, rank
from eagle3ref.tune.surface import Surface
from eagle3ref.tune.times import StepTimes, TimeTable
from eagle3ref.tune.tune import largest_tree, tune
from eagle3ref.tune.walk import walk_settings

__all__ = [
    "Adaptive",
    "AdaptiveRule",
    "Advice",
    "ByCategory",
    "CategoryChoice",
    "EngineLimits",
    "Ranking",
    "StepTimes",
    "Surface",
    "TimeTable",
    "adaptive",
    "advise",
    "by_category",
    "categories_of",
    "check_categories",
    "largest_tree",
    "rank",
    "read_categories",
    "tune",
    "walk_settings",
]
