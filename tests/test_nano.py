"""The embedded pair: what is shipped, and live decoding against replay on it."""

from __future__ import annotations

import json

import pytest
import torch
from live_rounds import assert_a_replay_has_the_same_rounds

import eagle3ref as e3
from eagle3ref.inspection import summarize_trace
from eagle3ref.nano.corpus import is_held_out
from eagle3ref.nano.train import main as train
from eagle3ref.target.generate import generate
from eagle3ref.weights import Weights

CHAIN, TREE = e3.TreeConfig(3, 1, 4), e3.TreeConfig(5, 4, 16)
FEW, MANY = 5, 20  # held-out prompts that are decoded live
DATA = e3.nano.target_path().parent
DRAFTS = {"gqa": e3.nano.draft_path(), "mla": e3.nano.mla_draft_path()}


@pytest.fixture(scope="module")
def target() -> e3.Target:
    return e3.load_target(e3.nano.target_path(), dtype=torch.float32)


@pytest.fixture(scope="module")
def prompts() -> list[e3.Prompt]:
    return e3.read_prompts(e3.nano.prompts_path(), e3.nano.target_path())[0]


@pytest.fixture(scope="module")
def plain_answers(target: e3.Target, prompts: list[e3.Prompt]) -> list[torch.Tensor]:
    return generate(target, [prompt.tokens for prompt in prompts[:MANY]], max_new_tokens=32)


@pytest.fixture(scope="module", params=[(0.0, 32), (0.8, 64)], ids=["greedy", "sampled"])
def trace(request: pytest.FixtureRequest, target, prompts, tmp_path_factory: pytest.TempPathFactory) -> e3.Trace:
    """Of all prompts; both drafts read it."""
    temperature, max_new_tokens = request.param
    return e3.capture(
        target,
        prompts,
        tmp_path_factory.mktemp("nano") / "trace",
        capture_points=(2, 4, 5),
        max_new_tokens=max_new_tokens,
        sampling=e3.Sampling(temperature, seed=0),
    )


@pytest.fixture(scope="module", params=DRAFTS)
def draft(request: pytest.FixtureRequest, target: e3.Target) -> e3.Eagle3Draft:
    return e3.load_draft(DRAFTS[request.param], target=target, dtype=torch.float32)


def test_shipped_files_are_small_and_in_moonshots_layout(target):
    """Catches a pair that outgrows the repository, and experts that are not packed."""
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) <= 8_000_000
    names = Weights(e3.nano.target_path()).names
    assert all(name.startswith("language_model.") for name in names)
    packed = [name for name in names if name.endswith(".weight_packed")]
    assert len(packed) == 7 * 8 * 3  # gate, up and down of 8 experts in every layer but the first
    assert not [name for name in names if ".experts." in name and name.endswith(".weight")]
    assert target.config.num_layers >= 7


def test_prompts_are_from_modules_that_training_left_out(prompts):
    """Catches an acceptance measured on text that the pair was trained on."""
    assert len(prompts) >= 20
    assert all(is_held_out(prompt.id.rsplit(":", 1)[0]) for prompt in prompts)


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("tree", [CHAIN, TREE], ids=str)
def test_live_decoding_is_lossless_and_equals_the_replay(target, draft, prompts, plain_answers, tree, count, tmp_path):
    """The main claim: same text as plain greedy decoding, and the rounds of the replay, round by round, in fp32."""
    chosen = [prompt.tokens for prompt in prompts[:count]]
    decoded = [e3.decode(target, draft, prompt, tree, max_new_tokens=32) for prompt in chosen]
    assert [one.tokens.tolist() for one in decoded] == [answer.tolist() for answer in plain_answers[:count]]
    assert_a_replay_has_the_same_rounds(target, draft, chosen, decoded, tree, tmp_path / "trace")
    assert sum(map(sum, (one.num_accepted for one in decoded))) > 0


def test_the_pair_is_interesting(trace, draft):
    """Catches a pair that accepts nothing, everything, or only the loops of its own answers."""
    is_greedy = trace.header.sampling.temperature == 0
    counts = e3.replay(trace, draft, CHAIN)
    assert counts.kind == ("exact" if is_greedy else "unbiased")
    greedy_length = {"gqa": 2.0, "mla": 1.9}[draft.config.attention.kind]
    assert counts.acceptance_length >= (greedy_length if is_greedy else 1.5)
    assert (counts.histogram.sum(axis=0) > 0.05 * counts.total_rounds).all()  # every accepted length occurs
    by_prompt = counts.per_prompt("acceptance_length")
    assert by_prompt.max() - by_prompt.min() > 0.8
    assert summarize_trace(trace).distinct_ngram_share > (0.65 if is_greedy else 0.9)


@pytest.mark.slow
def test_the_pair_can_be_made_again(tmp_path):
    """Catches a training pipeline that no longer runs from nothing to loadable files."""
    train(tmp_path, target_steps=3, answers=96, draft_steps=3)
    target = e3.load_target(tmp_path / "target", dtype=torch.float32)
    for name in ("draft", "draft_mla"):
        assert e3.load_draft(tmp_path / name, target=target).capture_points == (2, 4, 5)
    stages = json.loads((tmp_path / "training.json").read_text())
    assert list(stages) == ["corpus", "target", "answers", "draft", "draft_mla"]
    assert len(e3.read_prompts(tmp_path / "prompts.jsonl", tmp_path / "target")[0]) >= 20
