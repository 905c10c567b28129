"""The draft loop against a search that runs every path again from scratch, in both tree modes."""

from __future__ import annotations

import oracles
import pytest
import tiny
import torch
from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.draft import Eagle3Draft, FirstLevel, best_next, load_draft, propose, propose_sampled
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import KVCache, Prefix
from eagle3ref.tree import Candidates

# The drafts here are odd on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")

TOKENS = 12
FIELDS = ("scores", "tokens", "parents")


def small_draft(folder, kind: str, num_layers: int = 1, **keys) -> Eagle3Draft:
    return load_draft(tiny.draft_folder(folder, kind, num_layers=num_layers, **keys), dtype=torch.float64)


class Row:
    """One draft row: what went in."""

    def __init__(self, state: Tensor, token: int, position: int) -> None:
        self.state, self.token, self.position = state, token, position


def last_output(draft: Eagle3Draft, rows: list[Row], topk: int) -> tuple[Tensor, list[tuple[float, int]]]:
    """Run rows as one causal sequence from nothing: the last row's state, and its best (probability, token) pairs."""
    index = torch.arange(len(rows))
    output = draft(
        torch.stack([row.state for row in rows])[None, None],
        torch.tensor([row.token for row in rows])[None, None],
        torch.tensor([row.position for row in rows])[None, None],
        mask=index[:, None] >= index,
    )
    probs = oracles.softmax(draft.logits(output.normed[0, 0, -1]).tolist())
    best = oracles.best(probs, topk)
    return output.state[0, 0, -1], [(probs[token], int(draft.target_ids[token])) for token in best]


def search(draft: Eagle3Draft, aux: Tensor, tokens: Tensor, root: int, tree: TreeConfig) -> Candidates:
    """The candidates of one root. Beam b of pass i writes slot b; a beam sees its slot's rows, or its ancestors'."""
    topk = tree.topk
    prefix = [Row(draft.fuse(aux[p]), int(tokens[p + 1]), p) for p in range(root)]
    state, children = last_output(draft, prefix, topk)
    scored = [(oracles.fp32(p), token, -1) for p, token in children]
    # A beam: score, token, flat index, the state it is fed, its ancestors' rows.
    beams = [(score, token, flat, state, []) for flat, (score, token, _) in enumerate(scored)]
    slots: list[list[Row]] = [[] for _ in range(topk)]
    for step in range(tree.num_steps - 1):
        expanded = []
        for slot, (score, token, flat, fed, ancestors) in enumerate(beams):
            row = Row(fed, token, root + step)
            slots[slot].append(row)
            path = [*ancestors, row]
            visible = slots[slot] if tree.tree_kv == "slot" else path
            state, children = last_output(draft, prefix + visible, topk)
            expanded += [(oracles.fp32(score * oracles.fp32(p)), child, flat, state, path) for p, child in children]
        start = len(scored)
        scored += [(score, token, parent) for score, token, parent, _, _ in expanded]
        kept = oracles.best([entry[0] for entry in expanded], topk)
        beams = [(expanded[i][0], expanded[i][1], start + i, *expanded[i][3:]) for i in kept]
    scores, found, parents = zip(*scored, strict=True)
    return Candidates(torch.tensor([scores]), torch.tensor([found]), torch.tensor([parents]))


def proposals(draft: Eagle3Draft, aux: Tensor, tokens: Tensor, roots: Tensor, tree: TreeConfig) -> Candidates:
    """The same for roots [B, P] of sequences aux [B, T, 3C], tokens [B, T] with the package's one-pass prefix."""
    state, normed, prefix = before_roots(draft, aux, tokens, roots)
    return propose(draft, FirstLevel(state, *best_next(draft, normed, tree.topk)), roots, prefix, tree)


def before_roots(draft: Eagle3Draft, aux: Tensor, tokens: Tensor, roots: Tensor) -> tuple[Tensor, Tensor, list[Prefix]]:
    """State and normed state [B, P, C] of the last row before each root, and the rows that each root may see."""
    batch, rows = aux.shape[0], torch.arange(aux.shape[1] - 1)
    cache = KVCache(len(draft.layers), batch)
    output = draft(
        draft.fuse(aux[:, :-1]).unsqueeze(1), tokens[:, None, 1:], rows.expand(batch, 1, -1), mask=rows[:, None] >= rows
    )
    cache.offer(output.rows)
    cache.keep(rows.expand(batch, -1), torch.full((batch,), len(rows)))
    sequence = torch.arange(batch)[:, None]
    state, normed = (part[:, 0][sequence, roots - 1] for part in (output.state, output.normed))
    prefix = [entry._replace(mask=(rows < roots[..., None]).unsqueeze(2)) for entry in cache.prefixes()]  # [B, P, 1, K]
    return state, normed, prefix


def assert_same(got: Candidates, expected: Candidates) -> None:
    assert torch.equal(got.parents, expected.parents)
    assert torch.equal(got.tokens, expected.tokens)
    torch.testing.assert_close(got.scores, expected.scores, rtol=1e-5, atol=0)


@pytest.mark.parametrize("tree_kv", ["slot", "ancestor"])
@pytest.mark.parametrize(
    ("kind", "layers", "keys"), [("gqa", 1, {}), ("mla", 1, {"norm_output": True}), ("gqa", 2, {}), ("mla", 2, {})]
)
def test_candidates_equal_a_search_from_scratch(kind, layers, keys, tree_kv, tmp_path):
    """Bug: a beam reads another branch's rows or state, sits one position off, or children are numbered wrongly."""
    draft = small_draft(tmp_path, kind, layers, **keys)
    aux = torch.randn(2, TOKENS, 3 * tiny.WIDTH, dtype=torch.float64)
    tokens = torch.randint(tiny.VOCAB, (2, TOKENS))
    roots = torch.tensor([[1, 7, 11], [4, 4, 10]])
    tree = TreeConfig(4, 3, 12, tree_kv)
    expected = [search(draft, aux[b], tokens[b], int(root), tree) for b in range(2) for root in roots[b]]
    got = proposals(draft, aux, tokens, roots, tree)
    assert got.scores.dtype == torch.float32
    assert got.tokens.shape == (6, tree.num_candidates)
    assert_same(got, Candidates(*(torch.cat([getattr(one, field) for one in expected]) for field in FIELDS)))


def test_the_two_tree_modes_differ_only_below_the_second_pass(tmp_path):
    """Bug: one mode runs as the other (the oracle would not tell if no beam ever changed hands)."""
    draft = small_draft(tmp_path, "gqa")
    aux = torch.randn(1, TOKENS, 3 * tiny.WIDTH, dtype=torch.float64)
    tokens, roots = torch.randint(tiny.VOCAB, (1, TOKENS)), torch.arange(1, TOKENS)[None]
    slot, ancestor = (proposals(draft, aux, tokens, roots, TreeConfig(4, 3, 12, mode)) for mode in ("slot", "ancestor"))
    shared = 3 + 9  # depths 1 and 2 come from rows whose only own key is themselves
    torch.testing.assert_close(slot.scores[:, :shared], ancestor.scores[:, :shared])
    assert torch.equal(slot.tokens[:, :shared], ancestor.tokens[:, :shared])
    assert (slot.scores[:, shared:] - ancestor.scores[:, shared:]).abs().max() > 1e-3


@pytest.mark.parametrize("num_steps", [1, 4])
@pytest.mark.parametrize("tree_kv", ["slot", "ancestor"])
def test_a_chain_is_the_repeated_argmax(num_steps, tree_kv, tmp_path):
    """Bug: topk 1 takes a path of its own; one step too many or too few; modes differ where they must not."""
    draft = small_draft(tmp_path, "mla")
    aux, tokens = torch.randn(TOKENS, 3 * tiny.WIDTH, dtype=torch.float64), torch.randint(tiny.VOCAB, (TOKENS,))
    tree = TreeConfig(num_steps, 1, num_steps + 1, tree_kv)
    rows = [Row(draft.fuse(aux[p]), int(tokens[p + 1]), p) for p in range(5)]
    expected = []
    for step in range(num_steps):
        state, [(_, token)] = last_output(draft, rows, 1)
        expected.append(token)
        rows.append(Row(state, token, 5 + step))
    got = proposals(draft, aux[None], tokens[None], torch.tensor([[5]]), tree)
    assert got.tokens.tolist() == [expected]
    assert got.parents.tolist() == [list(range(-1, num_steps - 1))]


def test_batches_of_roots_equal_one_at_a_time(tmp_path):
    """Bug: a shorter prefix sees rows behind its root; sequences or roots of a batch mix."""
    draft = small_draft(tmp_path, "gqa")
    aux = torch.randn(3, TOKENS, 3 * tiny.WIDTH, dtype=torch.float64)
    tokens = torch.randint(tiny.VOCAB, (3, TOKENS))
    roots = torch.tensor([[1, 9], [11, 2], [5, 5]])
    tree = TreeConfig(3, 2, 6)
    together = proposals(draft, aux, tokens, roots, tree)
    for b in range(3):
        for i, root in enumerate(roots[b].tolist()):
            cut = slice(0, root + 1)  # what lies behind the root does not exist
            alone = proposals(draft, aux[b : b + 1, cut], tokens[b : b + 1, cut], torch.tensor([[root]]), tree)
            row = 2 * b + i
            assert_same(Candidates(*(getattr(together, field)[row : row + 1] for field in FIELDS)), alone)


def test_first_level_is_over_the_draft_vocabulary(tmp_path):
    """Bug: a softmax over the target's vocabulary, or draft ids returned as target ids."""
    draft = small_draft(tmp_path, "gqa")
    normed = torch.randn(2, 3, tiny.WIDTH, dtype=torch.float64)
    probs, tokens = best_next(draft, normed, tiny.DRAFT_VOCAB)
    torch.testing.assert_close(probs.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    assert torch.equal(tokens.sort(-1).values, draft.target_ids.expand(2, 3, -1))
    assert torch.equal(tokens[..., 0], draft.target_ids[draft.logits(normed).argmax(-1)])


def test_more_children_than_the_draft_vocabulary_are_refused(tmp_path):
    """Bug: torch.topk's own message, which names no setting."""
    normed = torch.zeros(1, tiny.WIDTH, dtype=torch.float64)
    with pytest.raises(Eagle3RefError, match=f"k = {tiny.DRAFT_VOCAB + 1}"):
        best_next(small_draft(tmp_path, "gqa"), normed, tiny.DRAFT_VOCAB + 1)


def test_bf16_probabilities_are_fp32(tmp_path):
    """Bug: a softmax in bf16, whose probabilities tie."""
    draft = load_draft(tiny.draft_folder(tmp_path), dtype=torch.bfloat16)
    probs, _ = best_next(draft, torch.randn(5, tiny.WIDTH).bfloat16(), 4)
    assert probs.dtype == torch.float32
    assert not torch.equal(probs, probs.bfloat16().float())


def drawn(draft: Eagle3Draft, rows: list[Row], temperature: float, uniforms: list[float]) -> list[tuple[int, Tensor]]:
    """A chain drawn from scratch: each token, and the target-sized distribution that it was drawn from."""
    chain, vocabulary, state = [], draft.target_ids.tolist(), None
    for uniform in uniforms:
        if chain:
            rows = [*rows, Row(state, chain[-1][0], rows[-1].position + 1)]
        state, best = last_output(draft, rows, len(vocabulary))
        spread = torch.zeros(tiny.VOCAB, dtype=torch.float64)
        for p, token in best:
            spread[token] = p ** (1 / temperature)
        spread /= spread.sum()
        chain.append((vocabulary[oracles.inverse_cdf(spread[vocabulary].tolist(), uniform)], spread))
    return chain


@pytest.mark.parametrize(("kind", "layers"), [("gqa", 1), ("mla", 2)])
def test_drawn_chains_equal_a_chain_from_scratch(kind, layers, tmp_path):
    """Bug: a row that is blind to an earlier draw, draft ids for target ids, or a temperature left out."""
    draft = small_draft(tmp_path, kind, layers)
    aux = torch.randn(2, TOKENS, 3 * tiny.WIDTH, dtype=torch.float64)
    tokens, roots = torch.randint(tiny.VOCAB, (2, TOKENS)), torch.tensor([[3, 11], [7, 1]])
    state, normed, prefix = before_roots(draft, aux, tokens, roots)
    uniforms = torch.rand(2, 2, 4, dtype=torch.float64)
    candidates, draft_probs = propose_sampled(draft, state, normed, roots, prefix, temperature=0.7, uniforms=uniforms)
    assert candidates.parents.tolist() == [[-1, 0, 1, 2]] * 4
    for row, (b, i) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        rows = [Row(draft.fuse(aux[b, p]), int(tokens[b, p + 1]), p) for p in range(int(roots[b, i]))]
        chain = drawn(draft, rows, 0.7, uniforms[b, i].tolist())
        assert candidates.tokens[row].tolist() == [token for token, _ in chain]
        torch.testing.assert_close(draft_probs[row], torch.stack([probs for _, probs in chain]))
        score = 1.0
        for step, (token, probs) in enumerate(chain):
            score *= float(probs[token])
            assert candidates.scores[row, step].item() == pytest.approx(score, rel=1e-5)


def test_drawn_chains_at_temperature_zero_are_the_first_choices(tmp_path):
    """Bug: a division by zero, or a probability other than 1 for a draft that is certain."""
    draft = small_draft(tmp_path, "gqa")
    aux, tokens = torch.randn(1, 6, 3 * tiny.WIDTH, dtype=torch.float64), torch.randint(tiny.VOCAB, (1, 6))
    tree, root = TreeConfig(3, 1, 4), torch.tensor([[5]])
    state, normed, prefix = before_roots(draft, aux, tokens, root)
    top = propose(draft, FirstLevel(state, *best_next(draft, normed, 1)), root, prefix, tree)
    got, probs = propose_sampled(draft, state, normed, root, prefix, temperature=0.0, uniforms=torch.rand(1, 1, 3))
    assert torch.equal(got.tokens, top.tokens)
    assert torch.equal(probs[0], torch.nn.functional.one_hot(top.tokens[0], tiny.VOCAB).double())


def test_drawn_chains_of_a_bf16_draft_are_drawn_in_fp32(tmp_path):
    """Bug: a CDF in bf16, whose tail is never drawn; the probabilities then are not those drawn from."""
    draft = load_draft(tiny.draft_folder(tmp_path), dtype=torch.bfloat16)
    row = torch.randn(1, 1, tiny.WIDTH).bfloat16()
    _, probs = propose_sampled(
        draft, row, row, torch.tensor([[1]]), None, temperature=1.0, uniforms=torch.tensor([[[0.5]]])
    )
    assert probs.dtype == torch.float32
    assert probs.sum().item() == pytest.approx(1, abs=1e-6)
