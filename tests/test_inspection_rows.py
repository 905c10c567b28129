"""Rows of the head and the embedding: which are equal, whose they are, and whether an initializer drew them."""

from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from eagle3ref import nano
from eagle3ref.inspection import inspect_draft
from eagle3ref.inspection.initialization import looks_initialised
from eagle3ref.inspection.rows import check_head_rows, equal_rows, row_hashes
from eagle3ref.inspection.versus_target import check_embedding, check_head_order, compare_rows
from eagle3ref.inspection.vocabulary import check_vocabulary
from eagle3ref.target import shared_weights

small_rows = st.lists(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0]), min_size=3, max_size=3), min_size=1, max_size=12
)


@given(rows=small_rows, dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]))
def test_equal_rows_are_counted_as_by_comparing_all(rows: list[list[float]], dtype: torch.dtype) -> None:
    """Would catch a hash of signs of zero, of one dtype only, or that misses a pair."""
    matrix = torch.tensor(rows, dtype=dtype)
    nonzero = [i for i in range(len(rows)) if bool(matrix[i].any())]
    repeated = [i for i in nonzero if any(torch.equal(matrix[i], matrix[j]) for j in nonzero if j < i)]
    adjacent = [i for i in nonzero if i and torch.equal(matrix[i], matrix[i - 1])]
    found = equal_rows(matrix)
    assert (found.zeros, found.repeated, found.adjacent) == (len(rows) - len(nonzero), len(repeated), len(adjacent))
    if found.example is None:
        assert not repeated
    else:
        first, second = found.example
        assert first != second
        assert torch.equal(matrix[first], matrix[second])


def test_hashes_of_different_rows_differ() -> None:
    """Would catch a weak hash: 100,000 rows of small integers, and rows that differ in one place or in order."""
    counted = torch.arange(100_000)
    matrix = torch.stack([counted % 100, counted // 100 % 100, counted // 10_000], 1).float()
    assert len(row_hashes(matrix).unique()) == len(matrix)
    assert len(row_hashes(torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]])).unique()) == 3


def test_twins_of_a_full_vocabulary_are_no_fault() -> None:
    """Would catch an alarm on the reserved tokens of every large vocabulary, whose rows are equal."""
    head = torch.randn(1000, 8)
    head[-5:] = head[-1]
    assert list(check_head_rows(equal_rows(head), is_reduced=False)) == []
    (finding,) = check_head_rows(equal_rows(head), is_reduced=True)
    assert "4 rows that equal others" in finding.found


def test_rows_are_compared_in_the_coarser_dtype() -> None:
    """Would catch a difference of dtypes told as a difference of weights."""
    target = torch.randn(40, 16)
    for own in (target.bfloat16(), target.bfloat16().float(), target):
        assert compare_rows(own, target.bfloat16()).equal == 40
    assert compare_rows(target.half(), target).equal == 40
    changed = target.clone()
    changed[3] += 0.1
    assert compare_rows(changed, target.bfloat16()).equal == 39
    ids = torch.randperm(40)[:10]
    assert compare_rows(target[ids], target, ids).equal == 10
    assert str(compare_rows(target[ids], target, ids)) == "equal to the target's in all rows"


def test_embedding_of_a_wider_dtype_is_the_targets(tmp_path: Path) -> None:
    """Would catch a warning that the embedding differs, where the target's file is only rounded further."""
    target = tiny.target_folder(tmp_path / "target")
    stored_there = shared_weights(target).embedding()
    assert stored_there.dtype == torch.bfloat16
    config, tensors = tiny.draft_parts()
    tensors["embed_tokens.weight"] = stored_there.float() * (1 + 1e-4)
    found = inspect_draft(tiny.write_draft(tmp_path / "draft", config, tensors), target)
    assert not any("differs" in oddity for oddity in found.oddities)
    assert found.health is not None
    assert str(found.health.embedding) == "equal to the target's in all rows"


def test_foreign_embedding_is_told_from_a_tuned_one() -> None:
    """Would catch an alarm on an embedding that was trained on, or silence on a random one."""
    target = torch.randn(500, 64)
    tuned = target + 0.3 * torch.randn(500, 64)
    assert list(check_embedding(compare_rows(tuned, target))) == []
    assert list(check_embedding(compare_rows(target, target))) == []
    (finding,) = check_embedding(compare_rows(torch.randn(500, 64), target))
    assert "nothing in common" in finding.found


def test_head_order_sees_through_training() -> None:
    """Would catch a map test that only knows exact copies, or one that blames a head trained from nothing."""
    generator = torch.Generator().manual_seed(0)
    target, ids = torch.randn(900, 64, generator=generator), torch.arange(900)[::3]
    noise = torch.randn(300, 64, generator=generator)
    tuned = target[ids] + 0.5 * noise
    assert list(check_head_order(tuned, target, ids)) == []
    (finding,) = check_head_order(tuned, target, torch.arange(300))
    assert "row" in finding.found
    assert list(check_head_order(noise, target, ids)) == []
    twins = target.repeat_interleave(2, 0)
    assert list(check_head_order(twins[1::2], twins, torch.arange(1, 1800, 2))) == []


@pytest.mark.parametrize("seed", range(10))
def test_initialised_matrices_are_recognised(seed: int) -> None:
    """Would catch an initializer that is not known: the ratios are of any independent draws."""
    torch.manual_seed(seed)
    drawn = {
        "normal": torch.randn(900, 96) * 0.02,
        "uniform": torch.rand(900, 96) - 0.5,
        "truncated": torch.nn.init.trunc_normal_(torch.empty(900, 96), std=0.02, a=-0.04, b=0.04),
        "bf16": (torch.randn(900, 96) * 0.02).bfloat16(),
    }
    assert {name: looks_initialised(matrix) for name, matrix in drawn.items()} == dict.fromkeys(drawn, True)


def test_trained_matrices_are_not_taken_for_initialised() -> None:
    """Would catch a test without power: rows of unlike length, a common mean, or the nano's own matrices."""
    drawn = torch.randn(900, 96)
    assert looks_initialised(drawn * (0.5 + torch.rand(900, 1))) is False
    assert looks_initialised(drawn * (0.5 + torch.rand(96))) is False
    assert looks_initialised(drawn + 0.2 * torch.randn(96)) is False
    assert looks_initialised(torch.zeros(900, 96)) is False
    assert looks_initialised(drawn.sign() + 0) is False
    assert looks_initialised(drawn[:100]) is None
    for path in (nano.draft_path(), nano.mla_draft_path()):
        assert looks_initialised(load_file(path / "model.safetensors")["lm_head.weight"]) is False
    assert looks_initialised(shared_weights(nano.target_path()).embedding()) is False


def test_absolute_ids_are_recognised() -> None:
    """Would catch d2t written as ids (a published fault), or an alarm on a map as every writer makes it."""
    ids = torch.arange(0, 96, 2)
    sound = torch.tensor([0, 1, 2, 5, 6, 9])
    assert list(check_vocabulary(sound - torch.arange(6), sound, 96)) == []
    assert list(check_vocabulary(torch.zeros(96, dtype=torch.int64), torch.arange(96), 96)) == []
    (finding,) = check_vocabulary(ids[:20], ids[:20] + torch.arange(20), 96)
    assert "themselves" in finding.meaning
    (finding,) = check_vocabulary(torch.arange(48), 2 * torch.arange(48), 96)
    assert finding.found.startswith("is 0, 1, 2")


def test_findings_are_sentences() -> None:
    """Would catch a finding that prints as a record."""
    (finding,) = check_vocabulary(torch.arange(48), 2 * torch.arange(48), 96)
    assert str(finding).startswith("d2t is 0, 1, 2, …: these look like")
    assert str(finding).endswith("Store d2t as ids - arange.")
