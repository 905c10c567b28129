"""Replay against a slow walk that recomputes everything from scratch for every root."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oracles import greedy_walk
from safetensors import safe_open
from safetensors.torch import load_file, save
from tiny import DRAFT_VOCAB, NUM_LAYERS, VOCAB, WIDTH, draft_folder
from torch import Tensor

import eagle3ref as e3
from eagle3ref.config import GQAConfig, RopeConfig
from eagle3ref.draft import Eagle3Draft, FirstLevel, best_next, propose
from eagle3ref.nn import Prefix, Rows
from eagle3ref.trace import RecordedSampling, RecordedSequence, TargetIdentity, TraceHeader, TraceWriter

POINTS = (2, 3, 4)
TREES = [e3.TreeConfig(3, 1, 4), e3.TreeConfig(1, 3, 4), e3.TreeConfig(4, 3, 9), e3.TreeConfig(4, 3, 9, "ancestor")]
HEADER = TraceHeader(
    target=TargetIdentity("made-up", "", "test", NUM_LAYERS, WIDTH, VOCAB, "00" * 32),
    tokenizer_sha256=None,
    capture_points=POINTS,
    dtype="float64",
    sampling=RecordedSampling(0.0, 1.0, 0, None),
    engine="test 1",
)


def load(folder: Path, kind: str) -> Eagle3Draft:
    return e3.load_draft(draft_folder(folder / kind, kind), capture_points=POINTS, dtype=torch.float64)


def candidates_from_scratch(
    draft: Eagle3Draft, tokens: Tensor, aux: Tensor, root: int, tree: e3.TreeConfig
) -> e3.DraftTree:
    """The tree of one root: one causal pass over its own rows only, no cache, no batch."""
    row = torch.arange(root)
    output = draft(
        draft.fuse(aux[:root])[None, None], tokens[None, None, 1 : root + 1], row[None, None], mask=row[:, None] >= row
    )
    every_row = torch.ones(1, 1, 1, root, dtype=torch.bool)
    prefix = [Prefix(Rows(rows.first[:, 0], rows.second[:, 0]), every_row) for rows in output.rows]
    first = FirstLevel(output.state[:, 0, -1:], *best_next(draft, output.normed[:, 0, -1:], tree.topk))
    position = torch.tensor([root])
    return e3.build_tree(
        propose(draft, first, position[None], prefix, tree),
        root_tokens=tokens[position],
        prefix_lengths=position,
        num_draft_tokens=tree.num_draft_tokens,
    )


def walk_from_scratch(
    draft: Eagle3Draft, tokens: Tensor, aux: Tensor, prompt_length: int, tree: e3.TreeConfig
) -> list[tuple[int, int]]:
    """(root, accepted drafts) of every round, by the recursive walk of the oracles."""
    rounds, root = [], prompt_length
    while root < len(tokens) - 1:
        drafted = candidates_from_scratch(draft, tokens, aux, root, tree)
        truth = [int(tokens[p + 1]) if p + 1 < len(tokens) else -1 for p in drafted.positions[0].tolist()]
        path = greedy_walk(drafted.tokens[0].tolist(), drafted.parents[0].tolist(), truth)
        rounds.append((root, len(path)))
        root += len(path) + 1
    return rounds


def made_up_run(draft: Eagle3Draft, seed: int, length: int) -> tuple[Tensor, Tensor, int]:
    """Tokens, states and prompt length of a run that follows random paths of the draft's own trees, so that every
    accepted length occurs; a random draft on a random target would accept nothing."""
    generator = torch.Generator().manual_seed(seed)
    tree = e3.TreeConfig(4, 3, 12)
    prompt_length = int(torch.randint(1, 8, (), generator=generator))
    tokens = torch.randint(VOCAB, (prompt_length + 1,), generator=generator)
    aux = torch.randn(length, 3 * WIDTH, dtype=torch.float64, generator=generator)
    while len(tokens) < length:
        drafted = candidates_from_scratch(draft, tokens, aux, len(tokens) - 1, tree)
        node = int(torch.randint(tree.num_draft_tokens, (), generator=generator))
        path = drafted.tree_mask[0, node].nonzero().flatten()[1:]
        noise = torch.randint(VOCAB, (1,), generator=generator)
        tokens = torch.cat((tokens, drafted.tokens[0, path], noise))
    return tokens[:length], aux, prompt_length


def write_trace(path: Path, runs: list[tuple[Tensor, Tensor, int]]) -> e3.Trace:
    with TraceWriter.open(path, HEADER) as writer:
        for i, (tokens, aux, prompt_length) in enumerate(runs):
            states = dict(zip(POINTS, aux.chunk(3, -1), strict=True))
            argmax = torch.cat((tokens[1:], tokens[:1]))
            writer.add(RecordedSequence(f"run-{i}", tokens, prompt_length, states, argmax=argmax))
    return e3.Trace.open(path)


@pytest.fixture(scope="module", params=["gqa", "mla"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A draft, eight made-up runs of different lengths, and their trace."""
    folder = tmp_path_factory.mktemp(request.param)
    draft = load(folder, request.param)
    runs = [made_up_run(draft, seed, 18 + 5 * (seed % 4)) for seed in range(8)]
    return draft, runs, write_trace(folder / "trace", runs)


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: f"{tree}-{tree.tree_kv}")
def test_replay_equals_the_walk_from_scratch(recorded, tree):
    """Catches padding or a neighbour leaking into a batch, a prefix row too many or too few, and a wrong next root."""
    draft, runs, trace = recorded
    rounds = {sequence.id: sequence for sequence in e3.replay_rounds(trace, draft, tree)}
    seen = set()
    for i, run in enumerate(runs):
        found = rounds[f"run-{i}"]
        expected = walk_from_scratch(draft, *run, tree)
        assert list(zip(found.roots.tolist(), found.num_accepted.tolist(), strict=True)) == expected
        seen |= {accepted for _, accepted in expected}
    assert seen >= set(range(min(tree.num_steps, 3) + 1))  # the runs are varied enough to show a difference


@pytest.mark.parametrize("batch_tokens", [1, 60, 10_000])
def test_batch_size_changes_nothing(recorded, batch_tokens):
    """Catches results that depend on which sequences share a batch."""
    draft, _, trace = recorded
    tree = TREES[2]
    assert e3.replay(trace, draft, tree, batch_tokens=batch_tokens) == e3.replay(trace, draft, tree)


def test_prefix_in_blocks_equals_prefix_at_once(recorded, monkeypatch):
    """Catches rows lost or doubled where one block of the prefix pass ends and the next begins."""
    draft, _, trace = recorded
    whole = e3.replay(trace, draft, TREES[2])
    for size in (1, 7, 16):
        monkeypatch.setattr(sys.modules["eagle3ref.replay.batch"], "_BLOCK_ROWS", size)
        assert e3.replay(trace, draft, TREES[2]) == whole


def test_head_in_pieces_equals_head_at_once(recorded, monkeypatch):
    """Catches rows mixed up when the logits of many rows do not fit at once."""
    draft, _, trace = recorded
    whole = e3.replay(trace, draft, TREES[2])
    monkeypatch.setattr(sys.modules["eagle3ref.draft.propose"], "_LOGITS_AT_ONCE", 3 * VOCAB)
    assert e3.replay(trace, draft, TREES[2]) == whole


def test_counts_are_the_complete_rounds(recorded):
    """Catches censored rounds that slip into a ratio, and rounds counted for another prompt."""
    draft, runs, trace = recorded
    tree = TREES[2]
    counts = e3.replay(trace, draft, tree)
    assert counts.prompt_ids == trace.ids
    assert counts.kind == "exact"
    for i, (tokens, aux, prompt_length) in enumerate(runs):
        rounds = walk_from_scratch(draft, tokens, aux, prompt_length, tree)
        complete = [c for root, c in rounds if root + tree.num_steps < len(tokens)]
        assert counts.histogram[i].tolist() == [complete.count(c) for c in range(tree.num_steps + 1)]
        assert counts.censored_rounds[i] == len(rounds) - len(complete)
        assert counts.recorded_tokens[i] == len(tokens) - prompt_length


def test_single_generated_token_has_no_round(recorded, tmp_path):
    """Catches a crash on the shortest sequence that a trace can hold."""
    draft, runs, _ = recorded
    tokens, aux, prompt_length = runs[0]
    short = (tokens[: prompt_length + 1], aux[: prompt_length + 1], prompt_length)
    counts = e3.replay(write_trace(tmp_path / "t", [short, runs[1]]), draft, TREES[0], batch_tokens=1)
    assert counts.rounds[0] == 0
    assert counts.censored_rounds[0] == 0
    assert counts.rounds[1] > 0


def test_neighbour_states_in_the_trace_are_left_alone(recorded, tmp_path):
    """Catches a replay that fuses whatever a trace holds instead of the draft's own capture points."""
    draft, runs, trace = recorded
    header = TraceHeader(**{**HEADER.__dict__, "capture_points": (1, 2, 3, 4, 5)})
    with TraceWriter.open(tmp_path / "t", header) as writer:
        for sequence in trace:
            junk = torch.full_like(sequence.aux_hidden_states[2], 1e3)
            states = {1: junk, **sequence.aux_hidden_states, 5: junk}
            writer.add(RecordedSequence(sequence.id, sequence.tokens, sequence.prompt_length, states, sequence.argmax))
    assert e3.replay(e3.Trace.open(tmp_path / "t"), draft, TREES[2]) == e3.replay(trace, draft, TREES[2])


@pytest.mark.parametrize(
    ("temperature", "argmax", "kind"),
    [(0.0, "same", "exact"), (0.0, "other", "estimate"), (0.0, None, "estimate"), (0.8, "same", "unbiased")],
)
def test_kind_says_what_the_number_is(recorded, tmp_path, temperature, argmax, kind):
    """Catches a number called exact although the tokens are not the recorded argmax, or nobody looked."""
    draft, runs, _ = recorded
    header = TraceHeader(**{**HEADER.__dict__, "sampling": RecordedSampling(temperature, 1.0, 0, 1)})
    tokens, aux, prompt_length = runs[0]
    best = None if argmax is None else torch.cat((tokens[1:], tokens[:1]))
    if argmax == "other":
        best[prompt_length + 2] = (best[prompt_length + 2] + 1) % VOCAB
    with TraceWriter.open(tmp_path / "t", header) as writer:
        states = dict(zip(POINTS, aux.chunk(3, -1), strict=True))
        writer.add(RecordedSequence("a", tokens, prompt_length, states, argmax=best))
    counts = e3.replay(e3.Trace.open(tmp_path / "t"), draft, TREES[0])
    assert counts.kind == kind
    assert counts.off_argmax_tokens.sum() == (argmax == "other")


def test_empty_trace_is_refused(recorded, tmp_path):
    """Catches an acceptance length of nothing."""
    draft = recorded[0]
    with pytest.raises(e3.Eagle3RefError, match="no sequence"):
        e3.replay(write_trace(tmp_path / "t", []), draft, TREES[0])


def test_other_capture_points_are_refused(recorded, tmp_path):
    """Catches a draft replayed on the states of other layers, which only lowers the number."""
    draft, runs, _ = recorded
    header = TraceHeader(**{**HEADER.__dict__, "capture_points": (1, 3, 4)})
    tokens, aux, prompt_length = runs[0]
    with TraceWriter.open(tmp_path / "t", header) as writer:
        states = dict(zip((1, 3, 4), aux.chunk(3, -1), strict=True))
        writer.add(RecordedSequence("a", tokens, prompt_length, states))
    with pytest.raises(e3.Eagle3RefError, match=r"\(1, 3, 4\).*expected the draft's \(2, 3, 4\)"):
        e3.replay(e3.Trace.open(tmp_path / "t"), draft, TREES[0])


def test_single_state_into_fc_names_both_widths_and_the_flag(recorded):
    """Catches the silent bypass of fc that a server makes of the flag EAGLE."""
    with pytest.raises(e3.Eagle3RefError, match=rf"{WIDTH} wide.*{3 * WIDTH} wide.*--speculative-algorithm EAGLE"):
        recorded[0].fuse(torch.zeros(4, WIDTH, dtype=torch.float64))


def test_damaged_states_are_named(recorded, tmp_path):
    """Catches NaN states that would be replayed as an acceptance of nothing."""
    draft, runs, trace = recorded
    folder = tmp_path / "t"
    write_trace(folder, runs[:2])
    path = sorted(folder.glob("*.safetensors"))[1]
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    next(states for states in tensors.values() if states.dtype == torch.float64)[3, 0] = float("nan")
    path.write_bytes(save(tensors, metadata))
    with pytest.raises(e3.Eagle3RefError, match="run-1.*NaN or infinity in aux_hidden_states.*position 3"):
        e3.replay(e3.Trace.open(folder), draft, TREES[0])


def test_at_kimis_size_the_error_says_7168_and_21504(recorded):
    """Catches a message that fits only the tiny widths of the tests: this is the one of the story."""
    rope = RopeConfig(128, 50000.0)
    settings = {"hidden_size": 7168, "target_hidden_size": 7168, "attention": GQAConfig(64, 64, 128, rope)}
    with torch.device("meta"):
        draft = Eagle3Draft(replace(recorded[0].config, **settings), 1, (2, 30, 58), torch.arange(DRAFT_VOCAB))
        with pytest.raises(e3.Eagle3RefError, match="7168 wide; expected 21504 wide.*EAGLE instead of EAGLE3"):
            draft.fuse(torch.zeros(1, 7168))
