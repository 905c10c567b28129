"""KimiK25Target against transformers' hidden states, routes, caches and trees on a random INT4 checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file
from torch import nn

from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn import MLAttention
from eagle3ref.target import load_target
from eagle3ref.target.kimi_k25 import KimiK25Target
from eagle3ref.tree import DraftTree

GOLDEN = Path(__file__).parent / "golden" / "kimi_tiny"
TREE_PARENTS = [-1, -1, 0, 0, 1, 2, 2, 4, 5]  # of the vectors' nodes; -1 is the prefix, and there are two roots
TOLERANCE = 5e-5
EVERY_POINT = range(8)
VECTORS = {
    "engine": load_file(GOLDEN / "vectors_int4_fp32_engine_eps.safetensors"),
    "transformers": load_file(GOLDEN / "vectors_int4_fp32.safetensors"),
}


def golden_target(eps: str = "engine", absorbed: bool | None = None) -> KimiK25Target:
    latent_norm_eps = None if eps == "engine" else 1e-6
    target = KimiK25Target.from_folder(GOLDEN / "int4", dtype=torch.float32, latent_norm_eps=latent_norm_eps)
    for module in target.modules():
        if isinstance(module, MLAttention):
            module.absorbed = absorbed
    return target


def logits_error(target: KimiK25Target) -> float:
    """Largest distance to the engine vectors' logits, whose standard deviation is 1."""
    output = target(VECTORS["engine"]["input_ids"])
    return float((target.logits(output.final_hidden_state) - VECTORS["engine"]["logits"]).abs().max())


@pytest.mark.parametrize("eps", ["engine", "transformers"])
@pytest.mark.parametrize("absorbed", [False, True])
def test_every_hidden_state_equals_transformers(eps, absorbed):
    """Bug: any wrong term in attention, routing, dequantization, or a capture point that is one layer off."""
    vectors, target = VECTORS[eps], golden_target(eps, absorbed)
    output = target(vectors["input_ids"], capture_points=EVERY_POINT)
    expected = {point: vectors[f"hidden_states/{point}"] for point in range(7)} | {7: vectors["last_layer_output"]}
    assert list(output.aux_hidden_states) == list(EVERY_POINT)
    for point, state in output.aux_hidden_states.items():
        torch.testing.assert_close(state, expected[point], rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(output.final_hidden_state, vectors["hidden_states/7"], rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(target.logits(output.final_hidden_state), vectors["logits"], rtol=0, atol=TOLERANCE)
    aux = torch.cat([output.aux_hidden_states[point] for point in (2, 3, 4)], -1)
    torch.testing.assert_close(aux, vectors["aux"], rtol=0, atol=TOLERANCE)


def test_the_two_epsilons_differ_by_more_than_the_tolerance():
    """Bug: latent_norm_eps that is read but not used; the vectors could not tell."""
    assert logits_error(golden_target("transformers")) > 1.5 * TOLERANCE


def test_routes_equal_transformers():
    """Bug: bias inside the weights, the 2.827 or the normalisation at the wrong place, other experts."""
    target, seen = golden_target(), []
    for layer in target.model.layers[1:]:
        layer.mlp.gate.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    target(VECTORS["engine"]["input_ids"])
    for layer, (weights, chosen) in enumerate(seen, 1):
        order, golden_order = chosen.argsort(), VECTORS["engine"][f"router/{layer}/indices"].argsort()
        golden_weights = VECTORS["engine"][f"router/{layer}/weights"].gather(1, golden_order)
        golden_chosen = VECTORS["engine"][f"router/{layer}/indices"].gather(1, golden_order)
        assert torch.equal(chosen.gather(1, order), golden_chosen)
        torch.testing.assert_close(weights.gather(1, order), golden_weights, rtol=0, atol=1e-5)


def test_cache_rows_equal_transformers():
    """Bug: the latent cached before its norm, the key before its rope. transformers stores evens, then odds."""
    target, vectors = golden_target(), VECTORS["engine"]
    cache = target.new_cache(2)
    target(vectors["input_ids"], cache=cache)
    cache.keep(torch.arange(24).expand(2, 24), torch.tensor([24, 24]))
    latent, key = cache.prefixes()[1].rows
    torch.testing.assert_close(latent, vectors["cache_layer1/kv"][:, 0], rtol=0, atol=TOLERANCE)
    evens_then_odds = torch.cat((key[..., 0::2], key[..., 1::2]), -1)
    torch.testing.assert_close(evens_then_odds, vectors["cache_layer1/k_rope"][:, 0], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("absorbed", [False, True, None])
@pytest.mark.parametrize("eps", ["engine", "transformers"])
def test_tree_forward_equals_transformers(eps, absorbed):
    """Bug: a node sees its sibling, misses an ancestor, or sits at its node index instead of its depth."""
    vectors, target = VECTORS[eps], golden_target(eps, absorbed)
    # The vectors' tree has no common root; one that no node attends to makes it a DraftTree.
    rooted = DraftTree.from_parents(
        torch.zeros(1, 10, dtype=torch.int64),
        torch.tensor([[-1, *(parent + 1 for parent in TREE_PARENTS)]]),
        torch.tensor([23]),
    )
    assert torch.equal(rooted.positions[:, 1:], vectors["tree/positions"])
    assert torch.equal(rooted.tree_mask[0, 1:, 1:], vectors["tree/allow"][:, 24:])
    assert vectors["tree/allow"][:, :24].all()
    cache = target.new_cache(1)
    target(vectors["tree/prefix"], cache=cache)
    cache.keep(torch.arange(24)[None], torch.tensor([24]))
    output = target(
        vectors["tree/tokens"],
        cache=cache,
        positions=vectors["tree/positions"],
        mask=vectors["tree/allow"][None, :, 24:],
        capture_points=range(7),
    )
    torch.testing.assert_close(target.logits(output.final_hidden_state), vectors["tree/logits"], rtol=0, atol=TOLERANCE)
    states = [*output.aux_hidden_states.values(), output.final_hidden_state]
    for i, state in enumerate(states):
        torch.testing.assert_close(state, vectors[f"tree/hidden_states/{i}"], rtol=0, atol=TOLERANCE)


def test_random_trees_on_ragged_prefixes_equal_path_by_path():
    """Bug: padding of a shorter prefix leaks, kept rows are not those of the accepted path, a second round drifts."""
    target = tiny.random_target().double()
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randint(tiny.VOCAB, (length,), generator=generator) for length in (5, 9, 1)]
    cache = target.new_cache(3)
    padded = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=7)
    target(padded, cache=cache)
    cache.keep(torch.arange(9).expand(3, 9), torch.tensor([5, 9, 1]))
    for _ in range(2):
        parents = torch.tensor([[-1, *(int(torch.randint(n, (1,), generator=generator)) for n in range(1, 8))]] * 3)
        tokens = torch.randint(tiny.VOCAB, (3, 8), generator=generator)
        tree = DraftTree.from_parents(tokens, parents, cache.lengths)
        output = target(
            tokens, cache=cache, positions=tree.positions, mask=tree.tree_mask, capture_points=tiny.CAPTURE_POINTS
        )
        for b in range(3):
            for node in range(8):
                path = tree.tree_mask[b, node].nonzero().flatten()
                alone = target(torch.cat((texts[b], tokens[b, path]))[None], capture_points=tiny.CAPTURE_POINTS)
                for got, expected in zip(
                    [*output.aux_hidden_states.values(), output.final_hidden_state],
                    [*alone.aux_hidden_states.values(), alone.final_hidden_state],
                    strict=True,
                ):
                    torch.testing.assert_close(got[b, node], expected[0, -1], rtol=1e-9, atol=1e-9)
        accepted = [tree.tree_mask[b, 3 + b].nonzero().flatten() for b in range(3)]
        counts = torch.tensor([len(path) for path in accepted])
        cache.keep(nn.utils.rnn.pad_sequence(accepted, batch_first=True), counts)
        texts = [torch.cat((text, tokens[b, path])) for b, (text, path) in enumerate(zip(texts, accepted, strict=True))]
    assert cache.lengths.tolist() == [len(text) for text in texts]


def test_cached_steps_at_default_positions_equal_one_pass():
    """Bug: a step behind a cache starts at position 0, or at the longest sequence's position."""
    target = tiny.random_target().double()
    tokens = torch.randint(tiny.VOCAB, (2, 10))
    cache, starts = target.new_cache(2), torch.tensor([6, 3])
    target(tokens[:, :6], cache=cache)
    cache.keep(torch.arange(6).expand(2, 6), starts)
    step = starts[:, None] + torch.arange(3)
    behind = target(tokens.gather(1, step), cache=cache).final_hidden_state
    whole = target(tokens).final_hidden_state
    torch.testing.assert_close(behind, whole[torch.arange(2)[:, None], step], rtol=1e-9, atol=1e-9)


def test_expert_weights_are_bf16_values_in_fp32_and_the_router_stays_fp32():
    """Bug: experts kept exact in fp32, which is another model; the router or its bias rounded to bf16."""
    wide, narrow = golden_target(), load_target(GOLDEN / "int4")
    expert = wide.model.layers[2].mlp.experts[3].up_proj.weight
    assert torch.equal(expert, expert.bfloat16().float())
    for target in (wide, narrow):
        gate = target.model.layers[2].mlp.gate
        assert (gate.weight.dtype, gate.e_score_correction_bias.dtype) == (torch.float32, torch.float32)
    assert narrow.model.layers[2].mlp.experts[3].up_proj.weight.dtype == torch.bfloat16
    biases = [target.model.layers[2].mlp.gate.e_score_correction_bias for target in (wide, narrow)]
    assert torch.equal(*biases)


def test_bf16_is_close_to_fp32_where_the_routes_agree():
    """Bug: an fp32 intermediate lost, frequencies in bf16: the error would be of the size of the states."""
    tokens = VECTORS["engine"]["input_ids"]
    wide = golden_target()(tokens, capture_points=(1,)).aux_hidden_states[1]
    narrow = load_target(GOLDEN / "int4")(tokens, capture_points=(1,)).aux_hidden_states[1]
    assert (narrow.float() - wide).abs().max() < 2**-6 * wide.abs().max()


@pytest.mark.parametrize("points", [(8,), (-1, 2), (3, 2), (2, 2)])
def test_capture_points_that_do_not_exist_are_refused(points):
    """Bug: a negative index that wraps around, an order that is not the one of the concatenation."""
    with pytest.raises(Eagle3RefError, match="capturing aux hidden states"):
        tiny.random_target()(torch.tensor([[1]]), capture_points=points)


@pytest.mark.parametrize("token", [-1, tiny.VOCAB])
def test_tokens_outside_the_vocabulary_are_refused(token):
    """Bug: -1 reads the last embedding row, or an index error without the position."""
    with pytest.raises(Eagle3RefError, match=rf"token id {token} \(sequence 1, position 0\)"):
        tiny.random_target()(torch.tensor([[1, 2], [token, 2]]))
