"""What came of a cross-check: the comparisons, which of them decides, and the verdict in one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.crosscheck.comparison import Comparison
from eagle3ref.crosscheck.matching import How, Match
from eagle3ref.speedup import MeasuredRound
from eagle3ref.statistics import Difference, Verdict


@dataclass(frozen=True)
class CrossCheck:
    """What came of it.

    Args:
        comparisons: of every figure, the strongest first; it decides alone.
        matches: of every request.
        counts: of the replay.
        margin: within which two lengths count as the same, in tokens per round.
        confidence: of each one-sided test.
        assumptions: what all comparisons took for granted, one sentence each.
        remarks: what does not fit together, and what the evidence says beside acceptance.
        speed: what the server's tokens per second mean at that length; None without them.
    """

    comparisons: tuple[Comparison, ...]
    matches: tuple[Match, ...]
    counts: AcceptanceCounts
    margin: float
    confidence: float
    assumptions: tuple[str, ...]
    remarks: tuple[str, ...]
    speed: MeasuredRound | None = None

    @property
    def best(self) -> Comparison:
        """The one that decides: the strongest, also where it cannot tell and a weaker one could."""
        return self.comparisons[0]

    @property
    def verdict(self) -> Verdict:
        """Of the comparison that decides."""
        return self.best.verdict

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        best, margin = self.best, f"margin ± {self.margin:g} ({self.best.kind})"
        size = f"{best.difference.estimate:+.2f} tokens a round"
        if not best.kind.startswith("same requests"):
            return f"{best.verdict}{self._condition}: {size}, {self._interval(best.difference)}, {margin}"
        if best.kind == "same requests in sum":
            shown = "the sums are equal" if not best.unequal else "the sums are not equal"
        else:
            shown = f"{best.num_requests - len(best.unequal)} of {best.num_requests} equal in every integer"
        if best.verdict == "differs":
            shown = f"the rounds are others, {shown}"
        is_drawn = best.as_sample is not None and math.isfinite(best.as_sample.variance)
        like_these = (
            f" ({self._interval(best.as_sample)} of requests like these)" if best.as_sample and is_drawn else ""
        )
        requests = "this request" if best.num_requests == 1 else f"these {best.num_requests} requests"
        return f"{best.verdict}: {shown}; {size} on {requests}{like_these}, {margin}"

    @property
    def _condition(self) -> str:
        """What a verdict depends on, or what keeps one from being said."""
        best = self.best
        if best.most_rounds_a_request is not None:
            longest = f"at most {best.most_rounds_a_request:,} rounds each (how many there were is not known)"
            return f" if its requests have {longest}"
        verdict = best.difference.verdict(self.margin, self.confidence)
        if verdict != "cannot tell" or not best.difference.is_there(self.confidence):
            return ""
        return f" ({'higher' if best.difference.estimate > 0 else 'lower'}, but perhaps by less than the margin)"

    def _interval(self, difference: Difference) -> str:
        """The one that the equivalence test looks at."""
        low, high = difference.ends(2 * self.confidence - 1)
        share = f"{2 * self.confidence - 1:.0%}"
        return f"{share} unknown" if math.isinf(low) else f"{share} [{low:+.2f}, {high:+.2f}]"

    def matched(self, how: How) -> int:
        """Requests that were matched so."""
        return sum(match.how == how for match in self.matches)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "margin": self.margin,
            "confidence": self.confidence,
            "decides": 0,
            "comparisons": [comparison.to_dict(self.confidence) for comparison in self.comparisons],
            "requests": {
                "same answer": self.matched("same answer"),
                "same prompt": self.matched("same prompt"),
                "unmatched": self.matched("unmatched"),
                "not the same answer": [
                    {"request_id": match.request.request_id, "how": match.how, "reason": match.reason}
                    for match in self.matches
                    if match.reason
                ],
            },
            "assumptions": list(self.assumptions),
            "remarks": list(self.remarks),
            "speed": self.speed and self.speed.to_dict(),
            "counts": self.counts.to_dict(),
        }
