"""The compiled walks and INT4 against the reference: the same integers, the same bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_parts import built, random_tree, refusal
from torch import Tensor

from eagle3ref.kernels import native
from eagle3ref.positions import visited_positions, walk_positions
from eagle3ref.target import int4
from eagle3ref.tree import DraftTree

pytestmark = [built, pytest.mark.usefixtures("simd")]

MANY = settings(max_examples=60, deadline=None)


@MANY
@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 3))
def test_walks_visit_what_the_reference_visits(accepted, lanes):
    """Bug: a walk that stops early or late; lanes that run into each other."""
    one = torch.tensor(accepted, dtype=torch.int64)
    assert torch.equal(native.walk_positions(one), walk_positions(one))
    many = torch.stack([one.roll(i) for i in range(lanes)])
    assert torch.equal(native.visited_positions(many), visited_positions(many))


def test_a_buffer_may_begin_anywhere():
    """Bug: numbers read from between two places of their kind, which C++ leaves undefined and sanitizers report."""
    one = torch.randint(0, 4, (3, 11))
    moved = torch.frombuffer(bytearray(b"?" + one.numpy().tobytes()), dtype=torch.int64, offset=1).reshape(3, 11)
    assert moved.data_ptr() % 8 != 0
    assert torch.equal(native.visited_positions(moved), visited_positions(one))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 4))
def test_settings_are_walked_and_counted(seed, lengths, steps):
    """Bug: a round counted under another setting or sequence, or as complete though its lookahead is cut short."""
    random = torch.Generator().manual_seed(seed)
    ranks = torch.randint(1, 9, (sum(lengths), steps, steps), generator=random).to(torch.int16)
    ranks[torch.rand(ranks.shape, generator=random) < 0.3] = 32767
    starts = torch.tensor([0, *lengths]).cumsum(0)
    pairs = torch.tensor([(s, n) for s in range(1, steps + 1) for n in (1, 4, 32767)])
    histogram, censored = native.tally_settings(ranks, starts, pairs[:, 0], pairs[:, 1])
    for q, (s, n) in enumerate(pairs.tolist()):
        for b, length in enumerate(lengths):
            own = ranks[starts[b] : starts[b + 1]]
            accepted = (own[:, :s, s - 1] <= n - 1).sum(1)
            visited = walk_positions(accepted)
            complete = visited + s <= length
            counts = torch.bincount(accepted[visited[complete]], minlength=steps + 1)
            assert torch.equal(histogram[q, b], counts)
            assert censored[q, b] == int((~complete).sum())


@pytest.mark.parametrize("columns", [32, 64, 352, 4096])
def test_int4_unpacks_to_the_references_bytes(columns):
    """Bug: nibbles in another order, a vector's tail left out."""
    packed = torch.randint(-(2**31), 2**31, (17, columns // 8)).to(torch.int32)
    mine = native.unpack_int4(packed)
    assert mine.dtype == torch.int8
    assert torch.equal(mine, int4.unpack_int4(packed))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_int4_weights_are_the_references_bits(dtype):
    """Bug: a product rounded otherwise than torch's: not to even, or not at the edges of the dtype."""
    every_scale = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).to(dtype)  # and every NaN of bf16
    scale = every_scale[: 2**15 * 2].reshape(512, 128)
    packed = torch.randint(-(2**31), 2**31, (512, 128 * 4)).to(torch.int32)
    shape = torch.tensor([512, 128 * 32])
    mine, its = (module.dequantize_int4(packed, scale, shape, "w") for module in (native, int4))
    as_bits = torch.int32 if dtype == torch.float32 else torch.int16
    number = ~its.isnan()
    assert torch.equal(mine.isnan(), its.isnan())
    assert torch.equal(mine.view(as_bits)[number], its.view(as_bits)[number])


def test_half_scales_round_as_torch_does():
    """Bug: a product in half precision that is rounded otherwise; bf16's scales have too few bits to show it."""
    scale = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16).reshape(512, 128)
    packed = torch.arange(512 * 512).to(torch.int32).reshape(512, 512) * 2654435 + 12345
    shape = torch.tensor([512, 4096])
    mine, its = (module.dequantize_int4(packed, scale, shape, "w") for module in (native, int4))
    assert torch.equal(mine.isnan(), its.isnan())
    assert torch.equal(mine.nan_to_num().view(torch.int16), its.nan_to_num().view(torch.int16))


def test_int4_shapes_that_do_not_fit_are_refused():
    """Bug: memory read past the end of the scales, or a weight of another group size."""
    packed, scale = torch.zeros(2, 4, dtype=torch.int32), torch.ones(2, 2, dtype=torch.bfloat16)
    shape = torch.tensor([2, 64])
    mine = refusal(lambda: native.dequantize_int4(packed, scale, shape, "w"))
    assert mine == refusal(lambda: int4.dequantize_int4(packed, scale, shape, "w"))
    assert "torch.float64" in refusal(lambda: native.dequantize_int4(packed, scale.double(), shape, "w"))
    assert "[out, in / 8]" in refusal(lambda: native.unpack_int4(packed[0]))


def tree_of(tokens: Tensor, parents: Tensor) -> DraftTree:
    """No tree at all, which ``from_parents`` would not make."""
    return DraftTree(tokens, parents, tokens, tokens, tokens)


@pytest.mark.parametrize(
    "call",
    [
        lambda one: native.walk_positions(one.float()),
        lambda one: native.visited_positions(one[0]),
        lambda one: native.visited_positions(one.to("meta")),
        lambda one: native.walk_positions(one[0]),
        lambda one: native.walk_positions(one[None]),
        lambda one: native.tally_settings(one, one, one, one),
        lambda one: native.tally_settings(one[0].short(), one, one, one),
        lambda one: native.tally_settings(torch.ones(1, 2, 1, dtype=torch.int16), one, one, one),
        lambda one: native.tally_settings(torch.ones(1, 1, 1, dtype=torch.int16), one * 0, one, one),
        lambda one: native.tally_settings(torch.ones(1, 1, 1, dtype=torch.int16), torch.tensor([0, 1]), one * 2, one),
        lambda one: native.tally_settings(
            torch.ones(1, 1, 1, dtype=torch.int16), torch.tensor([0, 1]), one, one * 32768
        ),
        lambda one: native.verify_greedy(random_tree(1, 2, 9, 0), one),
        lambda one: native.verify_greedy(random_tree(1, 2, 9, 0), one[None].float()),
        lambda one: native.verify_greedy(tree_of(one, one), one),
        lambda one: native.verify_greedy(tree_of(one[None, :0], one[None, :0]), one[None, :0]),
        lambda one: native.verify_greedy(tree_of(one[None], one[None, :0]), one[None]),
        lambda one: native.verify_target_only(
            tree_of(one[None].expand(1, 2), one[None]), torch.ones(1, 2, 3), torch.ones(1, 2), torch.ones(1)
        ),
        lambda one: native.verify_target_only(
            random_tree(1, 2, 9, 0), torch.ones(1, 2, 0), torch.ones(1, 2), one.float()
        ),
    ],
)
def test_what_the_operators_cannot_read_is_refused(call):
    """Bug: memory of another dtype or size read as if it fitted."""
    assert refusal(lambda: call(torch.tensor([1])))
