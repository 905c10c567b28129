"""Live decoding on a random pair: lossless, and the same rounds as a replay of what it wrote."""

from __future__ import annotations

import sys

import pytest
import torch
from live_rounds import assert_a_replay_has_the_same_rounds
from tiny import VOCAB, draft_folder, target_folder

import eagle3ref as e3
from eagle3ref.target.generate import generate

# The drafts here are odd on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")

TREES = [e3.TreeConfig(3, 1, 4), e3.TreeConfig(4, 3, 12), e3.TreeConfig(4, 3, 12, "ancestor")]


@pytest.fixture(scope="module", params=["gqa", "mla"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A random target and draft in fp64, and prompts of different lengths."""
    folder = tmp_path_factory.mktemp(request.param)
    target = e3.load_target(target_folder(folder / "target"), dtype=torch.float64)
    draft = e3.load_draft(
        draft_folder(folder / "draft", request.param), target=target, capture_points=(2, 3, 4), dtype=torch.float64
    )
    generator = torch.Generator().manual_seed(0)
    return target, draft, [torch.randint(VOCAB - 3, (length,), generator=generator) for length in (1, 2, 12)]


@pytest.mark.parametrize(
    ("pair", "tree"), [*(("gqa", tree) for tree in TREES), ("mla", TREES[1])], indirect=["pair"], ids=str
)
def test_text_is_plain_greedy_decoding_and_rounds_are_those_of_a_replay(pair, tree, tmp_path):
    """Catches rejected rows left in a cache, a wrong position or mask of a node, draft rows that a replay lacks."""
    target, draft, prompts = pair
    plain = generate(target, prompts, max_new_tokens=16)
    decoded = [e3.decode(target, draft, prompt, tree, max_new_tokens=16) for prompt in prompts]
    for prompt, answer, one in zip(prompts, plain, decoded, strict=True):
        assert one.tokens.tolist() == answer.tolist()
        assert one.trajectory[: len(prompt)].tolist() == prompt.tolist()
    assert_a_replay_has_the_same_rounds(target, draft, prompts, decoded, tree, tmp_path / "trace")


def test_target_as_its_own_draft_accepts_everything(pair, monkeypatch):
    """Catches an off-by-one in the walk: proposals that are the truth must all be accepted, in S + 1 tokens a round."""
    target, draft, prompts = pair
    answer = generate(target, prompts[2:], max_new_tokens=24)[0]
    everything = torch.cat((prompts[2], answer))

    def oracle(_draft, _first, roots, _prefix, tree):
        ahead = roots.flatten()[:, None] + 1 + torch.arange(tree.num_steps)
        chain = torch.arange(-1, tree.num_steps - 1).expand_as(ahead)
        return e3.tree.Candidates(torch.ones(ahead.shape), everything[ahead.clamp_max(len(everything) - 1)], chain)

    monkeypatch.setattr(sys.modules["eagle3ref.decode.drafter"], "propose", oracle)
    decoded = e3.decode(target, draft, prompts[2], TREES[0], max_new_tokens=21)
    assert decoded.num_accepted == [3, 3, 3, 3, 3]  # 1 token of the prompt's forward, then 5 rounds of 4
    assert decoded.tokens.tolist() == answer[:21].tolist()


def test_end_token_stops_and_is_kept(pair, monkeypatch):
    """Catches an answer that goes on behind its end token, or loses it."""
    target, draft, prompts = pair
    plain = generate(target, prompts[2:], max_new_tokens=12)[0]
    end = int(plain[5])
    ended = e3.TargetConfig(**{**target.config.__dict__, "eos_token_ids": (end,)})
    monkeypatch.setattr(target, "config", ended)
    decoded = e3.decode(target, draft, prompts[2], TREES[1], max_new_tokens=12)
    assert decoded.tokens.tolist() == plain[: plain.tolist().index(end) + 1].tolist()
    assert generate(target, prompts[2:], max_new_tokens=12)[0].tolist() == decoded.tokens.tolist()


@pytest.mark.parametrize(("length", "max_new_tokens", "dtype"), [(0, 4, "int64"), (3, 0, "int64"), (3, 4, "float32")])
def test_nothing_to_decode_is_refused(pair, length, max_new_tokens, dtype):
    """Catches an empty prompt that ends in an index error, and token ids that are none in one of the embedding."""
    target, draft, _ = pair
    with pytest.raises(e3.Eagle3RefError, match="at least one"):
        e3.decode(
            target, draft, torch.zeros(length, dtype=getattr(torch, dtype)), TREES[0], max_new_tokens=max_new_tokens
        )
