"""One comparison of a server's figure with the reference: how it was made, and what it came to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from eagle3ref.crosscheck.more_data import MoreData
from eagle3ref.statistics import Difference, Verdict

Kind = Literal["same requests round by round", "same requests in sum", "same prompts", "same workload only"]

# The strongest first.
KIND_MEANING: dict[Kind, str] = {
    "same requests round by round": "the server's output ids are the recorded answers: each request must have the "
    "reference's rounds, accepted drafts and histogram, as integers",
    "same requests in sum": "the same answers, but the server counts them together: the sums must be the reference's",
    "same prompts": "the answers are other ones, or not told: paired by prompt, what is hard for both cancels",
    "same workload only": "nothing says which requests the figure is of: the server's sampling error is all in it",
}


@dataclass(frozen=True)
class Correction:
    """What was done to the reference's figure so that it counts what the server's counts; or what could not be done.

    Args:
        name: of what the engine does.
        tokens: by how much it moved the reference's length; 0 if it opened the interval only, or was left alone.
        why: one sentence.
        below: how far it lets the difference lie lower than estimated, in tokens.
        above: how far higher.
        source: who says that the engine does it; "" if it follows from the figures.
    """

    name: str
    tokens: float
    why: str
    below: float = 0.0
    above: float = 0.0
    source: str = ""


def completion_corrections(prefill: float, cut: float, source: str = "") -> tuple[Correction, ...]:
    """Of completion tokens / rounds, in tokens: what the first token adds, and what the end of the text takes."""
    return (
        Correction("last round cut", cut, "the last round counts up to the end of the text only", source=source),
        Correction("prefill token", prefill, "the first token of an answer costs no round, and is counted"),
    )


@dataclass(frozen=True)
class UnequalRequest:
    """A request of the same answer that has other integers than the reference.

    Args:
        sequence_id: in the trace.
        request_id: the server's; None if it tells none.
        what: the fields that differ, in words.
    """

    sequence_id: str
    request_id: str | None
    what: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """A figure of the server beside what the engine would print for the reference's rounds. In tokens per round.

    Args:
        kind: how strong it is.
        verdict: of this comparison alone.
        of: which figure of the server, e.g. ``"63 lines of SGLang's decode log"``.
        form: what it divides by what.
        server: its value.
        server_low: the least that it may have been before it was rounded.
        server_high: the most.
        reference: what the engine would print for the reference's rounds, corrections included.
        plain_reference: the acceptance length of those rounds, before the corrections.
        difference: server minus reference.
        server_rounds: rounds behind the server's figure; None if not even an estimate is known.
        reference_rounds: rounds behind the reference's.
        corrections: each with its size.
        assumptions: what was taken for granted, one sentence each.
        unequal: of the same requests, those that differ.
        num_requests: requests that were compared one by one; 0 if none was.
        near_tie_probability: that near-ties alone make so many unequal; None where requests were not compared.
        more: what would settle it; None if it is settled.
        as_sample: the same difference as one of requests like these, drawn by chance; None where nothing is unequal, or
            only a sum is known.
        compared_rounds: different rounds that were held against the reference's as integers; 0 if none was.
        most_rounds_a_request: the verdict holds only if the server's requests have at most so many rounds each, and
            how many there were is not known; None if it holds with any, or their number is known.
        is_quoted: whether the figure is none of the server's own, but a value to compare with.
    """

    kind: Kind
    verdict: Verdict
    of: str
    form: str
    server: float
    server_low: float
    server_high: float
    reference: float
    plain_reference: float
    difference: Difference
    server_rounds: int | None
    reference_rounds: int
    corrections: tuple[Correction, ...] = ()
    assumptions: tuple[str, ...] = ()
    unequal: tuple[UnequalRequest, ...] = ()
    num_requests: int = 0
    near_tie_probability: float | None = None
    more: MoreData | None = None
    as_sample: Difference | None = None
    compared_rounds: int = 0
    most_rounds_a_request: int | None = None
    is_quoted: bool = False

    def to_dict(self, confidence: float) -> dict[str, Any]:
        """JSON-able; an end that is not known is null.

        Args:
            confidence: of each one-sided test, as the verdict was made with.
        """
        return {
            "kind": self.kind,
            "kind_meaning": KIND_MEANING[self.kind],
            "verdict": self.verdict,
            "of": self.of,
            "form": self.form,
            "server": {"value": self.server, "low": self.server_low, "high": self.server_high},
            "reference": self.reference,
            "plain_reference": self.plain_reference,
            "difference": _difference_dict(self.difference, confidence),
            "as_sample": None if self.as_sample is None else _difference_dict(self.as_sample, confidence),
            "server_rounds": self.server_rounds,
            "reference_rounds": self.reference_rounds,
            "corrections": [vars(correction) for correction in self.corrections],
            "assumptions": list(self.assumptions),
            "unequal": [{**vars(request), "what": list(request.what)} for request in self.unequal],
            "num_requests": self.num_requests,
            "near_tie_probability": self.near_tie_probability,
            "compared_rounds": self.compared_rounds,
            "most_rounds_a_request": self.most_rounds_a_request,
            "is_quoted": self.is_quoted,
            "more": self.more and {**vars(self.more), "factor": _finite(self.more.factor)},
        }


def _difference_dict(difference: Difference, confidence: float) -> dict[str, Any]:
    return {
        "estimate": difference.estimate,
        "equivalence_interval": [_finite(end) for end in difference.ends(2 * confidence - 1)],
        "equivalence_confidence": round(2 * confidence - 1, 12),
        "difference_interval": [_finite(end) for end in difference.ends(confidence)],
        "difference_confidence": confidence,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
