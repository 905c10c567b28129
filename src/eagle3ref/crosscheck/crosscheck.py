"""Does a server accept what this draft on this target should? Every figure that it gave, held against the replay."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.config import AcceptanceRule, TreeConfig
from eagle3ref.crosscheck.comparison import KIND_MEANING, Comparison
from eagle3ref.crosscheck.figures import figures_of
from eagle3ref.crosscheck.matching import Match, match_requests
from eagle3ref.crosscheck.other_answers import requests_alone, same_prompts
from eagle3ref.crosscheck.outcome import CrossCheck
from eagle3ref.crosscheck.predict import predict_requests
from eagle3ref.crosscheck.reference import Reference
from eagle3ref.crosscheck.same_requests import Pair, pairs_of, round_by_round
from eagle3ref.crosscheck.same_sums import can_be_summed, in_sum
from eagle3ref.crosscheck.settings import check_says_something, check_settings, rate_doubt, says_nothing
from eagle3ref.crosscheck.speed import measured_speed
from eagle3ref.crosscheck.statements import assumptions, remarks
from eagle3ref.crosscheck.workload import same_workload
from eagle3ref.draft import Eagle3Draft
from eagle3ref.engines import EngineProfile
from eagle3ref.replay import SequenceRounds, replay
from eagle3ref.servers import Evidence, Reading
from eagle3ref.statistics import DEFAULT_CONFIDENCE, DEFAULT_MARGIN, Criterion, check_criterion
from eagle3ref.target import Target
from eagle3ref.trace import Trace

_KINDS = list(KIND_MEANING)
_NO_THROUGHPUT = "No line tells tokens per second beside its length: the speed without speculation was of no use."


def crosscheck(
    trace: Trace,
    draft: Eagle3Draft,
    evidence: Evidence,
    tree: TreeConfig,
    *,
    rule: AcceptanceRule | None = None,
    profile: EngineProfile | None = None,
    target: Target | str | Path | None = None,
    margin: float = DEFAULT_MARGIN,
    confidence: float = DEFAULT_CONFIDENCE,
    baseline_tokens_per_second: float | None = None,
    seed: int = 0,
    on_sequence: Callable[[SequenceRounds], None] = lambda _: None,
) -> CrossCheck:
    """Replay the draft on the trace, and hold every figure of the evidence against what it should be.

    Args:
        trace: of the target, on the server's prompts; the best is the server's own answers.
        draft: wired as it should be, or as an engine would.
        evidence: what the server gave.
        tree: that the server runs.
        rule: as ``replay`` takes it.
        profile: of the engine; decides what its figures count.
        target: as ``replay`` takes it.
        margin: in tokens per round; see ``Difference.verdict``.
        confidence: of each one-sided test.
        baseline_tokens_per_second: the server's speed without speculation.
        seed: as ``replay`` takes it.
        on_sequence: as ``replay`` takes it.

    Raises:
        Eagle3RefError: as ``replay``; evidence of another tree, or without any figure of acceptance; a margin that
            is not positive, or a confidence outside (0.5, 1).
    """
    check_criterion(margin, confidence)
    check_settings(evidence, tree)
    # Before the replay, which may take hours: what it cannot be held against, and a baseline that is none.
    check_says_something(evidence)
    speed = measured_speed(evidence, tree, baseline_tokens_per_second)
    rounds: list[SequenceRounds] = []

    def keep(sequence: SequenceRounds) -> None:
        rounds.append(sequence)
        on_sequence(sequence)

    counts = replay(trace, draft, tree, rule=rule, target=target, seed=seed, on_sequence=keep)
    judged = compare(trace, rounds, counts, evidence, profile=profile, margin=margin, confidence=confidence)
    unused = () if speed is not None or baseline_tokens_per_second is None else (_NO_THROUGHPUT,)
    return replace(judged, speed=speed, remarks=(*judged.remarks, *unused))


def compare(
    trace: Trace,
    rounds: Sequence[SequenceRounds],
    counts: AcceptanceCounts,
    evidence: Evidence,
    *,
    profile: EngineProfile | None = None,
    margin: float = DEFAULT_MARGIN,
    confidence: float = DEFAULT_CONFIDENCE,
) -> CrossCheck:
    """``crosscheck`` of a replay that is there already.

    Args:
        trace: that was replayed.
        rounds: of all its sequences.
        counts: of these rounds.
        evidence: as ``crosscheck`` takes it, of the same tree.
        profile: likewise.
        margin: likewise.
        confidence: likewise.

    Raises:
        Eagle3RefError: evidence of another tree, or without any figure of acceptance; a margin that
            is not positive, or a confidence outside (0.5, 1).
    """
    check_criterion(margin, confidence)
    check_settings(evidence, counts.tree)
    predicted = predict_requests(trace, rounds, counts.tree, goes_on=counts.rule.name == "greedy")
    reference = Reference([predicted[sequence_id] for sequence_id in trace.ids], counts)
    matches = match_requests(trace, evidence.requests)
    criterion = Criterion(margin, confidence)
    # Drafts that a server samples are drawn anew: then one answer has many possible rounds.
    is_determined = counts.rule.drafts == "top"
    pairs = pairs_of(matches, predicted) if is_determined else []
    summed = _runs_of(pairs, matches, evidence)
    figures = figures_of(evidence, counts.tree, profile, leave_out=summed)
    doubt = rate_doubt(evidence, counts.tree, profile)
    comparisons = [
        *_of_requests(matches, pairs, summed, reference, criterion),
        *(same_workload(figure, reference, profile, criterion, doubt) for figure in figures),
    ]
    if not comparisons:
        raise says_nothing(evidence)
    comparisons.sort(key=_weakness)
    return CrossCheck(
        comparisons=tuple(comparisons),
        matches=matches,
        counts=counts,
        margin=margin,
        confidence=confidence,
        assumptions=tuple(assumptions(counts, profile)),
        remarks=tuple(remarks(evidence, counts, profile, comparisons, matches, margin)),
    )


def _weakness(comparison: Comparison) -> tuple[bool, int, bool]:
    """To sort by: a value that is none of the server's stands behind, and of a kind a figure without a known error."""
    return comparison.is_quoted, _KINDS.index(comparison.kind), math.isinf(comparison.difference.variance)


def _runs_of(pairs: Sequence[Pair], matches: Sequence[Match], evidence: Evidence) -> list[Reading]:
    """The runs that were of exactly these requests: all of their answers are known, and as many tokens were counted."""
    tokens = sum(pair.predicted.completion_tokens for pair in pairs)
    is_known = bool(pairs) and len(pairs) == len(matches)
    return [run for run in evidence.runs if is_known and run.completion_tokens == tokens and can_be_summed(run)]


def _of_requests(
    matches: Sequence[Match],
    pairs: Sequence[Pair],
    runs: Sequence[Reading],
    reference: Reference,
    criterion: Criterion,
) -> list[Comparison]:
    """What single requests, or the totals of exactly these, can be held against; the strongest first."""
    found = [round_by_round(pairs, criterion), *(in_sum(pairs, run, criterion) for run in runs)]
    if len(pairs) < sum(match.how != "unmatched" for match in matches):
        found.append(same_prompts(matches, reference, criterion))
    alone = [match.request for match in matches if match.how == "unmatched"]
    found.append(requests_alone(alone, reference, criterion))
    return [comparison for comparison in found if comparison is not None]
