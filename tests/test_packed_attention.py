"""The packed prefix against the reference prefix: the same softmax over the same keys, for any grouping."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eagle3ref.config import GQAConfig, MLAConfig, RopeConfig
from eagle3ref.nn import Prefix, Rows, make_attention, packed
from eagle3ref.nn.attention import GQAttention, MLAttention
from eagle3ref.nn.packed import Groups, PackedPrefix, SequenceKeys

WIDTH, TOKENS = 24, 23
ROPE = RopeConfig(dim=8, theta=100.0)
GQA = GQAConfig(num_heads=4, num_kv_heads=2, head_dim=8, rope=ROPE)
CONFIGS = {
    "gqa": GQA,
    "one head each": replace(GQA, num_kv_heads=4),
    "qk norm": replace(GQA, qk_norm_eps=1e-5),
    "window": replace(GQA, window=5),
    "window of one": replace(GQA, window=1),
    "mla": MLAConfig(4, 12, 10, 8, 8, 6, ROPE),
}


def made(config: GQAConfig | MLAConfig, dtype: torch.dtype) -> GQAttention | MLAttention:
    torch.manual_seed(1)
    attention = make_attention(WIDTH, WIDTH, config, 1e-5)
    for parameter in attention.parameters():
        parameter.data = torch.randn_like(parameter) * (0.5 if parameter.ndim == 2 else 1)
    return attention.to(dtype).requires_grad_(False)


def case(attention: GQAttention | MLAttention, dtype: torch.dtype, num_rows: int) -> tuple[Rows, dict[str, Tensor]]:
    """Keys of three sequences of which the second is short, and eleven groups: unsorted, repeated, two of length 0."""
    torch.manual_seed(2)
    sequence = torch.tensor([0, 0, 2, 2, 2, 0, 1, 2, 0, 1, 0])
    lengths = torch.tensor([1, 9, 23, 4, 23, 9, 3, 0, 22, 0, 23])
    x = torch.randn(1, len(sequence), num_rows, WIDTH, dtype=torch.float64).to(dtype)
    positions = (lengths[:, None] + torch.arange(num_rows) % 2)[None]
    tokens = torch.randn(3, 1, TOKENS, WIDTH, dtype=torch.float64).to(dtype)
    stored = attention.remember(tokens, torch.arange(TOKENS).expand(3, 1, -1))
    mask = torch.rand(1, len(sequence), num_rows, 2 * num_rows) < 0.5
    mask[..., num_rows:] |= torch.eye(num_rows, dtype=torch.bool)
    own_x = torch.randn(1, len(sequence), num_rows, WIDTH, dtype=torch.float64).to(dtype)
    return Rows(*(part[:, 0] for part in stored)), {
        "sequence": sequence, "lengths": lengths, "x": x, "positions": positions, "mask": mask, "own_x": own_x,
    }  # fmt: skip


def by_reference(attention: GQAttention | MLAttention, stored: Rows, given: dict[str, Tensor]) -> Tensor:
    """Every group as a sequence of its own, with its own copy of the keys and a mask over all of them."""
    some = given["sequence"]
    visible = (torch.arange(TOKENS) < given["lengths"][:, None])[:, None, None]
    prefix = Prefix(Rows(*(part[some] for part in stored)), visible)
    x, positions, mask, own_x = (given[name].transpose(0, 1) for name in ("x", "positions", "mask", "own_x"))
    own = attention.remember(own_x, positions - 1)
    return attention(x, positions, mask=mask, own=own, prefix=prefix)[0].transpose(0, 1)


def packed_prefix(attention: GQAttention | MLAttention, stored: Rows, given: dict[str, Tensor]) -> PackedPrefix:
    new = attention.keys_and_values(stored)
    keys = SequenceKeys.room_for(new, 3, TOKENS)
    for sequence in range(3):
        keys.write(sequence, 0, (new[0][sequence], new[1][sequence]))
    return PackedPrefix(keys, Groups(given["sequence"], given["lengths"]))


def by_packing(attention: GQAttention | MLAttention, stored: Rows, given: dict[str, Tensor]) -> Tensor:
    own = attention.remember(given["own_x"], given["positions"] - 1)
    prefix = packed_prefix(attention, stored, given)
    return attention(given["x"], given["positions"], mask=given["mask"], own=own, prefix=prefix)[0]


@pytest.mark.parametrize("scores_at_once", [1, 300, 2**20])
@pytest.mark.parametrize("groups_at_once", [1, 2, 32])
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_equals_reference(
    name: str, groups_at_once: int, scores_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch a key that leaks between sequences, lengths or windows, a wrong head, and a lost or swapped group."""
    monkeypatch.setattr(packed, "_GROUPS_AT_ONCE", groups_at_once)
    monkeypatch.setattr(packed, "_SCORES_AT_ONCE", scores_at_once)
    attention = made(CONFIGS[name], torch.float64)
    for num_rows in (1, 3):
        stored, given = case(attention, torch.float64, num_rows)
        expected = by_reference(attention, stored, given)
        assert torch.allclose(by_packing(attention, stored, given), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gqa", "window", "mla"])
def test_packed_is_as_precise_as_the_reference(name: str, dtype: torch.dtype) -> None:
    """Would catch a rounding that the reference does not have, e.g. scores in bf16."""
    attention = made(CONFIGS[name], dtype)
    stored, given = case(attention, dtype, 3)
    oracle = made(CONFIGS[name], dtype).double()
    wide = {key: value.double() if value.is_floating_point() else value for key, value in given.items()}
    exact = by_reference(oracle, Rows(*(part.double() for part in stored)), wide)
    errors = [(run(attention, stored, given) - exact).abs() for run in (by_packing, by_reference)]
    assert errors[0].max() <= 2 * errors[1].max()
    assert errors[0].square().mean() <= 4 * errors[1].square().mean()


@pytest.mark.parametrize("name", ["gqa", "window", "mla"])
def test_packed_rounds_where_the_reference_rounds(name: str) -> None:
    """Would catch fewer roundings than the reference's: as precise, but in bf16 other drafts win near ties."""
    attention = made(CONFIGS[name], torch.bfloat16)
    stored, given = case(attention, torch.bfloat16, 3)
    expected = by_reference(attention, stored, given)
    assert (by_packing(attention, stored, given) == expected).float().mean() > 0.9


def test_naive_mla_reads_expanded_keys() -> None:
    """Would catch a packed prefix that holds latents while the module attends to expanded heads."""
    attention = made(CONFIGS["mla"], torch.float64)
    absorbed_stored, given = case(attention, torch.float64, 2)
    expected = by_reference(attention, absorbed_stored, given)
    attention.absorbed = False
    assert torch.allclose(by_packing(attention, absorbed_stored, given), expected, rtol=0, atol=1e-12)


def test_groups_that_are_neighbors_read_keys_in_place() -> None:
    """Would catch a copy of every sequence's keys for each block; a gap is worth one."""
    neighbors = Groups(torch.tensor([1, 1, 2, 3]), torch.tensor([4, 5, 6, 7])).blocks(1)
    assert [block.sequences for block in neighbors] == [slice(1, 4)]
    (apart,) = Groups(torch.tensor([0, 3]), torch.tensor([4, 5])).blocks(1)
    assert torch.equal(torch.as_tensor(apart.sequences), torch.tensor([0, 3]))


def test_no_group_is_no_block() -> None:
    """Would catch a maximum over nothing when no root is left."""
    assert Groups(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)).blocks(4) == []
