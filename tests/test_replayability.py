"""Which rule a trace says something about, and which target may supply the probabilities."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
import torch
from tiny import CAPTURE_POINTS, VOCAB, draft_folder, target_folder

import eagle3ref as e3
from eagle3ref.config import AcceptanceRule, default_rule
from eagle3ref.replay import replayability
from eagle3ref.trace import RecordedSampling, TargetIdentity, TraceHeader

GREEDY, SAMPLED = 0.0, 0.8
TREE = e3.TreeConfig(3, 2, 6)
TOP = [AcceptanceRule(name) for name in ("target_only", "multi_round", "rejection", "block")]
DRAWN = [AcceptanceRule(name, "sampled") for name in ("rejection", "block")]
LOSSY = [AcceptanceRule("target_only", threshold_single=0.5), AcceptanceRule("target_only", threshold_acc=0.9)]


def header(temperature: float) -> TraceHeader:
    target = TargetIdentity("made-up", "", "test", 7, 32, VOCAB, "00" * 32)
    return TraceHeader(target, None, (2, 3, 4), "float32", RecordedSampling(temperature, 1.0, 0, 1), "test 1")


def verdict(rule: AcceptanceRule, temperature: float, states: bool, target: bool) -> tuple[str, bool]:
    found = replayability(rule, header(temperature), has_final_hidden_state=states, has_target=target)
    assert bool(found.action) == (found.kind == "impossible")
    assert found.reason
    return found.kind, found.expected


def test_the_table_of_the_documentation():
    """A rule replayed on a record that does not determine it, or one refused that it does."""
    for states, target in itertools.product((False, True), repeat=2):
        both = states and target
        assert verdict(AcceptanceRule("greedy"), GREEDY, states, target) == ("exact", both)
        assert verdict(AcceptanceRule("greedy"), SAMPLED, states, target) == ("impossible", False)
        for rule in TOP:
            assert verdict(rule, SAMPLED, states, target) == ("unbiased", both)
        for rule in DRAWN:
            assert verdict(rule, SAMPLED, states, target) == (("unbiased", True) if both else ("impossible", False))
        for rule in LOSSY:
            assert verdict(rule, SAMPLED, states, target) == ("impossible", False)
        for rule in TOP + DRAWN + LOSSY:
            assert verdict(rule, GREEDY, states, target) == ("impossible", False)


def test_without_a_rule_the_temperature_decides():
    """A sampled trace walked as if it were greedy under that name, or the other way round."""
    assert default_rule(GREEDY) == AcceptanceRule("greedy")
    assert default_rule(SAMPLED) == AcceptanceRule("target_only")
    assert default_rule(1e-9) == AcceptanceRule("greedy")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory):
    """A target folder, the target, its draft, and a sampled trace of it with final hidden states."""
    folder = tmp_path_factory.mktemp("replayability")
    target = e3.load_target(target_folder(folder / "target"), dtype=torch.float32)
    draft = e3.load_draft(draft_folder(folder / "draft"), capture_points=CAPTURE_POINTS, dtype=torch.float32)
    prompts = [torch.arange(3 + i) for i in range(4)]
    settings = {"capture_points": CAPTURE_POINTS, "max_new_tokens": 16, "sampling": e3.Sampling(0.8, seed=1)}
    traces = [
        e3.capture(target, prompts, folder / f"trace-{states}", final_hidden_state=states, **settings)
        for states in (True, False)
    ]
    return folder / "target", target, draft, *traces


def test_folder_and_loaded_target_give_the_same(recorded):
    """Another matrix taken for the head, or one in another dtype."""
    folder, target, draft, trace, _ = recorded
    loaded = e3.replay(trace, draft, TREE, target=target)
    read = e3.replay(trace, draft, TREE, target=folder)
    assert read.expected.accepted_at == pytest.approx(loaded.expected.accepted_at, rel=1e-5)
    assert loaded.expected.accepted_at.sum() > 0
    without = e3.replay(trace, draft, TREE)
    assert without.expected is None
    assert without.histogram.tolist() == loaded.histogram.tolist()


def test_impossible_says_what_to_record(recorded):
    """A refusal that leaves the reader without a next step."""
    folder, _, draft, trace, bare = recorded
    chain = e3.TreeConfig(3, 1, 4)
    sampled = AcceptanceRule("block", "sampled")
    with pytest.raises(e3.Eagle3RefError, match="pass the target"):
        e3.replay(trace, draft, chain, rule=sampled)
    with pytest.raises(e3.Eagle3RefError, match="--final-hidden-state"):
        e3.replay(bare, draft, chain, rule=sampled, target=folder)
    with pytest.raises(e3.Eagle3RefError, match=r"temperature 0\.8.*Capture again with temperature 0"):
        e3.replay(trace, draft, chain, rule=AcceptanceRule("greedy"))
    with pytest.raises(e3.Eagle3RefError, match="thresholds"):
        e3.replay(trace, draft, chain, rule=LOSSY[0])
    with pytest.raises(e3.Eagle3RefError, match="a chain"):
        e3.replay(trace, draft, TREE, rule=AcceptanceRule("rejection"))
    with pytest.raises(e3.Eagle3RefError, match="--final-hidden-state"):
        e3.replay(bare, draft, TREE, target=folder)


def test_another_target_is_refused(recorded, tmp_path):
    """Probabilities of a fine-tune, whose config.json is the same, or of another model altogether."""
    _, _, draft, trace, _ = recorded
    with pytest.raises(e3.Eagle3RefError, match="first choices that are the recorded ones at"):
        e3.replay(trace, draft, TREE, target=target_folder(tmp_path / "tuned", seed=5))
    other = target_folder(tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config, indent=7))
    with pytest.raises(e3.Eagle3RefError, match="Pass the target that the trace was recorded from"):
        e3.replay(trace, draft, TREE, target=other)


def test_folder_of_unknown_logits_is_refused(recorded, tmp_path):
    """A factor or cap between head and softmax that is silently left out."""
    _, _, draft, trace, _ = recorded
    folder = target_folder(tmp_path / "target")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gemma2"}))
    identity = replace(trace.header.target, config_sha256=e3.TargetConfig.from_folder(folder).config_sha256)
    its_trace = replace(trace, header=replace(trace.header, target=identity))
    with pytest.raises(e3.Eagle3RefError, match=r"'gemma2'.*load_target"):
        e3.replay(its_trace, draft, TREE, target=folder)
