"""The replay as a number with an error, in the form that a figure of the server has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.crosscheck.predict import LengthForm, PredictedRequest, length_terms
from eagle3ref.statistics import mean_over_prompts, variance_of


class Uncertain(NamedTuple):
    """A number, its variance, and the degrees of freedom of that."""

    value: float
    variance: float
    degrees_of_freedom: int


@dataclass(frozen=True)
class Reference:
    """What was replayed.

    Args:
        predicted: every recorded answer, in the order of the trace.
        counts: of its complete rounds.
    """

    predicted: Sequence[PredictedRequest]
    counts: AcceptanceCounts

    @property
    def rounds(self) -> int:
        """Complete rounds."""
        return self.counts.total_rounds

    @property
    def rounds_a_prompt(self) -> float:
        """Of the prompts that have any."""
        return self.rounds / int((self.counts.rounds > 0).sum())

    @property
    def plain(self) -> float:
        """The acceptance length."""
        return self.counts.acceptance_length

    @property
    def variance_of_a_round(self) -> float:
        """Of the accepted drafts c from round to round, as if rounds were independent."""
        rounds = self.counts.histogram.sum(axis=0)
        c = np.arange(len(rounds))
        return float(np.average((c - np.average(c, weights=rounds)) ** 2, weights=rounds))

    def counted(self, form: LengthForm, *, is_mean: bool = False) -> Uncertain:
        """What was counted, in that form."""
        terms = length_terms(self.predicted, form)
        return Uncertain(*mean_over_prompts(terms)) if is_mean else Uncertain(terms.value, *variance_of(terms))

    def length(self, form: LengthForm, *, is_mean: bool = False) -> Uncertain:
        """What was counted; where the target's probabilities are there and nothing is corrected, what was expected.

        The expected length has the same mean as the counted one, and less noise.
        """
        expected = self.counts.expected
        if expected is None or is_mean or form != LengthForm() or not expected.total_rounds:
            return self.counted(form, is_mean=is_mean)
        terms = expected.ratio("acceptance_length")
        return Uncertain(terms.value, *variance_of(terms))
