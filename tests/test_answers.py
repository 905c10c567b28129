"""Answers by rounds of all prompts together: the tokens of generate and decode, whoever else is answered."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from answering import CHAIN, NUM_NEW, TREE, WARM, Pair
from tiny import VOCAB

import eagle3ref as e3
from eagle3ref.config import AcceptanceRule
from eagle3ref.decode import RoundDone, answering_bytes_per_token, chooser, drafter
from eagle3ref.target.generate import generate
from eagle3ref.target.prefill import prefill_states

# The drafts here are odd on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("answers"))


@pytest.fixture
def ending(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> int:
    """An end token that one answer comes to early; its place in that answer."""
    answer = pair.generated()[1]
    end = next(i for i in range(3, NUM_NEW) if answer[i] not in answer[:i])
    ended = e3.TargetConfig(**{**pair.target.config.__dict__, "eos_token_ids": (answer[end],)})
    monkeypatch.setattr(pair.target, "config", ended)
    return end


def batch_sizes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes [B, Q] of the forwards behind a cache, filled as they are made."""
    sizes, forward = [], pair.target.forward

    def spied(tokens: torch.Tensor, **inputs: object) -> object:
        sizes.append(tuple(tokens.shape))
        return forward(tokens, **inputs)

    monkeypatch.setattr(pair.target, "forward", spied)
    return sizes


@pytest.mark.parametrize("tree", [None, CHAIN, TREE], ids=str)
def test_greedy_answers_are_those_of_plain_generation(pair, ending, tree):
    """Catches another prompt's mask, length or rows, a padded row that is kept, and rows mixed up when one leaves."""
    expected = pair.generated()
    assert len(expected[1]) == ending + 1 < NUM_NEW
    assert pair.answers(draft=tree and pair.draft, tree=tree) == expected


@pytest.mark.usefixtures("ending")
def test_sampled_answers_without_a_draft_are_those_of_plain_generation(pair):
    """Catches numbers that are counted otherwise, streams by place in the batch, or shared between prompts."""
    assert pair.answers(sampling=WARM) == pair.generated(sampling=WARM)
    expected = pair.generated(sampling=WARM, prompt_indices=[7, 3, 5])
    assert pair.answers(sampling=WARM, prompt_indices=[7, 3, 5]) == expected != pair.generated(sampling=WARM)


@pytest.mark.usefixtures("ending")
@pytest.mark.parametrize(
    ("rule", "tree"),
    [(None, TREE), (AcceptanceRule("rejection", "sampled"), CHAIN)],
    ids=str,
)
def test_sampled_answers_with_a_draft_are_those_of_decoding_alone(pair, monkeypatch, rule, tree):
    """Catches numbers or draft probabilities of a neighbor, also when it has left, and blocks of trees mixed up."""
    monkeypatch.setattr(chooser, "LOGITS_AT_ONCE", 2 * tree.num_draft_tokens * VOCAB)  # two prompts at a time
    monkeypatch.setattr(chooser, "PROBS_AT_ONCE", 3 * VOCAB)  # and less than one
    sizes, target_probs = [], chooser.target_probs
    monkeypatch.setattr(
        chooser, "target_probs", lambda logits, **rest: sizes.append(logits.numel()) or target_probs(logits, **rest)
    )
    alone = [
        e3.decode(
            pair.target, pair.draft, prompt, tree, max_new_tokens=NUM_NEW, sampling=WARM, rule=rule, prompt_index=i
        )
        for i, prompt in enumerate(pair.prompts)
    ]
    done: list[RoundDone] = []
    together = {"draft": pair.draft, "tree": tree, "sampling": WARM, "rule": rule}
    assert pair.answers(**together, on_round=done.append) == [one.tokens.tolist() for one in alone]
    accepted = [count for one in alone for count in one.num_accepted]
    assert done[-1].acceptance_length == pytest.approx(1 + sum(accepted) / len(accepted))
    assert done[-1].num_rounds == max(len(one.roots) for one in alone)
    assert max(sizes) == 3 * VOCAB
    backwards = pair.answers(prompts=pair.prompts[::-1], prompt_indices=[2, 1, 0], **together)
    assert backwards == [one.tokens.tolist() for one in alone[::-1]]


def test_a_tie_goes_to_the_lower_token(pair, monkeypatch):
    """Catches a head that is gone through in pieces and takes another of equal logits than plain generation."""
    target, best = copy.deepcopy(pair.target), pair.generated()[0][0]
    head = target.lm_head()
    head[[0, best + 1, VOCAB - 1]] = head[best].clone()  # equals in the same piece and in others
    monkeypatch.setattr("eagle3ref.target.kimi_k25.HEAD_ROWS", 8)
    plain = [answer.tolist() for answer in generate(target, pair.prompts, max_new_tokens=NUM_NEW)]
    assert plain[0][0] == 0
    assert pair.answers(target=target) == pair.answers(target=target, draft=pair.draft, tree=TREE) == plain


def test_a_finished_prompt_costs_no_more_rows(pair, ending, monkeypatch):
    """Catches a batch that keeps its size: a streamed round costs by rows and by the experts that they need."""
    sizes = batch_sizes(pair, monkeypatch)
    pair.answers()
    assert sizes == [(3, 1)] * ending + [(2, 1)] * (NUM_NEW - 1 - ending)


def test_a_round_is_one_forward_of_all_prompts(pair, monkeypatch):
    """Catches a prefill or a verification prompt by prompt: each forward is a pass over the weights."""
    sizes, passes = batch_sizes(pair, monkeypatch), []
    layers = pair.target.layers
    monkeypatch.setattr(pair.target, "layers", lambda *inputs: passes.append(inputs) or layers(*inputs))
    done: list[RoundDone] = []
    pair.answers(draft=pair.draft, tree=TREE, on_round=done.append)
    assert len(sizes) == done[-1].num_rounds == len(done) - 1 < NUM_NEW - 1
    assert len(passes) == 1 + len(sizes)  # the prompts in one
    assert [batch for batch, _ in sizes] == [one.num_open for one in done[:-1]]
    assert {rows for _, rows in sizes} == {TREE.num_draft_tokens}


@pytest.mark.usefixtures("ending")
def test_progress_adds_up(pair):
    """Catches tokens counted past an end, lengths over the wrong rounds, and an estimate that is too small."""
    done: list[RoundDone] = []
    answers = pair.answers(draft=pair.draft, tree=CHAIN, on_round=done.append)
    assert (done[0].num_rounds, done[0].num_tokens, done[0].num_open) == (0, 3, 3)
    assert math.isnan(done[0].acceptance_length)
    assert (done[-1].num_open, done[-1].num_tokens, done[-1].rounds_left) == (0, sum(map(len, answers)), 0)
    plain: list[RoundDone] = []
    pair.answers(on_round=plain.append)
    assert [one.rounds_left for one in plain] == list(range(NUM_NEW - 1, -1, -1))
    assert {one.acceptance_length for one in plain[1:]} == {1.0}


@pytest.mark.usefixtures("ending")
def test_other_targets_answer_alike(pair, monkeypatch):
    """Catches aux states of another row or in another order where prompts go through the target block by block."""
    expected = pair.answers(draft=pair.draft, tree=TREE)
    monkeypatch.setattr("eagle3ref.target.prefill.BLOCK_ROWS", 4)
    monkeypatch.setattr(drafter, "_BLOCK_ROWS", 3)
    monkeypatch.delattr(type(pair.target).__mro__[1], "stream_layers")  # no LayerMajorTarget any more
    assert not isinstance(pair.target, e3.target.LayerMajorTarget)
    done: list[RoundDone] = []
    assert pair.answers(draft=pair.draft, tree=TREE, on_round=done.append) == expected == pair.answers()
    assert done[-1].acceptance_length > 1.05


@pytest.mark.usefixtures("ending")
def test_streamed_weights_give_the_same_answers(pair):
    """Catches a round that a streamed target cannot run, or runs otherwise."""
    target = e3.load_target(pair.folder, dtype=torch.float64, weights="stream")
    target.config = pair.target.config
    for settings in ({"draft": pair.draft, "tree": CHAIN}, {"sampling": WARM}):
        assert pair.answers(target=target, **settings) == pair.answers(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tree": CHAIN}, "a tree without a draft"),
        ({"draft": True}, "a draft without a tree"),
        ({"prompts": [torch.tensor([1]), torch.zeros(0, dtype=torch.int64)]}, "decoding prompt 1: found a shape of"),
        ({"prompts": [torch.tensor([1]), torch.tensor([VOCAB])]}, rf"token id {VOCAB} \(sequence 1"),
        ({"max_new_tokens": 0}, "at least one new token"),
        ({"prompt_indices": [1]}, r"prompt indices \[1\]; expected 3 numbers"),
        ({"prompt_indices": [1, -1, 2], "sampling": WARM}, "none negative"),
        ({"draft": True, "tree": TREE, "sampling": WARM, "rule": AcceptanceRule("block")}, "a chain, topk 1"),
    ],
)
def test_what_cannot_be_answered_is_refused(pair, settings, message):
    """Catches a draft that is silently not used, and prompts that fail in the middle of a batch."""
    if "draft" in settings:
        settings = {**settings, "draft": pair.draft}
    with pytest.raises(e3.Eagle3RefError, match=message):
        pair.answers(**settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda draft: draft.to("meta"),
            "the draft on meta; expected it on cpu.*Load it there",
        ),
        (lambda draft: setattr(draft, "config", replace(draft.config, vocab_size=9)), "belongs to another target"),
        (lambda draft: setattr(draft, "capture_points", (2, 3, 9)), r"capture points \(2, 3, 9\)"),
    ],
)
def test_a_draft_that_does_not_fit_is_refused_before_the_prompts_run(pair, monkeypatch, change, message):
    """Catches a traceback, or states that nobody wrote, after a pass over 594 GB."""
    draft = copy.deepcopy(pair.draft)
    change(draft)
    monkeypatch.setattr(pair.target, "embed", None)
    with pytest.raises(e3.Eagle3RefError, match=message):
        pair.answers(draft=draft, tree=TREE)
    with pytest.raises(e3.Eagle3RefError, match=message):
        e3.decode(pair.target, draft, pair.prompts[0], TREE, max_new_tokens=NUM_NEW)


def test_a_draft_may_have_a_dtype_of_its_own(pair):
    """Catches states or rows that are mixed with those of the target without being converted."""
    draft = copy.deepcopy(pair.draft).float()
    assert pair.answers(draft=draft, tree=TREE) == pair.generated()
    drawn = {"tree": CHAIN, "sampling": WARM, "rule": AcceptanceRule("rejection", "sampled")}
    assert pair.answers(draft=draft, **drawn) == pair.answers(draft=pair.draft, **drawn)


def test_no_prompts_have_no_answers(pair):
    """Catches a maximum over nothing."""
    assert pair.answers(prompts=[]) == generate(pair.target, [], max_new_tokens=3) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": 0}, "at least one new token"),
        ({"prompt_indices": [0, 1]}, "one for each prompt"),
        ({"prompt_indices": [0, 1, -1]}, "none negative"),
    ],
)
def test_plain_generation_refuses_the_same(pair, settings, message):
    """Catches a traceback in the twin of a call that is refused."""
    with pytest.raises(e3.Eagle3RefError, match=message):
        generate(pair.target, pair.prompts, **{"max_new_tokens": 3, "sampling": WARM, **settings})


def test_memory_for_each_token_is_that_of_the_rows(pair):
    """Catches a plan that leaves the cache out, which for 100 prompts of 1,000 tokens of Kimi-K2.5 is 7 GB."""
    cache, architecture = pair.target.new_cache(len(pair.prompts)), pair.target.architecture
    prefill_states(pair.target, pair.prompts, cache)
    rows = len(pair.prompts) * max(map(len, pair.prompts))
    assert answering_bytes_per_token(architecture, torch.float64) == cache.num_bytes // rows * 9 // 8
    own = 20 * 8  # latent and roped key of the draft's layer
    aux = 3 * architecture.hidden_size * 8
    per_token = (cache.num_bytes // rows + own) * 9 // 8 + aux
    assert answering_bytes_per_token(architecture, torch.float64, pair.draft) == per_token
    attention = replace(architecture.attention, kv_lora_rank=512, qk_rope_head_dim=64)
    real = replace(architecture, num_layers=61, attention=attention)
    assert answering_bytes_per_token(real, torch.bfloat16) == 70_272 * 9 // 8
