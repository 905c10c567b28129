"""Walking a batch of sequences from root to root until every record ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from eagle3ref.config import AcceptanceRule, TreeConfig
from eagle3ref.draft import Eagle3Draft
from eagle3ref.replay.batch import Batch, Outcome
from eagle3ref.replay.feed import Feed
from eagle3ref.replay.play import Play, choose_play
from eagle3ref.replay.probabilities import RecordedProbabilities, TargetHead
from eagle3ref.replay.rounds import SequenceRounds
from eagle3ref.trace import RecordedSequence, Trace


@torch.inference_mode()
def walk_batch(
    trace: Trace,
    indices: Sequence[int],
    *,
    draft: Eagle3Draft,
    tree: TreeConfig,
    rule: AcceptanceRule,
    head: TargetHead | None,
    seed: int,
) -> list[SequenceRounds]:
    """The rounds of the sequences at these indices of the trace.

    Args:
        head: of the target, for probabilities; None without. Rules with sampled drafts need it.
        seed: of the coins; sequence i tosses its own stream (seed, i), whatever batch it is in.
    """
    sequences = read_sequences(trace, indices)
    batch = Batch.of(Feed(sequences, draft.capture_points, draft.target_ids.device), draft)
    probabilities = None if head is None else RecordedProbabilities(sequences, head, trace.header)
    play = choose_play(batch, rule, probabilities, indices, seed)
    return walk(batch, draft, tree, play, trace.header.sampling.max_new_tokens, with_probabilities=head is not None)


def batches(trace: Trace, indices: Iterable[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices in batches of similar lengths, each of at most ``batch_tokens`` tokens, or of one sequence."""
    batch: list[int] = []
    for i in sorted(indices, key=lambda i: trace.entries[i].num_tokens):
        if batch and (len(batch) + 1) * trace.entries[i].num_tokens > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def read_sequences(trace: Trace, indices: Sequence[int]) -> list[RecordedSequence]:
    """The sequences at these indices of a trace, with finite states."""
    sequences = [trace[i] for i in indices]
    for sequence in sequences:
        sequence.check_finite()
    return sequences


def walk(
    batch: Batch,
    draft: Eagle3Draft,
    tree: TreeConfig,
    play: Play,
    max_new_tokens: int | None,
    *,
    with_probabilities: bool = False,
) -> list[SequenceRounds]:
    """Round after round, from the first generated token of each sequence to the end of its record.

    Args:
        batch: of the sequences.
        draft: makes the drafts; ``batch`` has its rows.
        tree: the draft tree's settings.
        play: one round.
        max_new_tokens: limit of the recorded answers; None when it is not known.
        with_probabilities: the rounds come with their ``expected_at``.
    """
    sequences = batch.feed.sequences
    root = torch.tensor([sequence.prompt_length for sequence in sequences], device=batch.tokens.device)
    roots, outcomes = [root.new_zeros(len(root), 0)], [_no_round(root, tree.num_steps)]
    while bool((active := root + 1 < batch.lengths).any()):
        # A finished sequence idles at its last root, and its rounds there are dropped.
        outcome = play(batch, root.clamp_max(batch.tokens.shape[1] - 1), active, draft, tree)
        roots.append(root.where(active, -1)[:, None])
        outcomes.append(Outcome(*(part[:, None] for part in outcome)))
        root = (root + outcome.num_accepted + 1).where(active, root)
    all_roots = torch.cat(roots, 1).cpu()
    all_outcomes = Outcome(*(torch.cat(parts, 1).cpu() for parts in zip(*outcomes, strict=True)))
    return [
        _collect(
            sequence,
            all_roots[i],
            Outcome(*(part[i] for part in all_outcomes)),
            max_new_tokens or 0,
            with_probabilities,
        )
        for i, sequence in enumerate(sequences)
    ]


def _no_round(root: Tensor, num_steps: int) -> Outcome:
    """What the columns of rounds begin with: sequences of a single generated token have no round at all."""
    none = root.new_zeros(len(root), 0)
    by_depth = none.new_zeros(len(root), 0, num_steps)
    return Outcome(none, by_depth, by_depth.double())


def _collect(
    sequence: RecordedSequence, roots: Tensor, outcome: Outcome, max_new_tokens: int, with_probabilities: bool
) -> SequenceRounds:
    real, length = roots >= 0, len(sequence.tokens)
    ahead = roots[real] + outcome.expected.shape[-1]
    return SequenceRounds(
        id=sequence.id,
        roots=roots[real],
        num_accepted=outcome.num_accepted[real],
        complete=ahead < length,
        proposed_at=outcome.proposed[real],
        off_argmax_tokens=sequence.off_argmax_tokens,
        recorded_tokens=len(sequence.answer),
        in_limit=ahead < max(length, sequence.prompt_length + max_new_tokens),
        expected_at=outcome.expected[real] if with_probabilities else None,
    )
