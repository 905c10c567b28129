"""The seeded numbers against those of the real SGLang 0.5.23, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from eagle3ref.errors import Eagle3RefError
from eagle3ref.verify import coins as coins_module
from eagle3ref.verify import seeded_coins, seeded_token

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sglang_rules.json").read_text())


def test_seeded_coins_are_sglangs():
    """Bug: one wrong constant, shift or sign in the hash; a seed cut to 32 bits; columns or blocks in another order."""
    golden = GOLDEN["hash"]
    columns = golden["columns"]
    uniforms, final = seeded_coins(torch.tensor(golden["seeds"]), torch.tensor(golden["lengths"]), columns[-1])
    bits = torch.cat([uniforms, final[:, None]], 1).view(torch.int32)
    assert bits[:, columns].tolist() == golden["coins_as_int32"]
    assert bits.long().sum(1).tolist() == golden["sum_of_all_coins_as_int32"]


def test_the_largest_hashes_stay_below_one(monkeypatch):
    """Bug: a coin of exactly 1, which walks past the last token."""
    golden = GOLDEN["hash"]
    monkeypatch.setattr(coins_module, "_hashes", lambda *_: torch.tensor([golden["edge_hashes"]]))
    uniforms, final = seeded_coins(torch.tensor([0]), torch.tensor([0]), len(golden["edge_hashes"]) - 1)
    bits = torch.cat([uniforms, final[:, None]], 1).view(torch.int32)
    assert bits.tolist() == [golden["edge_coins_as_int32"]]


def test_seeded_coins_do_not_depend_on_the_batch():
    """Bug: the row enters the hash."""
    seeds, lengths = torch.tensor([5, 42, 5]), torch.tensor([9, 9, 9])
    uniforms, final = seeded_coins(seeds, lengths, 4)
    alone = seeded_coins(seeds[1:2], lengths[1:2], 4)
    assert torch.equal(uniforms[1:2], alone[0])
    assert torch.equal(final[1:2], alone[1])
    assert torch.equal(uniforms[0], uniforms[2])


def test_seeded_first_tokens_are_sglangs():
    """Bug: the wrong end of the Gumbel, fp32 noise, or columns that are not token ids."""
    golden = GOLDEN["token"]
    tokens = seeded_token(*(torch.tensor(golden[key]) for key in ("probs", "seeds", "positions")))
    assert tokens.tolist() == golden["tokens"]
    assert len(set(golden["tokens"])) > 5


def test_seeds_of_another_shape_are_refused():
    """Bug: one seed broadcast over a batch, which then shares its coins."""
    with pytest.raises(Eagle3RefError, match="hashing seeds"):
        seeded_coins(torch.tensor([1]), torch.tensor([1, 2]), 4)
