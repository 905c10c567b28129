"""Drafts of a handful of tokens and texts that they often hit, and every position of them by the reference."""

from __future__ import annotations

from pathlib import Path

import torch
from tiny import NUM_LAYERS, VOCAB, WIDTH, draft_parts, write_draft

import eagle3ref as e3
from eagle3ref.draft import Eagle3Draft, FirstLevel, best_next
from eagle3ref.nn import Prefix
from eagle3ref.replay.batch import Batch
from eagle3ref.replay.feed import Feed
from eagle3ref.trace import RecordedSampling, RecordedSequence, TargetIdentity, TraceHeader, TraceWriter
from eagle3ref.tree import Candidates

POINTS = (2, 3, 4)
DRAFT_TOKENS = 6


def header(temperature: float = 0.0) -> TraceHeader:
    return TraceHeader(
        target=TargetIdentity("made-up", "", "test", NUM_LAYERS, WIDTH, VOCAB, "00" * 32),
        tokenizer_sha256=None,
        capture_points=POINTS,
        dtype="float64",
        sampling=RecordedSampling(temperature, 1.0, 0, None),
        engine="test 1",
    )


def small_draft(
    folder: Path, kind: str = "gqa", *, num_layers: int = 1, sharpness: float = 1.0, dtype: torch.dtype = torch.float64
) -> Eagle3Draft:
    """A random draft with a vocabulary of six tokens. ``sharpness`` scales its logits: 0 makes all tokens equal, 1e4
    makes probabilities 1 and 0."""
    config, tensors = draft_parts(kind, num_layers=num_layers, draft_vocab_size=DRAFT_TOKENS)
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(7))[:DRAFT_TOKENS].sort().values
    tensors["d2t"] = ids - torch.arange(DRAFT_TOKENS)
    tensors["t2d"] = torch.isin(torch.arange(VOCAB), ids)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:DRAFT_TOKENS] * sharpness
    return e3.load_draft(write_draft(folder, config, tensors), capture_points=POINTS, dtype=dtype)


def made_trace(path: Path, draft: Eagle3Draft, lengths: list[tuple[int, int]], temperature: float = 0.0) -> e3.Trace:
    """Random texts of (prompt, answer) lengths. Nine tokens in ten are the draft's, so trees often hit."""
    generator = torch.Generator().manual_seed(3)
    with TraceWriter.open(path, header(temperature)) as writer:
        for i, (prompt, answer) in enumerate(lengths):
            size = prompt + answer
            drafted = draft.target_ids[torch.randint(DRAFT_TOKENS, (size,), generator=generator)]
            others = torch.randint(VOCAB, (size,), generator=generator)
            tokens = torch.where(torch.rand(size, generator=generator) < 0.9, drafted, others)
            states = {point: torch.randn(size, WIDTH, dtype=torch.float64, generator=generator) for point in POINTS}
            argmax = torch.cat((tokens[1:], tokens[:1]))
            writer.add(RecordedSequence(f"text-{i}", tokens, prompt, states, argmax=argmax))
    return e3.Trace.open(path)


@torch.inference_mode()
def candidates_everywhere(draft: Eagle3Draft, sequence: RecordedSequence, tree: e3.TreeConfig) -> Candidates:
    """All candidates of every position by the reference's draft loop, its roots as groups of one sequence."""
    batch = Batch.of(Feed([sequence], draft.capture_points, torch.device("cpu")), draft)
    root = torch.arange(sequence.prompt_length, len(sequence.tokens) - 1)
    first = FirstLevel(batch.state[:, root - 1], *best_next(draft, batch.normed[:, root - 1], tree.topk))
    prefixes = batch.cache.prefixes() or []
    row = torch.arange(prefixes[0].rows.first.shape[1])
    prefix = [Prefix(rows, (row < root[:, None])[None, :, None]) for rows, _ in prefixes]
    return e3.propose(draft, first, root[None], prefix, tree)


def accepted_everywhere(
    candidates: Candidates, sequence: RecordedSequence, tree: e3.TreeConfig, num_steps: int, num_draft_tokens: int
) -> list[int]:
    """Accepted drafts at every position with a smaller tree, which is built and verified."""
    size = e3.TreeConfig(num_steps, tree.topk, num_steps + 1).num_candidates
    root = torch.arange(sequence.prompt_length, len(sequence.tokens) - 1)
    built = e3.build_tree(
        Candidates(candidates.scores[:, :size], candidates.tokens[:, :size], candidates.parents[:, :size]),
        root_tokens=sequence.tokens[root],
        prefix_lengths=root,
        num_draft_tokens=num_draft_tokens,
    )
    padded = torch.nn.functional.pad(sequence.tokens, (0, num_steps + 2), value=-1)
    return e3.verify_greedy(built, padded[built.positions + 1]).num_accepted.tolist()
