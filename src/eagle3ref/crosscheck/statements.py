"""What a cross-check takes for granted, and what in the evidence does not fit together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eagle3ref.acceptance import KIND_MEANING, AcceptanceCounts
from eagle3ref.crosscheck.comparison import Comparison
from eagle3ref.crosscheck.matching import Match
from eagle3ref.crosscheck.near_ties import MOST_NEAR_TIES, NEAR_TIES_UNLIKELY
from eagle3ref.crosscheck.settings import rate_doubt
from eagle3ref.engines import EngineProfile
from eagle3ref.servers import Evidence

_MOST_REMARKS = 12
_ENGINES = {"SGLang", "vLLM", "TensorRT-LLM", "llama.cpp"}
_OF_A_SERVER = ("request", "window", "lifetime")


def assumptions(counts: AcceptanceCounts, profile: EngineProfile | None) -> Iterator[str]:
    """Of every comparison, one sentence each."""
    yield f"The server runs the tree {counts.tree} (num_steps/topk/num_draft_tokens), in every round."
    if profile is None:
        yield "No engine was named: the figures are taken to count the last round whole, as SGLang and vLLM do today."
    else:
        yield f"The figures count what those of {profile.name} count."
    yield f"The reference is {counts.kind}. {KIND_MEANING[counts.kind]}"
    off, recorded = int(counts.off_argmax_tokens.sum()), int(counts.recorded_tokens.sum())
    if counts.kind == "estimate":
        yield f"{off:,} of {recorded:,} recorded tokens are not the target's first choice, or none was recorded."
    if counts.rule.name != "greedy":
        yield f"The server samples as the trace does, and keeps drafts by the rule {counts.rule.name}."


def remarks(
    evidence: Evidence,
    counts: AcceptanceCounts,
    profile: EngineProfile | None,
    comparisons: Sequence[Comparison],
    matches: Sequence[Match],
    margin: float,
) -> Iterator[str]:
    """The most telling first; those of single lines once each."""
    yield from _of_comparisons(comparisons, margin)
    parted = sum(match.how == "same prompt" and match.request.output_ids is not None for match in matches)
    if parted and counts.rule.name == "greedy":
        yield (
            f"{parted} of {len(matches)} greedy answers part from the recorded ones: near-ties do that in low "
            "precision; so do another target, template or temperature."
        )
    tree, engine = counts.tree, None if profile is None else profile.name
    rate = evidence.rate(
        num_draft_tokens=tree.num_draft_tokens, num_steps=tree.num_steps, topk=tree.topk, engine=engine
    )
    if rate is not None and rate.verdict == "none":
        yield rate_doubt(evidence, tree, profile)
    elif rate is not None:
        yield rate.sentence
    yield from () if rate is None else rate.remarks
    engines = {reading.tool for reading in evidence.readings if reading.scope in _OF_A_SERVER} & _ENGINES
    if len(engines) > 1:
        yield (
            f"The evidence is of {' and '.join(sorted(engines))}, several servers: each figure is held against the "
            "one reference, and of log lines only those of the engine with the most. Check them one by one."
        )
    graphs = [window.cuda_graph for window in evidence.windows if window.cuda_graph is not None]
    if False in graphs:
        off = graphs.count(False)
        yield f"CUDA graphs were off in {off} of {len(graphs)} lines: no acceptance is lost by that, but much speed is."
    trend = evidence.trend("time")
    if trend is not None and trend.direction != "none shown":
        yield f"The length {trend.direction} with time, by {trend.change:+.2f} over all of it: one number hides that."
    of_lines = dict.fromkeys(remark for reading in evidence.readings for remark in reading.remarks)
    own = list(dict.fromkeys([*evidence.remarks, *of_lines]))
    yield from own[:_MOST_REMARKS]
    if len(own) > _MOST_REMARKS:
        yield f"{len(own) - _MOST_REMARKS} further remarks on single lines: `eagle3ref read` lists them."


def _of_comparisons(comparisons: Sequence[Comparison], margin: float) -> Iterator[str]:
    best, *weaker = [comparison for comparison in comparisons if not comparison.is_quoted] or comparisons[:1]
    for verdict in dict.fromkeys(c.verdict for c in weaker if c.verdict not in (best.verdict, "cannot tell")):
        said = f"a weaker figure {verdict} (other figures)"
        if best.verdict == "cannot tell":
            yield f"The strongest comparison cannot tell; {said}, which settles nothing beside it."
        else:
            yield f"The figures contradict each other: the strongest {best.verdict} and decides, {said}."
    for comparison in comparisons:
        if comparison.verdict == "agrees" and comparison.compared_rounds and not comparison.unequal:
            share = 3 / comparison.compared_rounds  # (1 - share)^rounds is 5 %
            yield f"All equal: at 95 % fewer than {share:.1%} of rounds like these come out otherwise."
        chance = comparison.near_tie_probability
        if chance is None:
            continue
        in_sum = comparison.kind == "same requests in sum"
        unequal = "The sums" if in_sum else f"{len(comparison.unequal)} of {comparison.num_requests} requests"
        if chance >= NEAR_TIES_UNLIKELY:
            yield f"{unequal} are not equal, as near-ties in other arithmetic may make them (chance {chance:.2f})."
            continue
        small = abs(comparison.difference.estimate) <= margin
        cost = " What it does to the length of these requests is within the margin." if small else ""
        yield (
            f"{unequal} are not equal, more than near-ties explain even at {MOST_NEAR_TIES:.0%} of the rounds "
            f"(chance {chance:.2g}): the server does not run this draft as the reference does.{cost}"
        )
