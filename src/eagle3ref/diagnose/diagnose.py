"""Why does a server differ: every known mis-wiring is replayed, and held against all that the server says."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from eagle3ref.config import AcceptanceRule, TreeConfig
from eagle3ref.diagnose.against import Against, hold_against
from eagle3ref.diagnose.diagnosis import Cost, Diagnosis, Verdict, in_words, judge, right_of
from eagle3ref.diagnose.hypothesis import RIGHT, Hypothesis, LeftOut
from eagle3ref.diagnose.laboratory import Laboratory
from eagle3ref.diagnose.likelihood import FITS
from eagle3ref.diagnose.observation import Observation, has_sizes, in_sentences, observe
from eagle3ref.diagnose.race import Race
from eagle3ref.diagnose.ranking import leading, parts_of, rank
from eagle3ref.diagnose.runtime import RUNTIME_CAUSES, SYMPTOMS, RuntimeCause, point_at
from eagle3ref.diagnose.scoring import Scoring
from eagle3ref.diagnose.separation import next_observations
from eagle3ref.diagnose.static import decisive_traps, said_by_files
from eagle3ref.diagnose.symptoms import Sign, measured_signs
from eagle3ref.draft import Eagle3Draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.explain import EngineDraft, Explanation
from eagle3ref.servers import Evidence
from eagle3ref.statistics import DEFAULT_MARGIN
from eagle3ref.target import Target
from eagle3ref.trace import Trace

DEFAULT_BUDGET = 25.0  # plain replays of the trace, in draft rows
_DEAD = 1.25  # the most that is seen where head, map or states are missing
_WORKING = 1.5  # the least that a draft gets which is worth serving; files alone are believed where this is excluded
_EXCLUDED = 0.05
_UNKNOWN_STEPS = 5  # where the command does not say how many drafts one round may accept at once


def diagnose(
    trace: Trace,
    draft: Eagle3Draft,
    evidence: Evidence,
    tree: TreeConfig,
    *,
    rule: AcceptanceRule | None = None,
    target: Target | str | Path | None = None,
    engine_draft: EngineDraft | None = None,
    explanation: Explanation | None = None,
    against: Evidence | None = None,
    symptoms: Sequence[str] = (),
    margin: float = DEFAULT_MARGIN,
    budget: float = DEFAULT_BUDGET,
    on_stage: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Replay a trace under every known mis-wiring, and rank them by how well they explain what a server says.

    Args:
        trace: recorded from the server's target. Neighbours of the capture points and final hidden states in it make
            more hypotheses testable.
        draft: as it was trained.
        evidence: of the server. Request fields with output ids decide by far the most.
        tree: that the server runs.
        rule: that it runs at temperature > 0; None for the default.
        target: the trace's target or its folder, for hypotheses that need its head or embedding.
        engine_draft: the draft as the server's engine reads it, from ``load_draft_as``; what differs is a hypothesis.
        explanation: of the server's command, where ``load_draft_as`` refuses; its traps raise the odds of what they
            make true.
        against: other evidence of the same server with one thing changed.
        symptoms: what was seen besides, names out of ``SYMPTOMS``.
        margin: in tokens per round; wirings that cost less than this are not held against a server.
        budget: most that all replays together may cost, in draft rows of plain replays of the whole trace.
        on_stage: called with a sentence before each stage.

    Raises:
        Eagle3RefError: nothing about acceptance in the evidence, an unknown symptom, or what ``replay`` refuses.
    """
    return diagnose_with(
        Laboratory(trace, draft, tree, rule=rule, target=target, engine_draft=engine_draft),
        evidence,
        explanation=explanation if engine_draft is None else engine_draft.explanation,
        against=against,
        symptoms=symptoms,
        margin=margin,
        budget=budget,
        on_stage=on_stage,
    )


def diagnose_with(
    laboratory: Laboratory,
    evidence: Evidence,
    *,
    explanation: Explanation | None = None,
    against: Evidence | None = None,
    symptoms: Sequence[str] = (),
    margin: float = DEFAULT_MARGIN,
    budget: float = DEFAULT_BUDGET,
    on_stage: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """As ``diagnose``, in a laboratory: what it has replayed for other evidence is not replayed again.

    Raises:
        Eagle3RefError: as ``diagnose``.
    """
    _check_symptoms(symptoms)
    trace, said = laboratory.trace, said_by_files(explanation)
    observations = observe(trace, evidence, laboratory.rule)
    if not observations:
        raise _nothing_to_explain(evidence)
    started = laboratory.forwards, laboratory.rows, time.perf_counter()
    race = Race(laboratory, observations, budget, on_stage)
    race.run_singles()
    ranked = rank(race, said)
    # A near-tie may have moved a request, but a second fault may have too.
    if not any(candidate.fits and candidate.equal == candidate.requests for candidate in leading(ranked)):
        race.run_pairs()
        ranked = rank(race, said)
    while race.finish([candidate.name for candidate in leading(rank(race, said))]):
        pass  # more sequences of one may bring another up
    nearest = leading(rank(race, said))
    race.look_at_near_ties({RIGHT.name, *(candidate.name for candidate in nearest), *parts_of(nearest)})
    ranked = rank(race, said)
    ahead, has_size = leading(ranked), has_sizes(observations)
    verdict = judge(ahead, ranked, margin, has_size=has_size)
    right = right_of(ranked)
    if verdict == "tie":
        ahead = tuple(candidate for candidate in ahead if candidate != right)
    elif verdict == "cannot tell" and right not in ahead:
        ahead = (*ahead, right)
    other = None if against is None else _against(evidence, against, race)
    signs = _signs(evidence, observations, race, symptoms)
    forwards, rows = laboratory.forwards - started[0], laboratory.rows - started[1]
    return Diagnosis(
        verdict=verdict,
        sentence=in_words(verdict, ahead, ranked, laboratory, has_size=has_size),
        tree=laboratory.tree,
        seen=in_sentences(observations),
        ranked=ranked,
        leading=ahead,
        from_files=decisive_traps(explanation),
        signs=signs,
        runtime=_runtime(verdict, signs, asked_for=bool(symptoms) or other is not None),
        against=other,
        following=next_observations(trace, race.named([one.name for one in ahead]), race.scoring, observations),
        left_out=(*laboratory.left_out, *map(_unreached, race.unreached)),
        cost=Cost(forwards, rows, rows / laboratory.replay_rows, len(ranked), time.perf_counter() - started[2]),
    )


def diagnose_files(explanation: Explanation, evidence: Evidence, symptoms: Sequence[str] = ()) -> Diagnosis | None:
    """What files and command decide before any replay: a trap that kills acceptance, on a server where it is dead.

    Args:
        explanation: of the server's command.
        evidence: of the server.
        symptoms: as ``diagnose`` takes them.

    Returns:
        None if no such trap is there, the server accepts more than such a trap leaves, or its rounds are too few, or
        not told, to exclude a working draft's length of 1.5.

    Raises:
        Eagle3RefError: an unknown symptom.
    """
    _check_symptoms(symptoms)
    traps, pooled = decisive_traps(explanation), evidence.best
    length = None if pooled is None else pooled.length
    if not traps or pooled is None or length is None or length.value > _DEAD or pooled.rounds is None:
        return None
    tree = explanation.wiring.tree.tree
    steps = _UNKNOWN_STEPS if tree is None else tree.num_steps
    if _chance_of_working(length.value, pooled.rounds.low, steps) > _EXCLUDED:
        return None
    return Diagnosis(
        verdict="cause named",
        sentence=f"The files and the command decide it, before any replay: {traps[0].what}.",
        tree=None,
        seen=(f"length {length.value:.4g}: next to no draft is accepted",),
        ranked=(),
        leading=(),
        from_files=traps,
        signs=tuple(map(Sign.told, symptoms)),
        runtime=(),
        against=None,
        following=(),
        left_out=(),
        cost=Cost(),
    )


def _chance_of_working(length: float, rounds: float, num_steps: int) -> float:
    """That a working draft accepts so little: Poisson, of rounds in which all drafts or none are accepted.

    That is the most uneven way to a given length, so that no other makes so little of it more probable by far.
    """
    expected, seen = (_WORKING - 1) * rounds / num_steps, math.floor((length - 1) * rounds / num_steps)
    return sum(math.exp(k * math.log(expected) - expected - math.lgamma(k + 1)) for k in range(seen + 1))


def _against(mine: Evidence, other: Evidence, race: Race) -> Against | None:
    right = race.scoring.figures(race.right)
    trace = race.laboratory.trace
    observed = observe(trace, other, race.laboratory.rule)
    if right is None or not observed:
        return None
    fits = Scoring(trace, observed, race.right).scored(race.right).score.p >= FITS
    return hold_against(mine, other, right, other_fits_right=fits)


def _signs(
    evidence: Evidence, observations: Sequence[Observation], race: Race, told: Sequence[str]
) -> tuple[Sign, ...]:
    right = race.scoring.requests(race.right)
    measured = measured_signs(evidence, observations, right, race.scoring.figures(race.right))
    return (*map(Sign.told, told), *(sign for sign in measured if sign.symptom not in told))


def _runtime(verdict: Verdict, signs: Sequence[Sign], *, asked_for: bool) -> tuple[RuntimeCause, ...]:
    """What the symptoms point at, where no wiring is named; where none fits and nothing points, all of them."""
    if verdict in ("as it should be", "cause named") and not asked_for:
        return ()
    pointed = point_at([sign.symptom for sign in signs])
    return pointed or (RUNTIME_CAUSES if verdict == "none fits" else ())


def _unreached(hypothesis: Hypothesis) -> LeftOut:
    return LeftOut(hypothesis.name, hypothesis.cause, "The budget was spent before its turn.", "Raise --budget.")


def _check_symptoms(symptoms: Sequence[str]) -> None:
    unknown = [name for name in symptoms if name not in SYMPTOMS]
    if unknown:
        raise Eagle3RefError(
            "reading the symptoms",
            found=f"{unknown[0]!r}",
            expected=f"one of {', '.join(SYMPTOMS)}",
            action="Use the nearest of these, or leave it out.",
        )


def _nothing_to_explain(evidence: Evidence) -> Eagle3RefError:
    found = f"{len(evidence.readings)} readings, none with an acceptance length, rates or request counts"
    return Eagle3RefError(
        "diagnosing a server",
        found=found,
        expected="at least one figure about acceptance",
        action="Give decode log lines, request fields or metrics; eagle3ref read says what a file holds.",
    )
