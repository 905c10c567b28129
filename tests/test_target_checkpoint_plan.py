"""What a pass costs: against the published sizes of Kimi-K2.5, and against counting one by one."""

from __future__ import annotations

from math import prod
from pathlib import Path

import kimi_files
import pytest
import tiny
import torch

from eagle3ref.target.checkpoint import (
    Census,
    Shards,
    StoredTensor,
    StoredWeight,
    active_weights,
    expert_shapes,
    experts_read,
    layer_shapes,
    open_census,
    plan_pass,
    reads_all_experts,
)
from eagle3ref.target.checkpoint.census import LayerCensus
from eagle3ref.target.checkpoint.plan import PassCost, attention_flops

KIMI = kimi_files.architecture()
TABLE = kimi_files.VOCAB * kimi_files.WIDTH


def of_bytes(num_bytes: int) -> StoredWeight:
    return StoredWeight("x", (), "plain", (StoredTensor("x", Path("x"), "U8", (num_bytes,), 0, num_bytes),))


def kimi_census() -> Census:
    """Kimi-K2.5's bytes, with all experts of a layer alike: the whole census takes seconds."""
    table = of_bytes(2 * TABLE)
    layers = []
    for index in range(61):
        rest = of_bytes(sum(prod(shape) for shape in layer_shapes(KIMI, index).values()) * 2 + 2 * 384 * (index > 0))
        expert = {name: of_bytes(prod(shape) * 9 // 16 + 8) for name, shape in expert_shapes(KIMI).items()}
        layers.append(LayerCensus(index, {"rest": rest}, (expert,) * (384 * (index > 0))))
    return Census(Path("x"), "", table, of_bytes(2 * 7168), table, tuple(layers), 208_215, 0)


@pytest.fixture(scope="module")
def census() -> Census:
    found = kimi_census()
    assert found.num_bytes == 594_205_904_896  # as tests of the census find it in the files
    return found


def cost(census: Census, *lengths: int, capture: int = 3, final: bool = False, dtype=torch.bfloat16) -> PassCost:
    return plan_pass(census, KIMI, lengths, num_capture_points=capture, with_final=final, dtype=dtype)


def test_a_token_is_multiplied_with_31_69_billion_weights():
    """Catches a part forgotten or counted for all experts; the figures are those published of the model."""
    found = active_weights(KIMI)
    assert {part: round(count / 1e9, 1) for part, count in found.items()} == {
        "attention": 6.2,
        "dense": 0.4,
        "router": 0.2,
        "shared experts": 2.6,
        "routed experts": 21.1,
        "lm_head": 1.2,
    }
    assert round(sum(found.values()) / 1e9, 2) == 31.69


def test_active_weights_are_those_of_the_modules():
    """Catches a matrix that the arithmetic misses, on a small model whose every parameter is there."""
    target = tiny.random_target()
    moe = target.architecture.moe
    one_by_one = sum(
        parameter.numel() * (moe.num_experts_per_token / moe.num_experts if ".experts." in name else 1)
        for name, parameter in target.named_parameters()
        if parameter.dim() == 2 and "embed_tokens" not in name
    )
    assert sum(active_weights(target.architecture).values()) == one_by_one


@pytest.mark.parametrize(("num_tokens", "gigabytes"), [(1, 33), (8, 110), (32, 301), (60, 430), (100, 522)])
def test_few_tokens_read_few_experts(num_tokens, gigabytes, census):
    """Catches the expectation under uniform routing gone wrong; the figures were worked out apart from this code."""
    assert round(cost(census, num_tokens).bytes_to_read / 1e9) == gigabytes


def test_the_expectation_is_the_mean_of_drawing():
    """Catches a formula that fits the table by chance: routes are drawn here, and counted."""
    moe, generator = KIMI.moe, torch.Generator().manual_seed(0)
    draws = torch.rand(200, 20, moe.num_experts, generator=generator).topk(moe.num_experts_per_token).indices
    hit = [len(pass_.unique()) for pass_ in draws]
    assert sum(hit) / len(hit) == pytest.approx(experts_read(moe, 20), rel=0.01)


def test_many_tokens_read_every_layer_once_and_of_the_embedding_their_rows(census):
    """Catches a pass that is planned to read more with more prompts, which is what the whole thing avoids."""
    few, many = cost(census, 192), cost(census, *[1000] * 1000)
    assert (few.experts_per_layer, many.experts_per_layer) == (384, 384)
    assert few.bytes_to_read == census.num_bytes - 2 * TABLE + 192 * 2 * 7168
    assert many.bytes_to_read == census.num_bytes  # a million tokens may be every row of the embedding
    assert not reads_all_experts(KIMI.moe, 191)
    assert experts_read(KIMI.moe, 191) > 0.98 * 384  # no cliff between the two rules


def test_flops_and_memory_grow_as_published(census):
    """Catches attention counted per prompt instead of per pair of positions, and bf16 rows counted in fp32."""
    found = cost(census, 1000)
    assert round(found.linear_flops / 1000 / 1e9, 1) == 63.4  # GFLOP per token
    pairs = sum(range(1, 1001))
    assert found.attention_flops == 61 * 64 * 2 * (192 + 128) * pairs
    assert round(found.attention_flops / pairs / 1e6, 2) == 2.50  # MFLOP per token and token of context
    assert attention_flops(KIMI, [500, 500]) < found.attention_flops / 1.9
    assert found.flops == found.linear_flops + found.attention_flops
    assert found.stream_bytes == 1000 * 14_336
    assert cost(census, 1000, dtype=torch.float32).stream_bytes == 1000 * 28_672


def test_disk_is_what_is_written(census):
    """Catches captured states planned for the wrong number of points, or the final state forgotten."""
    found = cost(census, 400, 600)
    assert (found.num_sequences, found.num_tokens) == (2, 1000)
    assert found.trace_bytes == 1000 * (3 * 14_336 + 12)
    assert cost(census, 1000, final=True).trace_bytes - found.trace_bytes == 1000 * 14_336


def test_a_checkpoint_on_disk_is_planned_from_its_headers(tmp_path):
    """Catches bytes planned from the settings although this copy is stored in another format."""
    folder = tiny.target_folder(tmp_path / "t")
    found = open_census(folder)
    planned = plan_pass(
        found, tiny.random_target().architecture, [50], num_capture_points=3, with_final=True, dtype=torch.float32
    )
    stored = sum(tensor.num_bytes for tensor in Shards.open(folder).tensors.values())
    assert found.num_bytes == stored
    assert planned.bytes_to_read == stored - (tiny.VOCAB - 50) * tiny.WIDTH * 2
