"""Rows and scores are taken in blocks so that memory is bounded; the results are those of all rows at once."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import Tensor

from eagle3ref.config import MoEConfig
from eagle3ref.nn import GatedMatrices, GatedMLP, MoE, attend, attention, mlp, moe
from eagle3ref.nn.attend import Stretch

GENERATOR = torch.Generator().manual_seed(0)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


@pytest.fixture(name="small_blocks")
def small_blocks_fixture(monkeypatch):
    for module in (attention, mlp, moe):
        monkeypatch.setattr(module, "BLOCK_ROWS", 5)
    monkeypatch.setattr(attend, "SCORES_AT_A_TIME", 60)


@pytest.mark.parametrize("absorbed", [None, True, False])
def test_a_long_sequence_in_blocks_equals_one_block(absorbed, request):
    """Bug: a block that sees keys ahead of it or misses the first ones, positions that start anew."""
    target, tokens = tiny.random_target().double(), torch.randint(tiny.VOCAB, (3, 23), generator=GENERATOR)
    for layer in target.model.layers:
        layer.self_attn.absorbed = absorbed
    expected = target.forward(tokens, capture_points=range(8))
    request.getfixturevalue("small_blocks")
    streams = target.embed(list(tokens))
    for layer in target.stream_layers(streams):
        torch.testing.assert_close(torch.stack(streams), expected.aux_hidden_states[layer], rtol=1e-10, atol=1e-10)
    final = torch.stack(target.finish(streams))
    torch.testing.assert_close(final, expected.final_hidden_state, rtol=1e-10, atol=1e-10)


def test_scores_in_blocks_equal_all_at_once(monkeypatch):
    """Bug: the mask of the first rows for every block, or one that all rows share cut into blocks."""
    query, own, shared = randn(2, 3, 7, 4, 5), randn(2, 3, 7, 2, 5), randn(2, 11, 2, 5)
    values = randn(2, 3, 7, 2, 6), randn(2, 11, 2, 6)
    causal = torch.ones(7, 7, dtype=torch.bool).tril().expand(2, 3, 7, 7)
    visible = (torch.arange(11) < torch.tensor([11, 4])[:, None])[:, None, None]  # [B, 1, 1, K]
    parts = [Stretch(shared, values[1], visible), Stretch(own, values[0], causal)]
    expected = attend.attend(query, parts, 0.3)
    for scores in (1, 2 * 3 * 4 * 18 * 3):
        monkeypatch.setattr(attend, "SCORES_AT_A_TIME", scores)
        torch.testing.assert_close(attend.attend(query, parts, 0.3), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("small_blocks")
def test_experts_in_blocks_have_the_values_and_gradients_of_the_plain_sum():
    """Bug: a token's second choice weighed by its first, rows of a block added to other tokens, a gradient lost."""
    config = MoEConfig(6, 2, 1, intermediate_size=4, routed_scaling_factor=2.5, normalize_weights=True)
    module = MoE(8, config).double()
    for parameter in module.parameters():
        parameter.data = 0.5 * randn(*parameter.shape)
    x = randn(2, 17, 8).requires_grad_()

    def plain(rows: Tensor) -> Tensor:
        flat = rows.flatten(0, 1)
        weights, chosen = module.gate(flat)
        outputs = torch.stack([expert(flat) for expert in module.experts], 1)  # every expert on every token
        picked = outputs.gather(1, chosen[..., None].expand(-1, -1, 8))
        return ((picked * weights[..., None]).sum(1) + module.shared_experts(flat)).view_as(rows)

    often = int(module.gate(x.flatten(0, 1))[1].flatten().mode().values)  # an expert of several blocks
    weight, down = module.experts[often].gate_proj.weight, randn(2, 17, 8)
    results = []
    for function in (module, plain):
        output = function(x)
        results.append((output, *torch.autograd.grad((output * down).sum(), (x, weight, module.gate.weight))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_matrices_without_a_module_are_the_module():
    """Bug: gate and up exchanged, which a symmetric test would not see."""
    module, x = GatedMLP(8, 6).double(), randn(3, 8)
    matrices = GatedMatrices(module.gate_proj.weight, module.up_proj.weight, module.down_proj.weight)
    assert torch.equal(matrices(x), module(x))


@pytest.mark.usefixtures("small_blocks")
def test_blocks_of_rows_are_joined_in_order():
    """Bug: the last, shorter block left out."""
    x = randn(13, 2)
    sizes = []

    def double(rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        return 2 * rows

    assert torch.equal(mlp.in_blocks(double, x), 2 * x)
    assert sizes == [5, 5, 3]
