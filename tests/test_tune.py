"""The surface from one replay against one replay for each setting."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_replay import HEADER, POINTS, load, made_up_run, write_trace

import eagle3ref as e3
from eagle3ref.trace import RecordedSequence, TraceWriter
from eagle3ref.tune import Surface, tune
from eagle3ref.tune.tune import settings_within

TOPKS, STEPS, TOKENS = (1, 2, 3), 4, 14


@pytest.fixture(scope="module", params=["gqa", "mla"])
def tuned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A draft, a trace of made-up runs in which every accepted length occurs, and their surface."""
    folder = tmp_path_factory.mktemp(request.param)
    draft = load(folder, request.param)
    runs = [made_up_run(draft, seed, 14 + 6 * (seed % 3)) for seed in range(3)]
    trace = write_trace(folder / "trace", runs)
    return draft, trace, tune(trace, draft, topks=TOPKS, max_num_steps=STEPS, max_num_draft_tokens=TOKENS)


def assert_replayed(surface: Surface, trace: e3.Trace, draft: e3.Eagle3Draft, trees: list[e3.TreeConfig]) -> None:
    for tree in trees:
        found, expected = surface.counts(tree), e3.replay(trace, draft, tree)
        assert found.prompt_ids == expected.prompt_ids
        assert found.kind == expected.kind
        assert found.rule == expected.rule
        for name in ("histogram", "censored_rounds", "off_argmax_tokens", "recorded_tokens"):
            assert getattr(found, name).tolist() == getattr(expected, name).tolist(), (str(tree), name)
        if tree.topk == 1:
            assert found == expected


def test_every_cell_is_a_replay_of_its_own(tuned) -> None:
    """Would catch a rank among too many candidates, a round censored by the deepest num_steps, prompts that change
    places: 40 settings of 76, every chain among them; fewer of them for the second draft."""
    draft, trace, surface = tuned
    assert len(surface.settings) == 76
    every = 2 if draft.config.attention.kind == "gqa" else 9
    assert_replayed(surface, trace, draft, list(surface.settings[:4]) + list(surface.settings[4::every]))


def test_the_other_kv_mode(tmp_path: Path) -> None:
    """Would catch a surface that is always that of slot mode. One run of 24 is accepted otherwise, and this is it."""
    draft = load(tmp_path, "gqa")
    trace = write_trace(tmp_path / "trace", [made_up_run(draft, 17, 23)])
    asked = {"topks": [3], "max_num_steps": 4, "max_num_draft_tokens": 9}
    slot, ancestor = (tune(trace, draft, tree_kv=mode, **asked) for mode in ("slot", "ancestor"))
    assert not np.array_equal(slot.histogram, ancestor.histogram)
    assert_replayed(slot, trace, draft, list(slot.settings[-3:]))
    assert_replayed(ancestor, trace, draft, list(ancestor.settings[-3:]))


def test_text_that_is_not_the_targets_first_choice_is_an_estimate(tmp_path: Path) -> None:
    """Would catch off-argmax tokens that are lost on the way, and a surface that calls itself exact."""
    draft = load(tmp_path, "gqa")
    tokens, aux, prompt_length = made_up_run(draft, 1, 20)
    states = dict(zip(POINTS, aux.chunk(3, -1), strict=True))
    with TraceWriter.open(tmp_path / "trace", HEADER) as writer:
        for name, argmax in (("known", torch.zeros_like(tokens)), ("unknown", None)):
            writer.add(RecordedSequence(name, tokens, prompt_length, states, argmax=argmax))
    trace = e3.Trace.open(tmp_path / "trace")
    surface = tune(trace, draft, max_num_steps=3, max_num_draft_tokens=4)
    tree = e3.TreeConfig(3, 1, 4)
    assert surface.counts(tree) == e3.replay(trace, draft, tree)
    assert surface.kind == "estimate"
    assert surface.off_argmax_tokens[0] > 0


def test_a_sampled_trace_is_tuned_under_its_rule(tmp_path: Path) -> None:
    """Would catch a greedy surface of draws, or drafts that are drawn taken for first choices."""
    draft = load(tmp_path, "gqa")
    tokens, aux, prompt_length = made_up_run(draft, 1, 20)
    states = dict(zip(POINTS, aux.chunk(3, -1), strict=True))
    header = replace(HEADER, sampling=replace(HEADER.sampling, temperature=0.8))
    with TraceWriter.open(tmp_path / "trace", header) as writer:
        writer.add(RecordedSequence("drawn", tokens, prompt_length, states))
    trace = e3.Trace.open(tmp_path / "trace")
    surface = tune(trace, draft, topks=[1, 2], max_num_steps=3, max_num_draft_tokens=6)
    assert (surface.kind, surface.rule.name) == ("unbiased", "target_only")
    assert_replayed(surface, trace, draft, [e3.TreeConfig(3, 1, 4), e3.TreeConfig(3, 2, 6)])
    with pytest.raises(e3.Eagle3RefError):
        tune(trace, draft, max_num_steps=3, max_num_draft_tokens=4, rule=e3.AcceptanceRule("rejection", "sampled"))


def test_what_one_topk_refuses_is_refused_before_the_others_run(tmp_path: Path) -> None:
    """Would catch an hour of ranking the chain that is lost because the trees after it cannot be ranked."""
    draft = load(tmp_path, "gqa")
    header = replace(HEADER, sampling=replace(HEADER.sampling, temperature=0.8))
    tokens, aux, prompt_length = made_up_run(draft, 1, 20)
    states = dict(zip(POINTS, aux.chunk(3, -1), strict=True))
    with TraceWriter.open(tmp_path / "trace", header) as writer:
        writer.add(RecordedSequence("drawn", tokens, prompt_length, states))
    trace, ranked = e3.Trace.open(tmp_path / "trace"), []
    rejection = e3.AcceptanceRule("rejection")
    for topks, rule, found in (((1, 2), rejection, "topk 2"), ((1, 97), None, "topk 97")):
        with pytest.raises(e3.Eagle3RefError, match=found):
            tune(
                trace,
                draft,
                topks=topks,
                max_num_steps=2,
                max_num_draft_tokens=4,
                rule=rule,
                on_sequence=ranked.append,
            )
    assert ranked == []


@pytest.mark.slow
def test_the_nano_pair_has_the_surface_of_its_replays(tmp_path: Path) -> None:
    """Would catch ranks that are right on random weights and wrong among a trained draft's near-certain tokens."""
    target = e3.load_target(e3.nano.target_path(), dtype=torch.float32)
    draft = e3.load_draft(e3.nano.draft_path(), target=target, dtype=torch.float32)
    prompts, _ = e3.read_prompts(e3.nano.prompts_path(), None)
    trace = e3.capture(target, prompts[:4], tmp_path, capture_points=draft.capture_points, max_new_tokens=24)
    surface = tune(trace, draft, topks=(1, 4, 8), max_num_steps=6, max_num_draft_tokens=32)
    trees = [tree for tree in surface.settings if tree.topk == 1 or tree.num_draft_tokens in (2, 8, 15, 32)]
    assert len(trees) == 48
    assert_replayed(surface, trace, draft, trees)


def test_lengths_and_terms_are_those_of_the_counts(tuned) -> None:
    """Would catch sums over the wrong axis, or a bonus token that is not counted."""
    _, _, surface = tuned
    for k in (0, 3, 40, 75):
        counts = surface.counts(surface.settings[k])
        assert surface.acceptance_lengths[k] == pytest.approx(counts.acceptance_length)
        assert surface.rounds[:, k].tolist() == counts.rounds.tolist()
        assert surface.tokens[:, k].tolist() == (counts.rounds + counts.accepted_drafts).tolist()
    first, second = surface.settings[75], surface.settings[0]
    difference = surface.difference(first, second)
    assert difference.estimate == pytest.approx(surface.acceptance_lengths[75] - surface.acceptance_lengths[0])
    assert difference.degrees_of_freedom == len(surface.prompt_ids) - 1


def test_some_of_the_prompts(tuned) -> None:
    """Would catch integers that stay with the prompts that were left out."""
    draft, trace, surface = tuned
    tree = surface.settings[-1]
    part, whole = surface.restricted(np.array([2, 0])), e3.replay(trace, draft, tree)
    assert part.prompt_ids == ("run-2", "run-0")
    assert part.counts(tree).histogram.tolist() == whole.histogram[[2, 0]].tolist()
    assert part.counts(tree).recorded_tokens.tolist() == whole.recorded_tokens[[2, 0]].tolist()
    assert [len(run) for run in part.chain_runs] == [len(surface.chain_runs[2]), len(surface.chain_runs[0])]


def test_the_document_has_the_integers_of_every_setting(tuned) -> None:
    """Would catch a setting that is missing in JSON, or a nan that no parser takes."""
    _, _, surface = tuned
    document = json.loads(json.dumps(surface.to_dict(), allow_nan=False))
    assert [tuple(one[name] for name in ("num_steps", "topk", "num_draft_tokens")) for one in document["settings"]] == [
        (tree.num_steps, tree.topk, tree.num_draft_tokens) for tree in surface.settings
    ]
    last = document["settings"][-1]
    assert last["histogram"] == surface.counts(surface.settings[-1]).histogram.sum(0).tolist()


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"topks": ()}, "topk of no value"),
        ({"topks": (2, 2)}, "topk 2, 2"),
        ({"topks": (0,)}, "3/0/"),
        ({"max_num_steps": 0}, "0/2/"),
        ({"max_num_draft_tokens": 1}, "3/2/1"),
        ({"topks": (1,), "max_num_draft_tokens": 1}, "0/1/1"),
        ({"topks": (97,)}, "topk 97"),
        ({"max_num_steps": 65}, "65 steps"),
        ({"topks": (1,), "max_num_steps": 10**9, "max_num_draft_tokens": 10**12}, "1,000,000,000 steps"),
        (
            {"topks": (1, 30), "max_num_steps": 20, "max_num_draft_tokens": 1000},
            "18,962 settings",
        ),  # 20, and 30 + 930 + 18 x 999
    ],
)
def test_what_cannot_be_tuned_is_refused(tuned, arguments: dict[str, object], found: str) -> None:
    """Would catch a traceback, or an empty surface."""
    draft, trace, _ = tuned
    asked = {"topks": (2,), "max_num_steps": 3, "max_num_draft_tokens": 6, **arguments}
    with pytest.raises(e3.Eagle3RefError) as refused:
        tune(trace, draft, **asked)
    assert found in str(refused.value)


def test_a_setting_that_was_not_tuned_is_named(tuned) -> None:
    """Would catch the counts of another setting in its place."""
    _, _, surface = tuned
    with pytest.raises(e3.Eagle3RefError, match="4/3/15"):
        surface.counts(e3.TreeConfig(4, 3, 15))
    assert len(settings_within(e3.TreeConfig(4, 3, 14))) == 41
