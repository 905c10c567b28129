"""The knobs of a wiring, each looked at where it is turned: many are too small to move a round."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_worlds import world
from tiny import CAPTURE_POINTS, LLAMA3, NUM_LAYERS, YARN, draft_parts, target_folder, write_draft

import eagle3ref as e3
from eagle3ref.diagnose.hypothesis import RIGHT
from eagle3ref.diagnose.laboratory import Laboratory
from eagle3ref.diagnose.wiring import Wiring
from eagle3ref.diagnose.wiring_feed import WiredFeed
from eagle3ref.draft import DraftLoop
from eagle3ref.replay.batch import Batch
from eagle3ref.trace import RecordedSequence

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")

CHAIN, TREE = e3.TreeConfig(3, 1, 4), e3.TreeConfig(4, 3, 9)

_KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "streams": st.just((1, 2, 3)),
        "zeroed": st.just((0,)),
        "state_lag": st.just(1),
        "head": st.sampled_from(["target", "random"]),
        "vocabulary": st.just("ignored"),
        "loop": st.just(DraftLoop(1, 1)),
        "bypasses_fc": st.just(True),
        "tree": st.just(TREE),
        "keeps_own_rows": st.just(True),
        "window": st.just(8),
    },
)


@given(_KNOBS, _KNOBS)
@settings(max_examples=200, deadline=None)
def test_wirings_compose(first: dict[str, object], second: dict[str, object]) -> None:
    """Catches a knob of two that is lost, overwritten, or depends on the order."""
    a, b = Wiring(**first), Wiring(**second)
    both = a.and_also(b)
    assert both == b.and_also(a)
    if both is None:
        assert first.keys() & second.keys() or {"bypasses_fc", "head", "keeps_own_rows"} & (first | second).keys()
    else:
        assert both.turned() == a.turned() | b.turned()


def test_every_knob_is_turned_by_some_hypothesis() -> None:
    """Catches a knob that nothing turns."""
    turned = {
        name
        for kind in ("gqa", "mla", "fc_norm", "norm_before_fc")
        for tree in (CHAIN, TREE)
        for hypothesis in world(kind, 1).laboratory(tree).hypotheses
        for name in hypothesis.wiring.turned()
    }
    # Of sampled texts, of a named engine, of long texts; and what is no fault.
    needs_more = {"noise", "rule", "matches_draws", "as_engine_reads", "window", "no_drafts_from", "chunk"}
    assert turned | needs_more == {field.name for field in fields(Wiring)}


def recorded_sequence(length: int, prompt_length: int, width: int = 12) -> RecordedSequence:
    generator = torch.Generator().manual_seed(length)
    states = {point: torch.randn(length, width, generator=generator) * 4 for point in (1, 2, 3)}
    tokens = torch.randint(1, 50, (length,), generator=generator)
    return RecordedSequence("made-up", tokens, prompt_length, states, argmax=tokens.roll(-1) + 100)


def feed_of(wiring: Wiring, *sequences: RecordedSequence) -> WiredFeed:
    return WiredFeed(sequences, (1, 2, 3), torch.device("cpu"), wiring)


@given(st.integers(1, 9), st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 8), st.integers(2, 12))
@settings(max_examples=150, deadline=None)
def test_which_rows_a_row_sees(window: int, share: float, prompt_length: int, length: int) -> None:
    """Catches a window or a cached part that is off by one: too small a change to move many rounds."""
    sequence = recorded_sequence(max(length, prompt_length + 1), prompt_length)
    rows = range(len(sequence.tokens) - 1)
    seen = feed_of(Wiring(window=window, cached_share=share), sequence).sees(torch.tensor(rows), torch.tensor(rows))
    computed = rows[{0.0: 0, 0.5: prompt_length // 2, 1.0: prompt_length - 1}[share] :]
    for row in computed:
        last = [key for key in computed if key <= row and key in range(row - window + 1, row + 1)]
        assert [key for key in rows if seen.expand(1, -1, -1)[0, row, key]] == last


def test_drafts_see_what_the_row_before_them_sees() -> None:
    """Catches a draft loop that sees a committed row more or less than the last of them: hardly a round would move."""
    here = world("gqa", 2)
    sequences, device = [here.trace[0], here.trace[1]], torch.device("cpu")
    batch = Batch.of(WiredFeed(sequences, here.draft.capture_points, device, Wiring(window=3)), here.draft)
    for roots in ([20, 11], [2, 30]):
        (every,) = batch.prefixes(torch.tensor(roots))
        for root, mask in zip(roots, every.mask, strict=True):
            assert mask.nonzero()[:, -1].tolist() == list(range(max(root - 3, 0), root))
        (some,) = batch.prefixes(torch.tensor(roots), torch.tensor([1]))
        assert some.mask.nonzero()[:, -1].tolist() == list(range(max(roots[1] - 3, 0), roots[1]))


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_rounded_states(name: str) -> None:
    """Catches a scale that is of the wrong row, stream or format: such rounding hardly ever moves a round."""
    sequence = recorded_sequence(7, 3)
    found = feed_of(Wiring(rounding="int8" if name == "int8" else "fp8"), sequence).states(0, 7)[0]
    grid = torch.arange(-127.0, 128) if name == "int8" else torch.arange(256).byte().view(torch.float8_e4m3fn).float()
    grid = grid[~grid.isnan()]
    for place, point in enumerate((1, 2, 3)):
        for row in range(7):
            state = sequence.aux_hidden_states[point][row]
            scaled = state / state.abs().max() * grid.max()
            nearest = grid[(scaled[:, None] - grid).abs().argmin(1)] * state.abs().max() / grid.max()
            torch.testing.assert_close(found[row, 12 * place : 12 * (place + 1)], nearest)


def test_a_rotation_turns_and_keeps_lengths() -> None:
    """Catches a rotation that stretches, mixes rows, or leaves a width that is no power of two as it was."""
    sequence = recorded_sequence(7, 3, width=24)
    found = feed_of(Wiring(rotated=True), sequence).states(0, 7)[0].unflatten(-1, (3, 24))
    states = torch.stack([sequence.aux_hidden_states[point] for point in (1, 2, 3)], 1)
    torch.testing.assert_close(found.norm(dim=-1), states.norm(dim=-1))
    torch.testing.assert_close(found @ found.mT, states @ states.mT)  # all angles between them
    assert (found - states).norm() > states.norm()


def test_rows_of_the_record_as_they_are_fed() -> None:
    """Catches lags and wrong tokens at the wrong row, also next to a shorter sequence."""
    long, short = recorded_sequence(9, 6), recorded_sequence(5, 2)
    rows = torch.arange(8)
    late = feed_of(Wiring(state_lag=1, zeroed=(1,)), long, short).states(0, 8)
    for i, sequence in enumerate((long, short)):
        for row in range(len(sequence.tokens) - 1):
            assert torch.equal(late[i, row, :12], sequence.aux_hidden_states[1][max(row - 1, 0)])
            assert not late[i, row, 12:24].any()
    wanted = {
        "prompt end: own": {5: long.tokens[5]},
        "prompt end: zero": {5: 0},
        "chunk end: own": {1: long.tokens[1], 3: long.tokens[3]},
        "chunk end: first choice": {1: long.argmax[1], 3: long.argmax[3]},
    }
    for kind, changed in wanted.items():
        following = feed_of(Wiring(wrong_token=kind, chunk=2), long, short).following(rows)[0]
        expected = [int(changed.get(row, long.tokens[row + 1])) for row in rows.tolist()]
        assert following.tolist() == expected
    assert torch.equal(feed_of(Wiring(token_lag=1), long, short).following(rows)[0], long.tokens[:8])


def test_what_leaves_the_committed_rows_alone() -> None:
    """Catches a knob that makes them anew although it does not touch them: all of them would be paid for."""
    names = {
        "head-random",
        "d2t-ignored",
        "loop-not-advanced",
        "own-rows-kept",
        "one-step-more",
        "drafts-from-row-before",
    }
    hypotheses = world("gqa", 1).laboratory(CHAIN).hypotheses
    shared = {hypothesis.name for hypothesis in hypotheses if hypothesis.wiring.prefix_only() == Wiring()}
    assert names <= shared
    assert not shared & {"inputs-swapped", "state-after-norm", "embedding-random", "target-theta", "states-zero"}


@pytest.mark.parametrize(
    ("kind", "num_layers", "dtype", "tree"), [("gqa", 2, torch.bfloat16, TREE), ("mla", 1, torch.float64, CHAIN)]
)
def test_every_wiring_runs_on_other_drafts(
    tmp_path: Path, kind: str, num_layers: int, dtype: torch.dtype, tree: e3.TreeConfig
) -> None:
    """Catches a knob that only fits one layer, fp32, or the drafts that the faulty server knows."""
    keys = {"attention_bias": True, "rope_scaling": LLAMA3} if kind == "gqa" else {"rope_scaling": YARN}
    folder = write_draft(tmp_path / "draft", *draft_parts(kind, num_layers=num_layers, **keys))
    target = e3.load_target(target_folder(tmp_path / "target"), dtype=dtype)
    draft = e3.load_draft(folder, target=target, capture_points=CAPTURE_POINTS, dtype=dtype)
    prompts = [torch.arange(5), torch.arange(9), torch.tensor([3])]
    points = range(NUM_LAYERS + 1)
    trace = e3.capture(
        target, prompts, tmp_path / "trace", capture_points=points, max_new_tokens=8, final_hidden_state=True
    )
    kept = {name: value.clone() for name, value in draft.state_dict().items()}
    laboratory = Laboratory(trace, draft, tree, target=target)
    for prediction in laboratory.predict_all(laboratory.hypotheses):
        for sequence in prediction.rounds:
            # Every generated token but the first is an accepted draft or the end of a round; the last may overrun.
            committed = int((sequence.num_accepted + 1).sum())
            assert sequence.recorded_tokens - 1 <= committed <= sequence.recorded_tokens
    assert laboratory.predict(RIGHT).counts == e3.replay(trace, draft, tree)
    assert all(torch.equal(value, kept[name]) for name, value in draft.state_dict().items())
