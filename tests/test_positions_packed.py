"""Packed attention against attention of one group at a time, whichever sequences have groups."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle3ref.nn import packed
from eagle3ref.nn.attend import Stretch, View, attend
from eagle3ref.nn.packed import Groups, PackedPrefix, SequenceKeys

NUM_SEQUENCES, LONGEST, HEADS, KV_HEADS, SIZE = 7, 9, 4, 2, 8
SCALE = 0.3


def one_by_one(query: Tensor, rows: SequenceKeys, sequence: Tensor, lengths: Tensor, window: int) -> Tensor:
    outputs = []
    for group, (of, length) in enumerate(zip(sequence.tolist(), lengths.tolist(), strict=True)):
        keys, values = (part[of, :, :length].transpose(0, 1)[None] for part in rows)
        stretch = Stretch(keys, values, (torch.arange(length) > length - window)[None, None, None])
        outputs.append(attend(query[:, group : group + 1], [stretch], SCALE))
    return torch.cat(outputs, 1)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, NUM_SEQUENCES - 1), st.integers(1, LONGEST)), min_size=1, max_size=12))
@pytest.mark.parametrize("scores_at_once", [1, 2**7, 2**20])
@pytest.mark.parametrize("window", [3, LONGEST + 1])
def test_any_groups_of_any_sequences(scores_at_once: int, window: int, groups: list[tuple[int, int]]) -> None:
    """Catches a group that reads a neighbor's keys, or is lost, where some sequences between others have no group."""
    torch.manual_seed(0)
    sequence, lengths = torch.tensor(groups).unbind(1)
    rows = SequenceKeys(*torch.randn(2, NUM_SEQUENCES, KV_HEADS, LONGEST, SIZE, dtype=torch.float64))
    query = torch.randn(1, len(groups), 1, HEADS, SIZE, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "_SCORES_AT_ONCE", scores_at_once)
        view = View(lambda own: (own.first, own.second), lengths[None, :, None], window, SCALE)
        output = PackedPrefix(rows, Groups(sequence, lengths)).attend(query, [], view)
    torch.testing.assert_close(output, one_by_one(query, rows, sequence, lengths, window))


def test_most_keys_are_not_copied() -> None:
    """Catches a copy of all keys because one sequence among neighbors is done; few of many are copied."""
    lengths = torch.full((5,), LONGEST)
    (dense,) = Groups(torch.tensor([0, 1, 2, 4, 5]), lengths).blocks(1)
    (sparse,) = Groups(torch.tensor([0, 10, 20, 30, 40]), lengths).blocks(1)
    assert dense.sequences == slice(0, 6)
    assert dense.targets.tolist() == [0, 1, 2, 3, 4]
    assert isinstance(sparse.sequences, Tensor)
