"""Replay: what a draft would have had accepted on a recorded trajectory. The target is not needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eagle3ref.acceptance import AcceptanceCounts, Kind
from eagle3ref.config import TreeConfig
from eagle3ref.draft import Eagle3Draft, FirstLevel, best_next, propose
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import KVCache
from eagle3ref.sampling import GREEDY_TEMPERATURE
from eagle3ref.trace import RecordedSequence, Trace
from eagle3ref.tree import build_tree
from eagle3ref.verify import verify_greedy

DEFAULT_BATCH_TOKENS = 16384
_BLOCK_ROWS = 256  # query rows of a sequence per prefix forward; bounds the attention scores of long sequences


@dataclass(frozen=True)
class SequenceRounds:
    """The verification rounds of one sequence, in order; R of them.

    Args:
        id: of the sequence.
        roots: int64 [R], token index of each root, the last committed token. The first is the first generated token.
        num_accepted: int64 [R], drafts c that equal the recorded continuation; the next root is ``root + c + 1``.
        complete: bool [R], whether ``num_steps`` recorded tokens follow the root. If not, c may have been cut short
            by the end of the record, and the round counts as censored.
        proposed_at: int64 [R, S], draft tokens offered at each depth.
        off_argmax_tokens: generated tokens that are not the target's first choice; None when that was not recorded.
        recorded_tokens: generated tokens.
    """

    id: str
    roots: Tensor
    num_accepted: Tensor
    complete: Tensor
    proposed_at: Tensor
    off_argmax_tokens: int | None
    recorded_tokens: int


def replay(
    trace: Trace,
    draft: Eagle3Draft,
    tree: TreeConfig,
    *,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    on_sequence: Callable[[SequenceRounds], None] = lambda _: None,
) -> AcceptanceCounts:
    """Walk every sequence of a trace as a server would have, and count.

    Exact for greedy verification: a draft token is accepted if and only if the target's own next token is that token,
    and the trace holds the target's tokens. The same walk is unbiased for SGLang's default target-only sampling, which
    draws the next token from the target and accepts it if the tree holds it.

    Args:
        trace: recorded at the draft's capture points.
        draft: on any device; the trace is moved to it.
        tree: the draft tree's settings.
        batch_tokens: bound on sequences times longest length per batch; memory grows with it, not with the trace.
        on_sequence: called with the rounds of each sequence as it is finished, e.g. for a progress bar.

    Raises:
        Eagle3RefError: an empty trace, capture points, widths or a vocabulary that are not the draft's, states that
            are not finite, more ``topk`` than draft tokens, or no answer longer than ``num_steps``.
    """
    _check_fit(trace, draft, tree)
    _check_answers(trace, tree)
    rounds = []
    for sequence in replay_rounds(trace, draft, tree, batch_tokens=batch_tokens):
        rounds.append(sequence)
        on_sequence(sequence)
    place = {sequence_id: i for i, sequence_id in enumerate(trace.ids)}
    rounds.sort(key=lambda sequence: place[sequence.id])
    return count_rounds(rounds, tree, _kind(trace, rounds))


def replay_rounds(
    trace: Trace, draft: Eagle3Draft, tree: TreeConfig, *, batch_tokens: int = DEFAULT_BATCH_TOKENS
) -> Iterator[SequenceRounds]:
    """As ``replay``, round by round; sequences come in order of length."""
    _check_fit(trace, draft, tree)
    by_length = sorted(range(len(trace)), key=lambda i: trace.entries[i].num_tokens)
    batch: list[int] = []
    for i in by_length:
        if batch and (len(batch) + 1) * trace.entries[i].num_tokens > batch_tokens:
            yield from _replay_batch([trace[j] for j in batch], draft, tree)
            batch = []
        batch.append(i)
    yield from _replay_batch([trace[j] for j in batch], draft, tree)


def count_rounds(rounds: Sequence[SequenceRounds], tree: TreeConfig, kind: Kind) -> AcceptanceCounts:
    """Add rounds up by prompt; only complete ones enter the ratios."""
    complete = [sequence.num_accepted[sequence.complete] for sequence in rounds]
    return AcceptanceCounts(
        tree=tree,
        prompt_ids=tuple(sequence.id for sequence in rounds),
        histogram=np.stack([torch.bincount(c, minlength=tree.num_steps + 1).numpy() for c in complete]),
        proposed_at=np.stack([sequence.proposed_at[sequence.complete].sum(0).numpy() for sequence in rounds]),
        censored_rounds=np.array([int((~sequence.complete).sum()) for sequence in rounds]),
        off_argmax_tokens=np.array([sequence.off_argmax_tokens or 0 for sequence in rounds]),
        recorded_tokens=np.array([sequence.recorded_tokens for sequence in rounds]),
        kind=kind,
    )


def _kind(trace: Trace, rounds: Sequence[SequenceRounds]) -> Kind:
    """Greedy tokens that are all the recorded argmax are exact; otherwise another model may have written them."""
    if trace.header.sampling.temperature >= GREEDY_TEMPERATURE:
        return "unbiased"
    return "exact" if all(sequence.off_argmax_tokens == 0 for sequence in rounds) else "estimate"


@torch.inference_mode()
def _replay_batch(sequences: list[RecordedSequence], draft: Eagle3Draft, tree: TreeConfig) -> list[SequenceRounds]:
    for sequence in sequences:
        sequence.check_finite()
    device = draft.target_ids.device
    tokens = torch.nn.utils.rnn.pad_sequence([s.tokens for s in sequences], batch_first=True, padding_value=-1)
    tokens = tokens.to(device)
    cache, first = _prefix_pass(sequences, tokens, draft, tree.topk)
    lengths = torch.tensor([len(s.tokens) for s in sequences], device=device)
    root = torch.tensor([s.prompt_length for s in sequences], device=device)
    # Each column starts empty: sequences of a single generated token have no round at all.
    none = root.new_zeros(len(sequences), 0)
    columns = [[none], [none], [none.new_zeros(len(sequences), 0, tree.num_steps)]]
    while bool((active := root + 1 < lengths).any()):
        # A finished sequence idles at its last root, and its rounds there are dropped.
        at = root.clamp_max(tokens.shape[1] - 1)
        accepted, proposed = _round(tokens, at, cache, first, draft, tree)
        for column, value in zip(columns, (root.where(active, -1), accepted, proposed), strict=True):
            column.append(value.unsqueeze(1))
        root = (root + accepted + 1).where(active, root)
    roots, accepted, proposed = (torch.cat(column, 1).cpu() for column in columns)
    return [
        _collect(sequence, roots[i], accepted[i], proposed[i], tree.num_steps) for i, sequence in enumerate(sequences)
    ]


def _prefix_pass(
    sequences: list[RecordedSequence], tokens: Tensor, draft: Eagle3Draft, topk: int
) -> tuple[KVCache, FirstLevel]:
    """Draft rows 0 .. T-2 of every sequence, each on the target's states and the next token.

    After every verification a server rebuilds the committed rows from target states (SGLang 0.5.23,
    eagle_worker_v2.py), so they depend on the trajectory only. Row L-1 is the first level of root L.
    """
    batch, longest = tokens.shape
    device = tokens.device
    cache = KVCache(len(draft.layers), batch, device)
    levels = []
    for start in range(0, longest - 1, _BLOCK_ROWS):
        rows = torch.arange(start, min(start + _BLOCK_ROWS, longest - 1), device=device)
        state = draft.fuse(_aux_block(sequences, draft, rows)).unsqueeze(1)
        output = draft(
            state,
            tokens[:, None, rows + 1].clamp_min(0),
            rows.expand(batch, 1, -1),
            mask=rows[:, None] >= rows,
            prefix=cache.prefixes(),
        )
        cache.offer(output.rows)
        cache.keep((rows - start).expand(batch, -1), torch.full((batch,), len(rows), device=device))
        levels.append(FirstLevel(output.state[:, 0], *best_next(draft, output.normed[:, 0], topk)))
    return cache, FirstLevel(*(torch.cat(parts, 1) for parts in zip(*levels, strict=True)))


def _aux_block(sequences: list[RecordedSequence], draft: Eagle3Draft, rows: Tensor) -> Tensor:
    """[B, rows, A * Ct], zero past the end of a sequence; only this block is read from disk."""
    first, last = int(rows[0]), int(rows[-1]) + 1
    blocks = []
    for sequence in sequences:
        states = [sequence.aux_hidden_states[point][first:last] for point in draft.capture_points]
        block = torch.cat(states, -1)
        blocks.append(torch.nn.functional.pad(block, (0, 0, 0, len(rows) - len(block))))
    return torch.stack(blocks).to(rows.device)


def _round(
    tokens: Tensor, root: Tensor, cache: KVCache, first: FirstLevel, draft: Eagle3Draft, tree: TreeConfig
) -> tuple[Tensor, Tensor]:
    """One round of every sequence: accepted drafts [B], and draft tokens offered at each depth [B, S]."""
    batch = torch.arange(len(root), device=root.device)
    level = FirstLevel(*(part[batch, root - 1].unsqueeze(1) for part in first))
    candidates = propose(draft, level, root[:, None], cache.prefixes(root), tree)
    drafted = build_tree(
        candidates,
        root_tokens=tokens[batch, root],
        prefix_lengths=root,
        num_draft_tokens=tree.num_draft_tokens,
    )
    ahead = drafted.positions + 1
    recorded = tokens.gather(1, ahead.clamp_max(tokens.shape[1] - 1))
    truth = torch.where(ahead < tokens.shape[1], recorded, -1)  # -1, no token: nothing matches past the end
    offered = torch.nn.functional.one_hot(drafted.depths, tree.num_steps + 1).sum(1)[:, 1:]
    return verify_greedy(drafted, truth).num_accepted, offered


def _collect(
    sequence: RecordedSequence, roots: Tensor, accepted: Tensor, proposed: Tensor, num_steps: int
) -> SequenceRounds:
    real = roots >= 0
    return SequenceRounds(
        id=sequence.id,
        roots=roots[real],
        num_accepted=accepted[real],
        complete=roots[real] + num_steps < len(sequence.tokens),
        proposed_at=proposed[real],
        off_argmax_tokens=sequence.off_argmax_tokens,
        recorded_tokens=len(sequence.answer),
    )


def _check_fit(trace: Trace, draft: Eagle3Draft, tree: TreeConfig) -> None:
    doing = f"replaying the trace {trace.path}"
    header = trace.header
    if not len(trace):
        raise Eagle3RefError(
            doing, found="no sequence", expected="at least one", action="Record prompts with `capture` first."
        )
    missing = [point for point in draft.capture_points if point not in header.capture_points]
    if missing:
        raise Eagle3RefError(
            doing,
            found=f"states recorded at capture points {header.capture_points}",
            expected=f"the draft's {draft.capture_points}",
            action=f"Record again with --capture-points {','.join(map(str, draft.capture_points))}, or correct the "
            "draft's ids: replaying other layers would only give a lower number.",
        )
    draft.config.check_target(header.target.hidden_size, header.target.vocab_size, doing)
    if tree.topk > draft.config.draft_vocab_size:
        limit = f"at most {draft.config.draft_vocab_size}, the draft vocabulary"
        raise Eagle3RefError(doing, found=f"topk {tree.topk}", expected=limit, action="Lower topk.")


def _check_answers(trace: Trace, tree: TreeConfig) -> None:
    doing, longest = f"replaying the trace {trace.path}", max(e.num_tokens - e.prompt_length for e in trace.entries)
    if tree.num_steps >= longest:
        found = f"answers of at most {longest} tokens"
        needed = f"one of more than num_steps = {tree.num_steps}, or every round runs past the end of the record"
        raise Eagle3RefError(doing, found=found, expected=needed, action="Lower num_steps, or record longer answers.")
