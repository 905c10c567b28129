"""Acceptance counts for people: one replay in full, and several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eagle3ref.acceptance import KIND_MEANING, AcceptanceCounts, AcceptanceRatios, RatioName
from eagle3ref.config import RULE_MEANING, AcceptanceRule
from eagle3ref.engines import SGLANG_0_5_23, SGLANG_LOG_ERAS, EngineProfile, engine_profile
from eagle3ref.inspection import TraceSummary
from eagle3ref.positions import RowCounts
from eagle3ref.report.style import Bar, ends, facts, percent, rate

_BAR_WIDTH = 10
_LEGEND = (
    ("acceptance length", "tokens committed per round, bonus token included: 1 + accepted drafts / rounds"),
    ("node rate", "accepted drafts / draft tokens verified, of which there are num_draft_tokens - 1 a round"),
    ("joint", "rounds that accepted at least d drafts / all rounds"),
    ("conditional", "rounds that accepted d drafts / rounds that accepted d - 1"),
    ("c", "drafts that one round accepted; its bonus token is not in c"),
    ("censored", "rounds whose num_steps tokens run past the end of the record; they are in no ratio"),
    ("95 % interval", "prompts are what is independent, not rounds: Student t on the linearized ratio"),
)

_EXPECTED_LEGEND = (
    ("expected", "the length with each outcome replaced by the probability that it had: same mean, less noise"),
    (
        "surplus",
        "accepted drafts a round, observed - expected; 0 on average if the text was drawn from these probabilities. "
        "1 interval in 20 misses 0 by chance, more often with few prompts",
    ),
)


def replay_report(counts: AcceptanceCounts, title: str, profile: EngineProfile | None = None) -> RenderableType:
    """One replay: figures, rates by depth, histogram, and what the engine would log; without one, SGLang and vLLM.

    Counts of all positions come without logs: no engine has such a number.

    Raises:
        Eagle3RefError: no complete round.
    """
    pictures = Columns([_depths(counts), _histogram(counts)], padding=(0, 4))
    body: list[RenderableType] = [_figures(counts), "", pictures]
    if counts.kind != "positions":
        logs = _known_logs(counts) if profile is None else _log(f"{profile.engine} logs", profile, counts)
        body += ["", logs]
    return Group(_heading(title), Padding(Group(*body), (0, 0, 0, 2)))


def comparison(runs: Sequence[tuple[str, str, AcceptanceCounts]]) -> RenderableType:
    """One line for each (answers, draft, counts).

    Raises:
        Eagle3RefError: counts without a complete round.
    """
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("answers", "draft", "tree"):
        table.add_column(name)
    for name in ("length", "95 %", "node rate", "rounds", "censored"):
        table.add_column(name, justify="right")
    table.add_column("kind")
    for answers, draft, counts in runs:
        table.add_row(
            answers,
            draft,
            str(counts.tree),
            f"{counts.acceptance_length:.2f}",
            Text(_interval(counts, "acceptance_length")),
            rate(counts.node_acceptance_rate),
            f"{counts.total_rounds:,}",
            f"{counts.censored_rounds.sum():,}",
            counts.kind,
        )
    return table


def demo_report(
    runs: Sequence[tuple[str, str, AcceptanceCounts]], traces: Mapping[str, TraceSummary]
) -> RenderableType:
    """Every (answers, draft, counts) in full, then the answers, the comparison and the legend.

    Raises:
        Eagle3RefError: counts without a complete round.
    """
    parts: list[RenderableType] = []
    for answers, draft, counts in runs:
        title = f"{counts.tree} (num_steps/topk/num_draft_tokens), {draft} draft, {answers}"
        parts += [replay_report(counts, title), ""]
    summaries = [_heading("Answers"), answers_report(traces), "", _heading("All settings"), comparison(runs), ""]
    return Group(*parts, *summaries, _heading("What the numbers count"), legend([counts for *_, counts in runs]))


def legend(counts: Sequence[AcceptanceCounts]) -> RenderableType:
    """What each number counts, one line each; of the kinds and rules, those that occur."""
    kinds = dict.fromkeys(item.kind for item in counts)
    rules = dict.fromkeys(item.rule.name for item in counts)
    expected = _EXPECTED_LEGEND if any(item.expected is not None for item in counts) else ()
    meanings = [*((kind, KIND_MEANING[kind]) for kind in kinds), *((rule, RULE_MEANING[rule]) for rule in rules)]
    return facts([*_LEGEND, *expected, *meanings])


def rows_report(rows: RowCounts) -> RenderableType:
    """How many draft rows a replay ran that leaves out those that cannot change what is accepted."""
    share = f" ({percent(rows.branches / rows.full_branches)})" if rows.full_branches else ""
    ahead = [("  ahead", f"{rows.skipped:,} more, of positions that the walk then skipped")] if rows.skipped else []
    return facts(
        [
            ("draft rows", f"{rows.branches:,} of {rows.full_branches:,}{share} after the first level were run"),
            *ahead,
            ("  committed", f"{rows.committed:,}, of recorded tokens"),
        ]
    )


def answers_report(traces: Mapping[str, TraceSummary]) -> RenderableType:
    """How long and how varied the recorded answers are."""
    return facts(
        [
            (
                name,
                f"{trace.generated_tokens:,} tokens in {trace.num_sequences} answers; "
                f"{percent(trace.distinct_ngram_share)} of their 4-grams are distinct (loops are near 0); "
                f"{percent(trace.off_argmax.share)} of the tokens are not the target's argmax",
            )
            for name, trace in traces.items()
        ]
    )


def _heading(title: str) -> Text:
    return Text(title, style="bold cyan")


def _figures(counts: AcceptanceCounts) -> Table:
    lengths = counts.per_prompt("acceptance_length")
    lengths = lengths[~np.isnan(lengths)]
    spread = f"{lengths.min():.2f} / {np.median(lengths):.2f} / {lengths.max():.2f}"
    return facts(
        [
            ("rule", _rule(counts.rule)),
            ("acceptance length", f"{counts.acceptance_length:.2f}  95 % {_interval(counts, 'acceptance_length')}"),
            ("  over prompts", f"{spread}  min / median / max of {len(lengths)}"),
            *_expected(counts),
            ("node rate", f"{counts.node_acceptance_rate:.3f}  95 % {_interval(counts, 'node_acceptance_rate', 3)}"),
            ("rounds", f"{counts.total_rounds:,} complete, {counts.censored_rounds.sum():,} censored"),
            ("off-argmax tokens", f"{counts.off_argmax_tokens.sum():,} of {counts.recorded_tokens.sum():,}"),
            ("kind", counts.kind),
        ]
    )


def _expected(counts: AcceptanceCounts) -> list[tuple[str, str]]:
    """The expected length, and whether the recorded text agrees with the probabilities behind it."""
    expected = counts.expected
    if expected is None or not expected.total_rounds:
        return []
    surplus = expected.surplus.interval()
    return [
        ("  expected", f"{expected.acceptance_length:.2f}  95 % {_interval(expected, 'acceptance_length')}"),
        ("  surplus", f"{surplus.estimate:+.3f}  95 % {ends(surplus, 3)}"),
    ]


def _rule(rule: AcceptanceRule) -> str:
    return f"{rule.name}, drafts sampled" if rule.drafts == "sampled" else rule.name


def _depths(counts: AcceptanceCounts) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("depth", justify="right")
    for name in ("joint", "conditional"):
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("")
    pairs = zip(counts.acceptance_rate_at, counts.conditional_acceptance_rate_at, strict=True)
    for depth, (joint, conditional) in enumerate(pairs, 1):
        bars = Bar(joint, _BAR_WIDTH, "green"), Bar(conditional, _BAR_WIDTH, "blue")
        table.add_row(str(depth), rate(joint), bars[0], rate(conditional), bars[1])
    return table


def _histogram(counts: AcceptanceCounts) -> Table:
    rounds = counts.histogram.sum(axis=0)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("c", justify="right")
    table.add_column("rounds", justify="right", no_wrap=True)
    table.add_column("")
    for accepted, count in enumerate(rounds):
        table.add_row(str(accepted), f"{count:,}", Bar(count / rounds.max(), _BAR_WIDTH, "magenta"))
    return table


def _log(name: str, profile: EngineProfile, counts: AcceptanceCounts) -> RenderableType:
    """On a line of its own, since a broken one cannot be searched for in a server's log."""
    line = profile.log_line(counts) or "no acceptance figures"
    meaning = f"  the rate is {profile.accept_rate_meaning}" if profile.accept_rate_meaning else ""
    return Text.assemble((name, "bold"), *(f"\n{part}" for part in (f"  {line}", meaning) if part))


def _known_logs(counts: AcceptanceCounts) -> RenderableType:
    """The lines of today; of SGLang's eras before, under the same name, only the rate was another."""
    rows = [
        (f"SGLang {SGLANG_0_5_23.version} logs", SGLANG_0_5_23.log_line(counts)),
        ("  accept rate is", SGLANG_0_5_23.accept_rate_meaning or "not logged"),
    ]
    for era, following in reversed(list(pairwise(SGLANG_LOG_ERAS))):
        rate_then = f"accept rate: {era.figures(counts)['accept_rate']:.2f} = {era.accept_rate_meaning}"
        rows.append((f"  {era.since[:7]} to {following.since[:7]}", rate_then))
    vllm = engine_profile("vllm")
    is_possible = vllm.trees or counts.tree.topk == 1
    return Group(facts(rows), *([_log(f"vLLM {vllm.version} logs", vllm, counts)] if is_possible else []))


def _interval(ratios: AcceptanceRatios, name: RatioName, digits: int = 2) -> str:
    return ends(ratios.interval(name), digits)
