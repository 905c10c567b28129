"""The sampling error of a figure that does not say which requests it is of: it grows with the rounds of a request."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from eagle3ref.crosscheck.figures import Figure
from eagle3ref.crosscheck.reference import Reference, Uncertain
from eagle3ref.statistics import Verdict

_LONGER = 2  # times the trace's rounds: what requests must be allowed to have whose number is unknown


@dataclass(frozen=True)
class SamplingError:
    """Of a server's figure: the variance of a round in the trace times the design effect of its requests.

    The design effect is ``1 + (m - 1) * icc`` for m rounds a request; the intraclass correlation ``icc`` follows from
    the trace, where the effect and m are known. It is never taken as less than the trace's, nor as less than 1.

    Args:
        of_a_round: variance of c from round to round; ``inf`` where the error is not known.
        effect: the design effect of the trace's prompts.
        correlation: ``icc``.
        recorded: m in the trace.
        degrees_of_freedom: of ``effect``.
        rounds: behind the figure.
        rounds_a_request: m; where it is not known, twice the trace's.
        is_counted: whether something tells how many requests there were.
        scatter: as of ``Figure``; it counts where it is the larger.
        how: all that was come by, one sentence each.
    """

    of_a_round: float
    effect: float
    correlation: float
    recorded: float
    degrees_of_freedom: int
    rounds: int
    rounds_a_request: float
    is_counted: bool
    scatter: tuple[float, int] | None
    how: tuple[str, ...] = ()

    def at(self, rounds_a_request: float) -> tuple[float, int]:
        """Variance and degrees of freedom, if its requests have so many rounds each.

        Where they have more than the trace's, so far as they do the error of ``icc`` counts more, and the degrees of
        freedom are fewer (Satterthwaite).
        """
        effect = max(self.effect, 1 + (rounds_a_request - 1) * self.correlation)
        modelled = effect * self.of_a_round / self.rounds
        if self.scatter is not None and self.scatter[0] > modelled:
            return self.scatter
        further = max(1.0, (rounds_a_request - 1) / max(self.recorded - 1, 1))
        known = min(1.0, effect / self.effect / further)
        return modelled, max(1, math.floor(self.degrees_of_freedom * known**2))

    def most_rounds_a_request(self, verdict_at: Callable[[float], Verdict]) -> int | None:
        """The longest requests with which the verdict still holds; None if it holds with any, or their number is known.

        Args:
            verdict_at: the verdict for requests of so many rounds; not ``cannot tell`` at ``rounds_a_request``.
        """
        verdict = verdict_at(self.rounds_a_request)
        if self.is_counted or math.isinf(self.of_a_round) or verdict_at(self.rounds) == verdict:
            return None
        low, high = self.rounds_a_request, float(self.rounds)
        while high - low > 0.5:
            middle = (low + high) / 2
            low, high = (middle, high) if verdict_at(middle) == verdict else (low, middle)
        return math.floor(low)


def sampling_error(figure: Figure, reference: Reference, counted: Uncertain) -> SamplingError:
    """Of the figure, by what the trace shows of rounds and prompts.

    Args:
        figure: of the server.
        reference: the replay.
        counted: the reference in the figure's form, without its expectation.
    """
    if figure.rounds is None:
        return _unknown("Over how many rounds the server's figure is, is not told: its sampling error is unknown.")
    if math.isinf(counted.variance):
        return _unknown("The trace has one prompt with rounds: how much prompts differ is unknown.")
    of_a_round, recorded = reference.variance_of_a_round, reference.rounds_a_prompt
    effect = max(1.0, counted.variance * reference.rounds / of_a_round) if of_a_round else 1.0
    # Prompts of one round each do not show how alike the rounds of a prompt are.
    correlation = min(1.0, (effect - 1) / (recorded - 1)) if recorded > 1 else 1.0
    rounds_a_request, source = _rounds_a_request(figure, figure.rounds, recorded)
    error = SamplingError(
        of_a_round=of_a_round,
        effect=effect,
        correlation=correlation,
        recorded=recorded,
        degrees_of_freedom=counted.degrees_of_freedom,
        rounds=figure.rounds,
        rounds_a_request=rounds_a_request,
        is_counted=figure.requests is not None,
        scatter=figure.scatter,
    )
    how = [
        f"The server's figure is over at least {figure.rounds:,} rounds ({figure.rounds_how}).",
        f"Its requests have {rounds_a_request:.0f} rounds each, {source}, and differ as the trace's do.",
    ]
    if error.scatter is not None and error.at(rounds_a_request) == error.scatter:
        how.append("Its lines scatter more than that, so their own scatter was taken.")
    return replace(error, how=tuple(how))


def _rounds_a_request(figure: Figure, rounds: int, recorded: float) -> tuple[float, str]:
    """What the interval is made with, and how it was come by."""
    if figure.requests is not None:
        return max(recorded, rounds / figure.requests), f"for {figure.requests:,} {figure.requests_how}"
    longer = min(_LONGER * recorded, max(recorded, rounds))
    return longer, "taken as twice the trace's because how many requests there were is not known"


def _unknown(why: str) -> SamplingError:
    return SamplingError(
        of_a_round=math.inf,
        effect=1.0,
        correlation=0.0,
        recorded=1.0,
        degrees_of_freedom=1,
        rounds=1,
        rounds_a_request=1.0,
        is_counted=True,
        scatter=None,
        how=(why,),
    )
