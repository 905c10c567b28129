"""Replay: what a draft would have had accepted on a recorded trajectory. No target forward is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.config import AcceptanceRule, TreeConfig, default_rule
from eagle3ref.draft import Eagle3Draft
from eagle3ref.replay.checks import check_answers, check_fit, check_rule
from eagle3ref.replay.probabilities import target_head
from eagle3ref.replay.rounds import SequenceRounds, count_rounds, kind_of
from eagle3ref.replay.walk import batches, walk_batch
from eagle3ref.target import Target
from eagle3ref.trace import Trace

DEFAULT_BATCH_TOKENS = 16384


def replay(
    trace: Trace,
    draft: Eagle3Draft,
    tree: TreeConfig,
    *,
    rule: AcceptanceRule | None = None,
    target: Target | str | Path | None = None,
    seed: int = 0,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    on_sequence: Callable[[SequenceRounds], None] = lambda _: None,
) -> AcceptanceCounts:
    """Walk every sequence of a trace as a server would have, and count.

    Exact for greedy verification: a draft token is accepted if and only if the target's own next token is that token,
    and the trace holds the target's tokens. For the rules of a sampled trace the walk is unbiased, and rules with
    sampled drafts need the target's probabilities; ``replayability`` says which rule needs what.

    Args:
        trace: recorded at the draft's capture points.
        draft: on any device; the trace is moved to it.
        tree: the draft tree's settings.
        rule: decides which drafts are kept, at the trace's temperature. None: greedy on a greedy trace, else
            target-only sampling.
        target: the recorded target or its folder, of which only the output projection is used. With it, and a trace
            that holds final hidden states, the counts come with their ``expected`` acceptance.
        seed: of the coins that rules with sampled drafts toss; other rules toss none.
        batch_tokens: bound on sequences times longest length per batch; memory grows with it, not with the trace.
        on_sequence: called with the rounds of each sequence as it is finished, e.g. for a progress bar.

    Raises:
        Eagle3RefError: an empty trace, capture points, widths or a vocabulary that are not the draft's, states that
            are not finite, more ``topk`` than draft tokens, no answer longer than ``num_steps``, a rule that the
            trace says nothing about, or a target that is not the trace's.
    """
    rule = rule or default_rule(trace.header.sampling.temperature)
    check_fit(trace, draft, tree)
    check_answers(trace, tree)
    rounds = []
    for sequence in replay_rounds(trace, draft, tree, rule=rule, target=target, seed=seed, batch_tokens=batch_tokens):
        rounds.append(sequence)
        on_sequence(sequence)
    place = {sequence_id: i for i, sequence_id in enumerate(trace.ids)}
    rounds.sort(key=lambda sequence: place[sequence.id])
    return count_rounds(rounds, tree, kind_of(rule, rounds), rule)


def replay_rounds(
    trace: Trace,
    draft: Eagle3Draft,
    tree: TreeConfig,
    *,
    rule: AcceptanceRule | None = None,
    target: Target | str | Path | None = None,
    seed: int = 0,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
) -> Iterator[SequenceRounds]:
    """As ``replay``, round by round; sequences come in order of length."""
    rule = rule or default_rule(trace.header.sampling.temperature)
    check_fit(trace, draft, tree)
    check_rule(trace, tree, rule, has_target=target is not None)
    head = None if target is None else target_head(target, trace, draft.target_ids.device)
    walk = partial(walk_batch, trace, draft=draft, tree=tree, rule=rule, head=head, seed=seed)
    for batch in batches(trace, range(len(trace)), batch_tokens):
        yield from walk(batch)
