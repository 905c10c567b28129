"""A stated length, nobody knows of which requests: the server's sampling error is estimated from the trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from eagle3ref.crosscheck.comparison import Comparison
from eagle3ref.crosscheck.corrections import corrections_of
from eagle3ref.crosscheck.figures import Figure
from eagle3ref.crosscheck.more_data import MoreData, more_data
from eagle3ref.crosscheck.reference import Reference
from eagle3ref.crosscheck.sampling_error import SamplingError, sampling_error
from eagle3ref.engines import EngineProfile
from eagle3ref.statistics import Criterion, Difference, Verdict, independent_difference


def same_workload(
    figure: Figure, reference: Reference, profile: EngineProfile | None, criterion: Criterion, doubt: str = ""
) -> Comparison:
    """The figure against the reference's in its own terms, as two independent samples of prompts.

    Args:
        figure: of the server.
        reference: the replay.
        profile: of the engine.
        criterion: of the verdict.
        doubt: why the server's log is not of the reference's tree; then it tells nothing.
    """
    is_mean = figure.average == "requests"
    own = reference.length(figure.form, is_mean=is_mean)
    error = sampling_error(figure, reference, reference.counted(figure.form, is_mean=is_mean))
    corrections = corrections_of(figure, reference.predicted, profile)
    value, low, high = figure.length.value, figure.length.low, figure.length.high

    def difference_at(rounds_a_request: float) -> Difference:
        its = error.at(rounds_a_request)
        drawn = independent_difference(value, its, own.value, (own.variance, own.degrees_of_freedom))
        return drawn.with_rounding(
            value - low + sum(correction.below for correction in corrections),
            high - value + sum(correction.above for correction in corrections),
        )

    def verdict_at(rounds_a_request: float) -> Verdict:
        return difference_at(rounds_a_request).verdict(*criterion)

    difference, verdict = difference_at(error.rounds_a_request), verdict_at(error.rounds_a_request)
    variances = error.at(error.rounds_a_request)[0], own.variance
    more = more_data(difference, criterion, figure.rounds, variances)
    if more is not None:
        said = more.sentence + _too_little_known(error, reference.rounds_a_prompt, verdict_at)
        more = replace(more, sentence=said)
    if doubt and figure.scope == "window":
        verdict, more = "cannot tell", MoreData(None, math.inf, doubt)
    return Comparison(
        kind="same workload only",
        verdict=verdict,
        of=figure.of,
        form=f"{figure.form}, mean over requests" if is_mean else str(figure.form),
        server=value,
        server_low=low,
        server_high=high,
        reference=own.value,
        plain_reference=reference.plain,
        difference=difference,
        server_rounds=figure.rounds,
        reference_rounds=reference.rounds,
        corrections=tuple(corrections),
        assumptions=("The trace's prompts are drawn from the server's workload.", *error.how),
        more=more,
        most_rounds_a_request=None if verdict == "cannot tell" else error.most_rounds_a_request(verdict_at),
        is_quoted=figure.scope == "reference",
    )


def _too_little_known(error: SamplingError, recorded: float, verdict_at: Callable[[float], Verdict]) -> str:
    """That requests as long as the trace's would tell, where only their unknown number is in the way; "" if not."""
    verdict = verdict_at(recorded)
    if error.is_counted or verdict == "cannot tell":
        return ""
    return (
        f" It {verdict} if its requests have {recorded:.0f} rounds each, as the trace's have: a benchmark's summary or "
        "the log's prefill lines say how many there were."
    )
