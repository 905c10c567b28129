"""Which form of latent attention is taken behind a prefix: the one of fewer operations, and never another result."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from eagle3ref.config import MLAConfig
from eagle3ref.nano.train_target import ROPE
from eagle3ref.nn import MLAttention, Prefix, Rows, attention
from eagle3ref.nn.absorption import LatentWork

K25 = MLAConfig(64, 1536, 512, 128, 64, 128, replace(ROPE, dim=64))
SMALL = MLAConfig(2, None, 12, 4, 2, 4, replace(ROPE, dim=2))
WIDTH = 6


def small_attention() -> MLAttention:
    generator = torch.Generator().manual_seed(0)
    layer = MLAttention(WIDTH, WIDTH, SMALL, 1e-6).double()
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return layer.requires_grad_(False)


LAYER = small_attention()


def attended(form: bool | None, batch: int, groups: int, queries: int, shared: int) -> tuple[torch.Tensor, int]:
    """The output of new rows behind a prefix, and what it cost besides the projections that both forms have.

    Of at least two rows each: products of single rows are not counted as such.
    """
    generator = torch.Generator().manual_seed(queries)
    x = torch.randn(batch, groups, queries, WIDTH, generator=generator, dtype=torch.float64)
    latent, key = torch.randn(2, batch, shared, 12, generator=generator, dtype=torch.float64)
    prefix = Prefix(Rows(latent, key[..., :2]), torch.ones(1, 1, 1, shared, dtype=torch.bool))
    positions = torch.arange(shared, shared + queries).expand(batch, groups, -1)
    mask = torch.ones(queries, queries, dtype=torch.bool).tril()
    LAYER.absorbed = form
    with FlopCounterMode(display=False) as counter:
        output = LAYER(x, positions, mask=mask, prefix=prefix)[0]
    projections = [LAYER.q_proj, LAYER.kv_a_proj_with_mqa, LAYER.o_proj]
    common = 2 * batch * groups * queries * sum(projection.weight.numel() for projection in projections)
    return output, counter.get_total_flops() - common


@given(st.integers(1, 2), st.integers(1, 3), st.integers(2, 12), st.integers(2, 30))
@settings(max_examples=12, deadline=None)
def test_the_cheaper_form_is_taken_and_both_agree(batch, groups, queries, shared):
    """Catches a rule that counts otherwise than the products that are made, and a form that is another attention."""
    naive, naive_flops = attended(False, batch, groups, queries, shared)
    absorbed, absorbed_flops = attended(True, batch, groups, queries, shared)
    work = LatentWork(queries, shared, own=queries, groups=groups)
    assert naive_flops == batch * work.naive_flops(SMALL)
    assert absorbed_flops == batch * work.absorbed_flops(SMALL)
    taken, flops = attended(None, batch, groups, queries, shared)
    assert flops == min(naive_flops, absorbed_flops)
    assert torch.equal(taken, absorbed if absorbed_flops < naive_flops else naive)
    torch.testing.assert_close(naive, absorbed, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("shared", "most"), [(100, 63), (1000, 145), (100_000, 170)])
def test_kimi_absorbs_the_rows_of_any_tree(shared, most):
    """Catches a rule that is not the one of the real sizes: absorbed up to 145 queries behind 1,000 rows."""
    cheaper = [LatentWork(n, shared, own=0).absorbed_is_cheaper(K25) for n in range(1, 200)]
    assert cheaper == [n <= most for n in range(1, 200)]


def test_without_a_prefix_rows_are_expanded():
    """Catches a whole sequence in the dearer form: no width of Kimi's heads makes it the cheaper one."""
    assert not any(LatentWork(n, 0, own=n).absorbed_is_cheaper(K25) for n in (1, 10, 1000, 100_000))


def test_rows_that_would_fill_the_memory_are_not_expanded(monkeypatch):
    """Catches keys and values of all heads of a long prefix: 5 GB of them for 64 heads and 16 x 4,000 rows."""
    expected, flops = attended(None, 2, 3, 12, 30)
    assert flops < attended(True, 2, 3, 12, 30)[1]
    monkeypatch.setattr(attention, "EXPANDED_AT_ONCE", 2 * 30 * 2 * (6 + 4) - 1)
    found, more = attended(None, 2, 3, 12, 30)
    assert more == attended(True, 2, 3, 12, 30)[1]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
