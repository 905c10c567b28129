"""Committed rows and head of the position replay against the reference: Batch, propose, best_next."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from eagle3ref.config import TreeConfig
from eagle3ref.draft import Eagle3Draft, FirstLevel, best_next, load_draft, propose
from eagle3ref.errors import Eagle3RefError
from eagle3ref.positions import committed as committed_module
from eagle3ref.positions import head
from eagle3ref.positions.committed import CommittedRows
from eagle3ref.positions.fast_draft import fast_twin
from eagle3ref.positions.onednn import OneDnnLinear
from eagle3ref.positions.screened_head import ScreenedHead
from eagle3ref.replay.batch import Batch
from eagle3ref.replay.feed import Feed
from eagle3ref.sampling import topk_stable
from eagle3ref.trace import RecordedSequence

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")

# (tokens, prompt): no root at all, one root, a prompt of one, a prompt longer than a block, plain ones.
SHAPES = ((2, 1), (3, 1), (24, 3), (3, 2), (31, 28), (12, 1))


def made_draft(folder: Path, kind: str = "gqa", dtype: torch.dtype = torch.float64, **keys: int) -> Eagle3Draft:
    target = tiny.random_target() if kind == "mla" else None
    return load_draft(tiny.draft_folder(folder, kind, **keys), target=target, dtype=dtype)


def recorded(dtype: torch.dtype, shapes: Sequence[tuple[int, int]] = SHAPES) -> list[RecordedSequence]:
    torch.manual_seed(3)
    return [
        RecordedSequence(
            str(i),
            torch.randint(0, tiny.VOCAB, (length,)),
            prompt,
            {point: torch.randn(length, tiny.WIDTH, dtype=torch.float64).to(dtype) for point in tiny.CAPTURE_POINTS},
        )
        for i, (length, prompt) in enumerate(shapes)
    ]


def reference(sequences: Sequence[RecordedSequence], draft: Eagle3Draft) -> Batch:
    return Batch.of(Feed(sequences, draft.capture_points, torch.device("cpu")), draft)


def windowed(draft: Eagle3Draft, *windows: int | None) -> Eagle3Draft:
    return draft.rewired(replace(draft.config, layer_windows=windows))


DRAFTS = {
    "gqa": lambda folder: made_draft(folder),
    "gqa, two layers": lambda folder: made_draft(folder, num_layers=2),
    "windows": lambda folder: windowed(made_draft(folder, num_layers=2), 3, 7),
    "mla": lambda folder: made_draft(folder, "mla"),
    "mla, two layers": lambda folder: made_draft(folder, "mla", num_layers=2),
}


@pytest.mark.parametrize("at_once", [5, 1024])
@pytest.mark.parametrize("name", DRAFTS)
@torch.inference_mode()
def test_committed_rows_and_drafts_are_the_reference(
    name: str, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch a row that is lost, shifted or fed wrongly, and a prefix that ends one row early or late."""
    monkeypatch.setattr(committed_module, "rows_at_once", lambda _: at_once)
    draft = DRAFTS[name](tmp_path)
    sequences = recorded(torch.float64)
    batch, rows = reference(sequences, draft), CommittedRows.of(sequences, draft)
    sequence, root = rows.roots()
    expected = [(i, place) for i, (length, prompt) in enumerate(SHAPES) for place in range(prompt, length - 1)]
    assert list(zip(sequence.tolist(), root.tolist(), strict=True)) == expected
    state, normed = rows.first_rows(sequence, root)
    for mine, other in ((state, batch.state), (normed, batch.normed)):
        assert torch.allclose(mine, other[sequence, root - 1], rtol=1e-9, atol=1e-11)
    tree = TreeConfig(4, 3, 12)
    for some in (torch.arange(len(root)), torch.randperm(len(root))[:9]):
        first = FirstLevel(state[None, some], *best_next(draft, normed[None, some], 3))
        packed = propose(draft, first, root[None, some], rows.prefixes(sequence[some], root[some]), tree)
        for i in torch.randperm(len(some))[:9].tolist():
            one, place = sequence[some[i : i + 1]], root[some[i : i + 1]]
            alone = FirstLevel(*(part[:, i : i + 1] for part in first))
            wanted = propose(draft, alone, place[None], batch.prefixes(place.expand(len(SHAPES)), one), tree)
            assert torch.equal(packed.tokens[i], wanted.tokens[0])
            assert torch.equal(packed.parents[i], wanted.parents[0])
            assert torch.allclose(packed.scores[i], wanted.scores[0], rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gqa", "mla"])
@torch.inference_mode()
def test_committed_rows_are_as_precise_as_the_reference(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Would catch a rounding that the reference does not have; fp32 takes the fast twin's products too."""
    draft = made_draft(tmp_path, kind, dtype)
    sequences = recorded(dtype, ((40, 2), (33, 9)))
    batch = reference(sequences, draft)
    wide = [
        replace(s, aux_hidden_states={point: states.double() for point, states in s.aux_hidden_states.items()})
        for s in sequences
    ]
    twins = [CommittedRows.of(sequences, some) for some in (draft, fast_twin(draft))]
    sequence, root = twins[0].roots()
    exact = reference(wide, draft.double()).normed[sequence, root - 1]
    wanted = (batch.normed[sequence, root - 1].double() - exact).abs()
    for rows in twins:
        error = (rows.first_rows(sequence, root)[1].double() - exact).abs()
        assert error.max() <= 2 * wanted.max()
        assert error.square().mean() <= 4 * wanted.square().mean()


@torch.inference_mode()
def test_prompt_rows_cost_no_more_than_their_keys(tmp_path: Path) -> None:
    """Would catch attention and MLP of the last layer run for rows that no root asks about."""
    draft, counted = made_draft(tmp_path, num_layers=2), []
    for layer in draft.layers:
        layer.mlp.register_forward_hook(lambda _, x, __: counted.append(x[0].shape[1]))
    rows = CommittedRows.of(recorded(torch.float64, ((20, 15), (9, 2))), draft)
    assert rows.num_rows == 18 + 7
    assert counted == [18 + 7, len(rows.state)] == [25, 4 + 6]


@torch.inference_mode()
def test_sequences_without_roots(tmp_path: Path) -> None:
    """Would catch a crash where a whole group of answers is one token long."""
    rows = CommittedRows.of(recorded(torch.float64, ((2, 1), (5, 4))), made_draft(tmp_path))
    assert rows.num_rows == 0
    assert rows.state.shape == (0, tiny.WIDTH)
    assert rows.roots()[0].shape == (0,)
    assert rows.recorded(torch.tensor([0, 1, 0]), torch.tensor([1, 4, 9])).tolist()[2] == -1


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_topk_by_segments_is_topk_stable(data: st.DataObject) -> None:
    """Would catch a tie that goes to the higher index, across and within segments, and padding that is chosen."""
    size, k = data.draw(st.sampled_from([7, 128, 400, 1000])), data.draw(st.integers(1, 6))
    seed, levels = data.draw(st.integers(0, 2**20)), data.draw(st.sampled_from([1, 2, 5, 10**6]))
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, levels, (3, size), generator=generator).float() / levels
    for mine, wanted in zip(head.topk_by_segments(scores, k), topk_stable(scores, k), strict=True):
        assert torch.equal(mine, wanted)


def wide_head(dtype: torch.dtype, folder: Path, vocab: int = 700, size: int = 40) -> Eagle3Draft:
    """A draft with a head of its own; every id is twice in it, so that exact ties abound."""
    torch.manual_seed(5)
    draft = made_draft(folder, dtype=dtype)
    draft.config = replace(draft.config, draft_vocab_size=vocab, vocab_size=2 * vocab)
    draft.lm_head = nn.Linear(size, vocab, bias=False).to(dtype).requires_grad_(False)
    draft.lm_head.weight[vocab // 2 :] = draft.lm_head.weight[: vocab // 2].clone()
    draft.target_ids = torch.randperm(2 * vocab)[:vocab]
    return draft


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_best_next_has_the_reference_bits(dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch another softmax, another order of ties, and rows that are cut wrongly into blocks."""
    draft = wide_head(dtype, tmp_path)
    normed = torch.randn(2, 9, 40, dtype=torch.float64).to(dtype) * 4
    for topk in (1, 4):
        for mine, wanted in zip(head.best_next(draft, normed, topk), best_next(draft, normed, topk), strict=True):
            assert torch.equal(mine, wanted)
    monkeypatch.setattr(head, "_LOGITS_AT_ONCE", 5 * 700)
    monkeypatch.setattr(head, "_FEWEST_ROWS", 1)
    assert torch.equal(head.best_next(draft, normed, 4)[1], best_next(draft, normed, 4)[1])


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1.0, 30.0])
@pytest.mark.parametrize("kind", ["fp64", "fp32", "screened", "bf16"])
@torch.inference_mode()
def test_is_first_is_best_next(kind: str, scale: float, tmp_path: Path) -> None:
    """Would catch a tie in logits or in probabilities that is not the reference's, and tokens outside the vocabulary.

    At the smallest scale all probabilities are equal in fp32 while the logits are not.
    """
    dtypes = {"fp64": torch.float64, "bf16": torch.bfloat16}
    dtype = dtypes.get(kind, torch.float32)
    draft = wide_head(dtype, tmp_path)
    if kind == "screened":
        draft.lm_head = ScreenedHead(draft.lm_head)
    normed = (torch.randn(60, 40, dtype=torch.float64) * scale).to(dtype)
    wanted = best_next(draft, normed, 1)[1][:, 0]
    second = best_next(draft, normed, 2)[1][:, 1]
    for tokens in (wanted, second, draft.target_ids[torch.arange(60)]):
        assert torch.equal(head.is_first(draft, normed, tokens), tokens == wanted)
    outside = torch.tensor([-1, *set(range(1400)) - set(draft.target_ids.tolist())][:60])
    assert not head.is_first(draft, normed, outside).any()
    assert head.is_first(draft, normed[:0], outside[:0]).shape == (0,)


@pytest.mark.parametrize("screened", [False, True])
@torch.inference_mode()
def test_states_that_are_not_finite_are_refused(screened: bool, tmp_path: Path) -> None:
    """Would catch a NaN that quietly is nobody's first choice."""
    draft = wide_head(torch.float32, tmp_path)
    if screened:
        draft.lm_head = ScreenedHead(draft.lm_head)
    normed = torch.randn(3, 40)
    normed[1, 0] = float("nan")
    with pytest.raises(Eagle3RefError, match="NaN"):
        head.is_first(draft, normed, draft.target_ids[:3])
    with pytest.raises(Eagle3RefError, match="NaN"):
        head.best_next(draft, normed, 2)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_screened_head_never_errs(data: st.DataObject) -> None:
    """Would catch a bound that is too small: wherever the head is sure, fp64 agrees.

    bf16 errs most on rows of different lengths, rows that nearly repeat, and features of different sizes.
    """
    seed = data.draw(st.integers(0, 2**20))
    size, vocab = data.draw(st.sampled_from([3, 64, 257])), data.draw(st.sampled_from([2, 90, 500]))
    spread, close = data.draw(st.sampled_from([0.0, 2.0])), data.draw(st.sampled_from([0.0, 1e-7, 1e-4, 1e-2]))
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        lengths, sizes, changes = (torch.randn(n, generator=generator) for n in (vocab, size, vocab - vocab // 2))
        weight = torch.randn(vocab, size, generator=generator) * (spread * lengths).exp()[:, None]
        weight[vocab // 2 :] = weight[: len(changes)] * (1 + close * changes)[:, None]
        x = torch.randn(40, size, generator=generator) * (spread * sizes).exp()
        linear = nn.Linear(size, vocab, bias=False).requires_grad_(False)
        linear.weight.copy_(weight)
        screened, logits = ScreenedHead(linear), x.double() @ weight.double().T
        for place in (0, 1, vocab // 2):
            ids = logits.topk(min(place + 1, vocab)).indices[:, -1]
            leads, unclear = screened.leads(x, ids, apart=1e-6)
            own = logits.gather(1, ids[:, None])[:, 0]
            lead = own - logits.scatter(1, ids[:, None], float("-inf")).amax(-1)
            assert torch.equal(leads[~unclear], (lead > 0)[~unclear])


@torch.inference_mode()
def test_screen_bounds_every_logit() -> None:
    """Would catch a bound that holds for the highest logits only by luck."""
    torch.manual_seed(7)
    screened = ScreenedHead(nn.Linear(200, 300, bias=False).requires_grad_(False))
    x = torch.randn(50, 200) * torch.logspace(-3, 3, 200)
    rounded = x.bfloat16()
    logits = torch.nn.functional.linear(rounded, screened.screen.weight).double()
    error = (logits - x.double() @ screened.weight.double().T).abs()
    bound = screened._doubt(x, rounded.float())[:, None] + 2.0**-8 * logits.abs()
    assert (error <= bound).all()
    assert (error.amax(-1) > 0.02 * bound.amin(-1)).all()


def test_fast_twin_shares_tensors(tmp_path: Path) -> None:
    """Would catch a copied weight, a lost bias or attribute, and a twin where there is nothing to gain."""
    draft = made_draft(tmp_path, dtype=torch.float32, attention_bias=True)
    twin = fast_twin(draft)
    linears = [module for module in twin.modules() if isinstance(module, nn.Linear)]
    assert linears
    assert all(isinstance(linear, OneDnnLinear) for linear in linears)
    mine, other = twin.state_dict(), draft.state_dict()
    assert mine.keys() == other.keys()
    assert all(mine[name].data_ptr() == other[name].data_ptr() for name in other)
    assert not any(isinstance(module, OneDnnLinear) for module in draft.modules())
    assert twin.target_ids is draft.target_ids
    x: Tensor = torch.randn(1, 5, 1, 2 * tiny.WIDTH)
    linear = twin.layers[0].self_attn.q_proj
    assert torch.allclose(linear(x), nn.functional.linear(x, linear.weight, linear.bias), atol=1e-5)
    assert fast_twin(draft.double()) is draft


@torch.inference_mode()
def test_a_crowd_of_rivals_is_left_to_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch one product for each pair where a whole vocabulary is within the bound, or a crowd dropped."""
    draft = wide_head(torch.float32, tmp_path)
    draft.lm_head = ScreenedHead(draft.lm_head)
    draft.lm_head.weight.copy_(draft.lm_head.weight[:1] + 1e-4 * draft.lm_head.weight)
    asked: list[int] = []
    reference_head = head.reference_best_next
    monkeypatch.setattr(head, "reference_best_next", lambda d, x, k: asked.append(len(x)) or reference_head(d, x, k))
    normed = torch.randn(20, 40)
    wanted = best_next(draft, normed, 1)[1][:, 0]
    assert head.is_first(draft, normed, wanted).all()
    assert asked == [20]
