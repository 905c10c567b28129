"""What a round accepts at every position of a trace, or at those that a server visits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.config import AcceptanceRule, TreeConfig, default_rule
from eagle3ref.draft import Eagle3Draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.positions.committed import CommittedRows
from eagle3ref.positions.fast_draft import fast_twin
from eagle3ref.positions.play import Played, play_all, play_walk
from eagle3ref.positions.ranks import BEYOND, SequenceRanks, num_accepted
from eagle3ref.positions.row_counts import RowCounts
from eagle3ref.replay import SequenceRounds, count_rounds
from eagle3ref.replay.checks import check_answers, check_fit, check_rule
from eagle3ref.replay.rounds import kind_of
from eagle3ref.replay.walk import batches, read_sequences
from eagle3ref.trace import RecordedSequence, Trace

POSITIONS_BATCH_TOKENS = 65536  # a walk has one round of each sequence at a time: the more, the fuller its batches
Positions = Literal["walk", "all"]
"""The roots that a server visits, or one after every generated token but the last."""


@dataclass(frozen=True)
class PositionReplay:
    """What was accepted, and what it took.

    Args:
        counts: by prompt. Of trees their ``proposed_at`` is None: no more was looked at than decides acceptance.
        sequences: the rounds behind them, in the trace's order.
        rows: draft rows that were run.
    """

    counts: AcceptanceCounts
    sequences: tuple[SequenceRounds, ...]
    rows: RowCounts


@torch.inference_mode()
def replay_positions(
    trace: Trace,
    draft: Eagle3Draft,
    tree: TreeConfig,
    *,
    positions: Positions = "walk",
    rule: AcceptanceRule | None = None,
    batch_tokens: int = POSITIONS_BATCH_TOKENS,
    on_sequence: Callable[[SequenceRounds], None] = lambda _: None,
) -> PositionReplay:
    """Count what a draft would have had accepted, with only the draft rows that can change it: a twin of ``replay``.

    Args:
        trace: recorded at the draft's capture points.
        draft: on any device; the trace is moved to it.
        tree: the draft tree's settings.
        positions: ``walk`` has the rounds of ``replay``: the roots that a server visits. ``all`` counts a round from
            every position, whether a walk comes to it or not: ratios over positions, which no server reports.
        rule: decides which drafts are kept; None: greedy on a greedy trace, else target-only sampling.
        batch_tokens: bound on sequences times longest length per batch; memory grows with it, not with the trace.
        on_sequence: called with the rounds of each sequence as it is finished.

    Raises:
        Eagle3RefError: as ``replay``; a rule with sampled drafts.
    """
    rule = rule or default_rule(trace.header.sampling.temperature)
    _check(trace, draft, tree, rule)
    check_answers(trace, tree)
    draft = fast_twin(draft)
    play = play_walk if positions == "walk" else play_all
    rounds: dict[int, SequenceRounds] = {}
    rows = RowCounts(0, 0, 0, 0)
    for batch in batches(trace, range(len(trace)), batch_tokens):
        sequences = read_sequences(trace, batch)
        played = play(CommittedRows.of(sequences, draft), draft, tree)
        for i, sequence, part in zip(batch, sequences, played.by_sequence(len(batch)), strict=True):
            rounds[i] = _rounds_of(sequence, part, tree, trace.header.sampling.max_new_tokens or 0)
            rows += _row_counts(sequence, part, tree)
            on_sequence(rounds[i])
    ordered = [rounds[i] for i in range(len(trace))]
    kind = "positions" if positions == "all" else kind_of(rule, ordered)
    return PositionReplay(count_rounds(ordered, tree, kind, rule), tuple(ordered), rows)


@torch.inference_mode()
def rank_positions(
    trace: Trace,
    draft: Eagle3Draft,
    tree: TreeConfig,
    *,
    rule: AcceptanceRule | None = None,
    batch_tokens: int = POSITIONS_BATCH_TOKENS,
    on_sequence: Callable[[SequenceRanks], None] = lambda _: None,
) -> list[SequenceRanks]:
    """Rank the true continuation at every position; the ranks answer every setting within ``tree``.

    Args:
        trace: recorded at the draft's capture points.
        draft: on any device; the trace is moved to it.
        tree: topk and ``tree_kv``, and the largest ``num_steps`` and ``num_draft_tokens`` to answer.
        rule: decides which drafts are kept; None: greedy on a greedy trace, else target-only sampling. All rules whose
            drafts are the draft's top choices have the same ranks.
        batch_tokens: bound on sequences times longest length per batch; memory grows with it, not with the trace.
        on_sequence: called with the ranks of each sequence as it is finished.

    Returns:
        Of every sequence, in the trace's order.

    Raises:
        Eagle3RefError: as ``replay_positions``, except that answers may be short; more draft tokens than ranks go.
    """
    _check(trace, draft, tree, rule or default_rule(trace.header.sampling.temperature))
    if tree.num_draft_tokens > BEYOND:
        found = f"num_draft_tokens {tree.num_draft_tokens}"
        raise Eagle3RefError("ranking positions", found=found, expected=f"at most {BEYOND}", action="Lower it.")
    draft = fast_twin(draft)
    ranked: dict[int, SequenceRanks] = {}
    for batch in batches(trace, range(len(trace)), batch_tokens):
        sequences = read_sequences(trace, batch)
        played = play_all(CommittedRows.of(sequences, draft), draft, tree, every_setting=True)
        for i, sequence, part in zip(batch, sequences, played.by_sequence(len(batch)), strict=True):
            ranked[i] = SequenceRanks(
                id=sequence.id,
                prompt_length=sequence.prompt_length,
                num_tokens=len(sequence.tokens),
                tree=tree,
                ranks=part.ranks,
                off_argmax_tokens=sequence.off_argmax_tokens,
                recorded_tokens=len(sequence.answer),
                rows=_row_counts(sequence, part, tree),
            )
            on_sequence(ranked[i])
    return [ranked[i] for i in range(len(trace))]


def _rounds_of(sequence: RecordedSequence, played: Played, tree: TreeConfig, max_new_tokens: int) -> SequenceRounds:
    ahead, length = played.root + tree.num_steps, len(sequence.tokens)
    return SequenceRounds(
        id=sequence.id,
        roots=played.root,
        num_accepted=num_accepted(played.ranks, tree),
        complete=ahead < length,
        proposed_at=torch.ones(len(ahead), tree.num_steps, dtype=torch.int64) if tree.topk == 1 else None,
        off_argmax_tokens=sequence.off_argmax_tokens,
        recorded_tokens=len(sequence.answer),
        in_limit=ahead < max(length, sequence.prompt_length + max_new_tokens),
        expected_at=None,
    )


def _row_counts(sequence: RecordedSequence, played: Played, tree: TreeConfig) -> RowCounts:
    return RowCounts(
        committed=len(sequence.tokens) - 2 if len(played.root) else 0,
        branches=int(played.num_rows.sum()),
        skipped=int(played.skipped_rows.sum()),
        full_branches=len(played.root) * tree.topk * (tree.num_steps - 1),
    )


def _check(trace: Trace, draft: Eagle3Draft, tree: TreeConfig, rule: AcceptanceRule) -> None:
    if rule.drafts == "sampled":
        raise Eagle3RefError(
            f"looking ahead in the trace {trace.path}",
            found=f"sampled drafts (rule {rule.name})",
            expected="a rule that drafts the draft's first choices: the recorded tokens then say which are kept",
            action="Use `replay`, which draws the drafts from the target's probabilities; on the command line leave "
            "out --positions all and --rows needed.",
        )
    check_fit(trace, draft, tree)
    check_rule(trace, tree, rule, has_target=False)
