"""The answer to "why does this server differ": ranked hypotheses, what would separate them, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from eagle3ref.config import TreeConfig
from eagle3ref.diagnose.against import Against
from eagle3ref.diagnose.hypothesis import RIGHT, LeftOut
from eagle3ref.diagnose.laboratory import Laboratory
from eagle3ref.diagnose.ranking import Candidate, common_part
from eagle3ref.diagnose.runtime import RuntimeCause
from eagle3ref.diagnose.separation import NextObservation
from eagle3ref.diagnose.symptoms import Sign
from eagle3ref.explain.trap import Trap

Verdict = Literal["as it should be", "cause named", "tie", "none fits", "cannot tell"]
VERDICT_MEANING: dict[Verdict, str] = {
    "as it should be": "the right wiring explains the evidence, and what else does would cost less than the margin",
    "cause named": "one cause explains the evidence, and what does without it is at least 20 times less probable",
    "tie": "several causes explain the evidence, and it cannot tell them apart; the right wiring does not, or has a "
    "probability below 0.05",
    "none fits": "no wiring that was replayed explains the evidence: look at what could not be replayed and at the "
    "running server",
    "cannot tell": "the right wiring may be what is running, and so may wirings that would cost more than the margin",
}
IMPROBABLE = 0.05  # the right wiring is called wrong below this, and where so far off would be as rare if it were right


@dataclass(frozen=True)
class Cost:
    """What the replays took.

    Args:
        forwards: draft forwards that were run.
        rows: draft rows times layers that they had.
        replays: the same, in those of plain replays of the whole trace.
        hypotheses: that were replayed, the right wiring included.
        seconds: by the clock, all replays and scores.
    """

    forwards: int = 0
    rows: int = 0
    replays: float = 0.0
    hypotheses: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Diagnosis:
    """Why a server's acceptance is what it is.

    Args:
        verdict: ``VERDICT_MEANING`` says what each claims.
        sentence: the verdict in words.
        tree: that was replayed; None if the files alone decided.
        seen: the evidence, one line each: kind of comparison, and what it says.
        ranked: every hypothesis that was replayed, the most probable first; empty if the files alone decided.
        leading: those that the evidence cannot tell from the first and that explain it; if none does, the nearest.
        from_files: traps in files or command that would do it alone, the worst first.
        signs: symptoms, measured or told.
        runtime: causes that no replay imitates, those first that the symptoms point at.
        against: what the other evidence says; None if none was given.
        following: what to observe next, the cheapest first.
        left_out: hypotheses that were not replayed, and why.
        cost: of all replays.
    """

    verdict: Verdict
    sentence: str
    tree: TreeConfig | None
    seen: tuple[str, ...]
    ranked: tuple[Candidate, ...]
    leading: tuple[Candidate, ...]
    from_files: tuple[Trap, ...]
    signs: tuple[Sign, ...]
    runtime: tuple[RuntimeCause, ...]
    against: Against | None
    following: tuple[NextObservation, ...]
    left_out: tuple[LeftOut, ...]
    cost: Cost

    @property
    def is_wrong(self) -> bool:
        """Whether something is wrong with the server."""
        return self.verdict not in ("as it should be", "cannot tell")

    @property
    def names(self) -> tuple[str, ...]:
        """Of the leading hypotheses."""
        return tuple(candidate.name for candidate in self.leading)

    @property
    def causes(self) -> tuple[str, ...]:
        """Classes of the leading hypotheses, or of what the files say, each once."""
        return tuple(dict.fromkeys(candidate.hypothesis.cause for candidate in self.leading))

    @property
    def not_carried_through(self) -> tuple[str, ...]:
        """Leading ones that the budget did not replay on all sequences: more of it may still exclude them."""
        most = max((candidate.sequences for candidate in self.ranked), default=0)
        return tuple(candidate.name for candidate in self.leading if candidate.sequences < most)

    @property
    def untestable(self) -> tuple[LeftOut, ...]:
        """Hypotheses that the trace lacks states for, each with what to record."""
        return tuple(one for one in self.left_out if not one.is_identity)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; what is undefined is null."""
        return {
            "verdict": self.verdict,
            "verdict_meaning": VERDICT_MEANING[self.verdict],
            "sentence": self.sentence,
            "wrong": self.is_wrong,
            "tree": None if self.tree is None else asdict(self.tree),
            "seen": list(self.seen),
            "leading": list(self.names),
            "not_carried_through": list(self.not_carried_through),
            "ranked": [_candidate(candidate) for candidate in self.ranked],
            "from_files": [asdict(trap) for trap in self.from_files],
            "signs": [asdict(sign) for sign in self.signs],
            "runtime": [asdict(cause) for cause in self.runtime],
            "against": None if self.against is None else asdict(self.against),
            "next": [{**asdict(one), "expected": dict(one.expected)} for one in self.following],
            "left_out": [asdict(one) for one in self.left_out],
            "cost": asdict(self.cost),
        }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    hypothesis, length = candidate.hypothesis, candidate.acceptance_length
    return {
        "name": hypothesis.name,
        "cause": hypothesis.cause,
        "engine_does": hypothesis.engine_does,
        "fix": hypothesis.fix,
        "log_odds": candidate.log_odds,
        "share": candidate.share,
        "p": candidate.p,
        "fits": candidate.fits,
        "near_ties": None if candidate.near_ties is None else asdict(candidate.near_ties),
        "equal_requests": candidate.equal,
        "requests": candidate.requests,
        "acceptance_length": None if math.isnan(length) else length,
        "acceptance_rate_at": list(candidate.rates),
        "sequences": candidate.sequences,
        "said_by": None if candidate.said_by is None else candidate.said_by.name,
    }


def judge(leading: Sequence[Candidate], ranked: Sequence[Candidate], margin: float, *, has_size: bool) -> Verdict:
    """The verdict on what leads.

    Args:
        leading: those that the evidence does not tell from the first.
        ranked: all, the right wiring among them.
        margin: in tokens per round.
        has_size: whether the evidence says over how much it is; else its sampling error is unknown.
    """
    if not has_size:
        return "cannot tell"
    # What the budget did not carry through has not been seen to fit.
    most = max(candidate.sequences for candidate in leading)
    fitting = [candidate for candidate in leading if candidate.fits and candidate.sequences == most]
    right = right_of(ranked)
    costly = [c for c in leading if abs(c.acceptance_length - right.acceptance_length) > margin]
    # Figures of which one in twenty right servers has the like accuse nobody, whatever explains them better.
    improbable = max(right.share, right.p) < IMPROBABLE
    if right in fitting or (not right.requests and right.p >= IMPROBABLE):
        return "as it should be" if not costly else "tie" if improbable else "cannot tell"
    if right.fits and not costly:
        return "as it should be"  # near-ties explain it, and what imitates them better costs next to nothing
    if not fitting:
        return "none fits"
    return "cause named" if len(leading) == 1 or one_cause(leading) else "tie"


def right_of(ranked: Sequence[Candidate]) -> Candidate:
    """The right wiring, which is always tried."""
    return next(candidate for candidate in ranked if candidate.name == RIGHT.name)


def one_cause(leading: Sequence[Candidate]) -> bool:
    """Whether all of them are mended in one place."""
    return common_part(leading) is not None or len({candidate.hypothesis.fix for candidate in leading}) == 1


def in_words(
    verdict: Verdict,
    leading: Sequence[Candidate],
    ranked: Sequence[Candidate],
    laboratory: Laboratory,
    *,
    has_size: bool,
) -> str:
    """The sentence that a report begins with; arguments as of ``judge``."""
    first, right = leading[0], right_of(ranked)
    names = ", ".join(candidate.name for candidate in leading[:6]) + (", …" if len(leading) > 6 else "")
    explains = f"{first.equal} of {first.requests} requests round by round" if first.requests else "the figures"
    if verdict == "as it should be":
        return (
            f"Nothing is wrong with the server: the right wiring explains {explains}. Its length is "
            f"{right.acceptance_length:.2f}; if that is low, the draft is weak on these prompts."
        )
    if verdict == "cause named":
        if common_part(leading) is None:
            return f"One of {names}, mended alike. This explains {explains}, and nothing else comes near."
        rest = "nothing else comes near" if len(leading) == 1 else f"a second fault is possible: {_others(leading[1:])}"
        untried = _untried([left for left in laboratory.untestable if left.streams], laboratory)
        return f"{first.name}: {first.hypothesis.engine_does} This explains {explains}, and {rest}.{untried}"
    if verdict == "tie":
        return (
            f"Something is wrong: the right wiring has a probability of {_probability(right)}. Which of {len(leading)} "
            f"causes it is the evidence cannot tell: {names}."
        )
    if verdict == "cannot tell" and not has_size:
        return f"No rounds are told, so no error is known and no cause is named. Possible are {names}."
    if verdict == "cannot tell":
        though = f" ({right.p:.0%} of right servers are as far off)" if right.share < IMPROBABLE else ""
        return (
            f"The right wiring explains these rounds with a probability of {_probability(right)}{though}; they could "
            f"also come from {_others(leading)}."
        )
    nearest = ranked[0]
    equal = f", has {nearest.equal} of {nearest.requests} requests right" if nearest.requests else ""
    untried = _untried(laboratory.untestable, laboratory)
    return f"No wiring that was replayed explains the evidence; the nearest is {nearest.name}{equal}.{untried}"


def _probability(candidate: Candidate) -> str:
    return f"{candidate.share:.2f}" if candidate.share >= 0.005 else "less than 0.01"


def _untried(left_out: Sequence[LeftOut], laboratory: Laboratory) -> str:
    """What could explain it and was not replayed, and how it can be."""
    if not left_out:
        return ""
    names = [left.name for left in left_out]
    actions = dict.fromkeys([laboratory.to_record, *(left.action for left in left_out if not left.streams)])
    some = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f" Not replayed, for want of what they need: {some}. {' '.join(actions).strip()}"


def _others(leading: Sequence[Candidate]) -> str:
    names = [candidate.name for candidate in leading if candidate.name != RIGHT.name]
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
