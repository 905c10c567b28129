"""A stated length, nobody knows of which requests: the server's sampling error is estimated from the trace."""

from __future__ import annotations

import math

from eagle3ref.crosscheck.comparison import Comparison
from eagle3ref.crosscheck.corrections import corrections_of
from eagle3ref.crosscheck.figures import Figure
from eagle3ref.crosscheck.more_data import MoreData, more_data
from eagle3ref.crosscheck.reference import Reference, Uncertain
from eagle3ref.engines import EngineProfile
from eagle3ref.statistics import Criterion, independent_difference


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
    variance, freedom, how = _sampling_error(figure, reference, reference.counted(figure.form, is_mean=is_mean))
    corrections = corrections_of(figure, reference.predicted, profile)
    value, low, high = figure.length.value, figure.length.low, figure.length.high
    difference = independent_difference(
        value, (variance, freedom), own.value, (own.variance, own.degrees_of_freedom)
    ).with_rounding(
        value - low + sum(correction.below for correction in corrections),
        high - value + sum(correction.above for correction in corrections),
    )
    verdict, more = (
        difference.verdict(*criterion),
        more_data(difference, criterion, figure.rounds, (variance, own.variance)),
    )
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
        assumptions=("The trace's prompts are drawn from the server's workload.", *how),
        more=more,
        is_quoted=figure.scope == "reference",
    )


def _sampling_error(figure: Figure, reference: Reference, counted: Uncertain) -> tuple[float, int, list[str]]:
    """Variance of the server's figure, its degrees of freedom, and how they were come by.

    The variance that was counted is that of a round times the design effect of its prompts, ``1 + (m - 1) * icc`` for m
    rounds a prompt; with the intraclass correlation ``icc`` it carries over to the server's m. It is never less than
    that of independent rounds. Where the lines scatter more than that, their scatter counts.
    """
    if figure.rounds is None:
        return math.inf, 1, ["Over how many rounds the server's figure is, is not told: its sampling error is unknown."]
    if math.isinf(counted.variance):
        return math.inf, 1, ["The trace has one prompt with rounds: how much prompts differ is unknown."]
    of_a_round, recorded = reference.variance_of_a_round, reference.rounds_a_prompt
    effect = max(1.0, counted.variance * reference.rounds / of_a_round) if of_a_round else 1.0
    rounds_a_request, source = recorded, "as those of the trace"
    if figure.prompts is not None and figure.rounds / figure.prompts > recorded:
        rounds_a_request, source = figure.rounds / figure.prompts, f"for {figure.prompts:,} prefills in the log"
    if recorded > 1:
        correlation = min(1.0, (effect - 1) / (recorded - 1))
        effect = max(effect, 1 + (rounds_a_request - 1) * correlation)
    how = [
        f"The server's figure is over at least {figure.rounds:,} rounds ({figure.rounds_how}).",
        f"Its requests have {rounds_a_request:.0f} rounds each, {source}, and differ as the trace's do "
        f"(design effect {effect:.1f}).",
    ]
    modelled = effect * of_a_round / figure.rounds
    if figure.scatter is not None and figure.scatter[0] > modelled:
        return (*figure.scatter, [*how, "Its lines scatter more than that, so their own scatter was taken."])
    return modelled, counted.degrees_of_freedom, how
