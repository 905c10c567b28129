"""AcceptanceCounts against a list of rounds walked one by one."""

import json
import math
from dataclasses import asdict
from itertools import chain

import numpy as np
import pytest

from eagle3ref.acceptance import KIND_MEANING, AcceptanceCounts, ExpectedAcceptance
from eagle3ref.config import AcceptanceRule, TreeConfig
from eagle3ref.errors import Eagle3RefError
from eagle3ref.statistics import bootstrap_interval, ratio_interval

CHAIN = TreeConfig(num_steps=3, topk=1, num_draft_tokens=4)
TREE = TreeConfig(num_steps=3, topk=2, num_draft_tokens=7)
ROUNDS = {"easy": [3, 3, 2, 3, 1, 3], "hard": [0, 1, 0, 0], "mixed": [2, 0, 3, 1, 1]}  # accepted drafts c, by round


def counts_of(rounds, tree=CHAIN, offered=(1, 1, 1), kind="exact", censored=0):
    """Counts of rounds given as {prompt: [c, ...]}; ``offered`` draft tokens at each depth of every round."""
    return AcceptanceCounts(
        tree=tree,
        prompt_ids=tuple(rounds),
        histogram=np.array([[cs.count(c) for c in range(tree.num_steps + 1)] for cs in rounds.values()]),
        proposed_at=np.array([[len(cs) * tokens for tokens in offered] for cs in rounds.values()]),
        censored_rounds=np.full(len(rounds), censored),
        off_argmax_tokens=np.zeros(len(rounds), np.int64),
        recorded_tokens=np.array([sum(cs) + len(cs) for cs in rounds.values()]),
        kind=kind,
    )


def fields_of(counts):
    return {name: getattr(counts, name) for name in counts.__dataclass_fields__}


@pytest.mark.parametrize(("tree", "offered"), [(CHAIN, (1, 1, 1)), (TREE, (2, 3, 1))])
def test_ratios_against_the_list_of_rounds(tree, offered):
    """A bonus left out or counted twice, num_steps in place of num_draft_tokens - 1, a depth off by one."""
    counts, rounds = counts_of(ROUNDS, tree, offered), list(chain(*ROUNDS.values()))
    assert counts.acceptance_length == pytest.approx(np.mean([c + 1 for c in rounds]))
    assert counts.node_acceptance_rate == pytest.approx(sum(rounds) / (len(rounds) * sum(offered)))
    for depth in (1, 2, 3):
        alive = [c for c in rounds if c >= depth - 1]
        hits = sum(c >= depth for c in rounds)
        assert counts.acceptance_rate_at[depth - 1] == pytest.approx(hits / len(rounds))
        assert counts.conditional_acceptance_rate_at[depth - 1] == pytest.approx(hits / len(alive))


def test_integers_by_prompt():
    """Prompts mixed up, or a cumulative sum from the wrong end."""
    counts = counts_of(ROUNDS)
    assert counts.rounds.tolist() == [6, 4, 5]
    assert counts.accepted_drafts.tolist() == [15, 1, 7]
    assert counts.accepted_at.tolist() == [[6, 5, 4], [1, 0, 0], [4, 2, 1]]
    assert counts.total_rounds == 15


def test_pooled_length_is_not_the_mean_of_lengths():
    """The unweighted mean over prompts, which another tool reports under the same name."""
    counts = counts_of({"long": [3] * 9, "short": [0]})
    assert counts.acceptance_length == pytest.approx(3.7)
    assert counts.per_prompt("acceptance_length").tolist() == [4.0, 1.0]


def test_extremes():
    """A perfect draft that does not reach num_steps + 1, or a useless one that does not give exactly 1."""
    assert counts_of({"a": [3, 3]}).acceptance_length == 4.0
    useless = counts_of({"a": [0, 0]})
    assert useless.acceptance_length == 1.0
    assert useless.conditional_acceptance_rate_at[0] == 0.0
    assert np.isnan(useless.conditional_acceptance_rate_at[1:]).all()


def test_censored_rounds_are_in_no_ratio():
    """Rounds cut by the end of the recording counted as rejections."""
    plain, censored = counts_of(ROUNDS), counts_of(ROUNDS, censored=5)
    assert plain.to_dict()["ratios"] == censored.to_dict()["ratios"]
    assert plain != censored


def test_no_complete_round_is_an_error_not_a_nan():
    """A report of nan, or of 1.0, for a run too short to tell; one short prompt among others is a nan of its own."""
    empty = counts_of({"a": [], "b": []}, censored=2)
    for ask in (
        lambda: empty.acceptance_length,
        lambda: empty.node_acceptance_rate,
        lambda: empty.acceptance_rate_at,
        lambda: empty.conditional_acceptance_rate_at,
        lambda: empty.per_prompt("acceptance_length"),
        lambda: empty.interval("acceptance_length"),
    ):
        with pytest.raises(Eagle3RefError, match="no complete round and 4 censored"):
            ask()
    by_prompt = counts_of({"a": [], "b": [1]}).per_prompt("acceptance_length")
    assert math.isnan(by_prompt[0])
    assert by_prompt[1] == 2.0


@pytest.mark.parametrize(
    ("name", "depth", "numerators", "denominators"),
    [
        ("acceptance_length", None, [21, 5, 12], [6, 4, 5]),
        ("node_acceptance_rate", None, [15, 1, 7], [18, 12, 15]),
        ("acceptance_rate_at", 2, [5, 0, 2], [6, 4, 5]),
        ("conditional_acceptance_rate_at", 1, [6, 1, 4], [6, 4, 5]),
        ("conditional_acceptance_rate_at", 3, [4, 0, 1], [5, 0, 2]),
    ],
)
def test_intervals_are_of_the_named_terms(name, depth, numerators, denominators):
    """An interval around another ratio than the one asked for, or clustered by round."""
    counts = counts_of(ROUNDS)
    assert counts.interval(name, depth=depth) == ratio_interval(numerators, denominators)
    bootstrap = counts.interval(name, 0.8, "bootstrap", depth=depth)
    assert bootstrap == bootstrap_interval(numerators, denominators, 0.8, seed=0)


@pytest.mark.parametrize(
    ("name", "depth"),
    [("accept_rate", None), ("acceptance_length", 1), ("acceptance_rate_at", None), ("acceptance_rate_at", 0),
     ("acceptance_rate_at", 4), ("conditional_acceptance_rate_at", -1)],
)  # fmt: skip
def test_unnamed_ratios_are_refused(name, depth):
    """A negative index that answers for the last depth, or a depth that is ignored."""
    with pytest.raises(Eagle3RefError):
        counts_of(ROUNDS).ratio(name, depth)


def test_addition_equals_counting_together():
    """Prompts doubled, dropped or misaligned when shards are merged; a prompt split over two shards."""
    left = {"easy": [3, 3, 2], "hard": [0, 1, 0, 0]}
    right = {"mixed": [2, 0, 3, 1, 1], "easy": [3, 1, 3]}
    assert counts_of(left) + counts_of(right) == counts_of(ROUNDS)
    assert (counts_of(right) + counts_of(left)).to_dict()["ratios"] == counts_of(ROUNDS).to_dict()["ratios"]


def test_addition_of_unlike_counts_is_refused():
    """Rates pooled over two trees or two kinds: the acceptance of neither."""
    slot = counts_of(ROUNDS, TREE, (2, 3, 1))
    ancestor = counts_of(ROUNDS, TreeConfig(3, 2, 7, "ancestor"), (2, 3, 1))
    with pytest.raises(Eagle3RefError, match="one tree"):
        slot + ancestor
    with pytest.raises(Eagle3RefError, match="one kind"):
        counts_of(ROUNDS) + counts_of(ROUNDS, kind="unbiased")


def test_counts_are_an_owned_read_only_copy():
    """The caller's buffer reused after the counts were validated."""
    for dtype in (np.int64, np.int32):
        buffer = counts_of(ROUNDS).histogram.astype(dtype)
        counts = AcceptanceCounts(**(fields_of(counts_of(ROUNDS)) | {"histogram": buffer}))
        buffer[:] = 0
        assert counts == counts_of(ROUNDS)
    assert counts.histogram.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        counts.histogram[0, 0] = 1


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("prompt_ids", ("easy", "hard", "hard"), "all different"),
        ("prompt_ids", ("easy", "hard", 3), "strings"),
        ("prompt_ids", (), "at least one"),
        ("prompt_ids", ("easy", "hard"), "histogram"),
        ("histogram", np.zeros((3, 3), np.int64), "histogram"),
        ("histogram", np.zeros((3, 4)), "float64"),
        ("censored_rounds", np.array([0, -1, 0]), "-1"),
        ("censored_rounds", np.array([True, False, True]), "bool"),
        ("proposed_at", np.array([[6, 6, 6], [4, 4, 4], [2, 8, 5]]), "more rounds accepted"),
        ("proposed_at", np.array([[6, 6, 6], [4, 4, 4], [5, 5, 6]]), "3 in each round"),
        ("off_argmax_tokens", np.array([0, 6, 0]), "off_argmax_tokens"),
        ("kind", "rough", "rough"),
    ],
)
def test_contradictions_are_refused(field, value, told):
    """Counts that no run can give, accepted and turned into a plausible rate."""
    with pytest.raises(Eagle3RefError, match=told):
        AcceptanceCounts(**(fields_of(counts_of(ROUNDS)) | {field: value}))


@pytest.mark.parametrize("rounds", [ROUNDS, {"a": []}, {"a": [0]}])
@pytest.mark.parametrize("kind", KIND_MEANING)
def test_json_round_trip(rounds, kind):
    """An integer lost or a nan written on the way through strict JSON."""
    counts = counts_of(rounds, TREE, (2, 3, 1), kind)
    text = json.dumps(counts.to_dict(), allow_nan=False)
    again = AcceptanceCounts.from_dict(json.loads(text))
    assert again == counts
    assert json.dumps(again.to_dict()) == text


def test_written_ratios_state_both_sums():
    """A bare rate whose definition the reader has to guess."""
    ratios = {ratio["name"]: ratio for ratio in counts_of(ROUNDS).to_dict()["ratios"]}
    assert list(ratios)[2:] == [f"{kind}acceptance_rate_at[{d}]" for kind in ("", "conditional_") for d in (1, 2, 3)]
    assert ratios["acceptance_length"] == {
        "name": "acceptance_length",
        "value": 38 / 15,
        "numerator": "accepted_drafts + rounds",
        "numerator_sum": 38,
        "denominator": "rounds",
        "denominator_sum": 15,
    }


@pytest.mark.parametrize(
    "edit",
    [
        {"histogram": [[1, 2], [3]]},
        {"histogram": None},
        {"censored_rounds": [0.0, 0.0, 0.0]},
        {"censored_rounds": [2**63, 0, 0]},
        {"recorded_tokens": [10**30, 9, 9]},
        {"prompt_ids": "abc"},
        {"prompt_ids": None},
        {"kind": ["exact"]},
        {"tree": {"num_steps": 3, "topk": 1}},
        {"tree": {"num_steps": "3", "topk": 1, "num_draft_tokens": 4, "tree_kv": "slot"}},
        {"tree": None},
        {"ratios": []},
        {"expected": []},
        {"expected": 0},
        {"rule": {**asdict(AcceptanceRule()), "threshold_acc": "1"}},
        {"rule": {**asdict(AcceptanceRule()), "name": ["greedy"]}},
        {"rule": {**asdict(AcceptanceRule("target_only")), "inclusive": "no"}},
        {"version": 2},
    ],
)
def test_foreign_json_is_refused(edit):
    """A file of another version, or edited by hand, read as if it were whole."""
    with pytest.raises(Eagle3RefError):
        AcceptanceCounts.from_dict(counts_of(ROUNDS).to_dict() | edit)


def test_every_key_is_required():
    """A missing key replaced by a default."""
    whole = counts_of(ROUNDS).to_dict()
    for missing in whole:
        with pytest.raises(Eagle3RefError, match="keys"):
            AcceptanceCounts.from_dict({key: value for key, value in whole.items() if key != missing})


def test_integers_changed_under_their_ratios_are_refused():
    """Integers edited in a report whose ratios still look right."""
    edited = counts_of(ROUNDS).to_dict()
    edited["histogram"][0] = [0, 1, 0, 5]
    with pytest.raises(Eagle3RefError, match="ratios"):
        AcceptanceCounts.from_dict(edited)


def expected_of(**changes):
    """Two prompts at 3/1/4: 5 + 2 rounds, of which a few got deeper."""
    fields = {
        "tree": CHAIN,
        "prompt_ids": ("a", "b"),
        "rounds": np.array([5, 2]),
        "reached_at": np.array([[5, 3, 1], [2, 0, 0]]),
        "observed_at": np.array([[4, 1, 0], [0, 0, 0]]),
        "accepted_at": np.array([[3.5, 1.25, 0.5], [0.75, 0.0, 0.0]]),
    }
    return ExpectedAcceptance(**(fields | changes))


def test_expected_ratios_by_hand():
    """A joint rate over the rounds that got there, a conditional one over all, or outcomes for probabilities."""
    expected = expected_of()
    assert expected.acceptance_length == pytest.approx(1 + 6 / 7)
    assert expected.node_acceptance_rate == pytest.approx(6 / 21)
    assert expected.acceptance_rate_at == pytest.approx([4.25 / 7, 1.25 / 7, 0.5 / 7])
    assert expected.conditional_acceptance_rate_at == pytest.approx([4.25 / 7, 1.25 / 3, 0.5])
    assert expected.surplus.value == pytest.approx((5 - 6) / 7)
    assert expected.interval("acceptance_length") == ratio_interval([10.25, 2.75], [5, 2])


def test_expected_sums_add_and_are_written_with_the_counts():
    """Expectations dropped or doubled when shards are merged, or lost in a file."""
    both = expected_of() + expected_of(prompt_ids=("b", "c"))
    assert both.prompt_ids == ("a", "b", "c")
    assert both.rounds.tolist() == [5, 7, 2]
    assert both.accepted_at.tolist() == [[3.5, 1.25, 0.5], [4.25, 1.25, 0.5], [0.75, 0.0, 0.0]]
    rule = AcceptanceRule("block", "sampled")
    plain = counts_of({"a": [3, 0], "b": []}, kind="unbiased")
    counts = AcceptanceCounts(**(fields_of(plain) | {"rule": rule, "expected": expected_of()}))
    again = AcceptanceCounts.from_dict(json.loads(json.dumps(counts.to_dict(), allow_nan=False)))
    assert again == counts
    assert again.rule == rule
    assert again != plain
    assert (counts + counts).expected.accepted_at.tolist() == (2 * expected_of().accepted_at).tolist()
    for other in (plain, AcceptanceCounts(**(fields_of(counts) | {"rule": AcceptanceRule("rejection", "sampled")}))):
        with pytest.raises(Eagle3RefError, match="one rule"):
            counts + other


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("reached_at", np.array([[6, 3, 1], [2, 0, 0]]), "at the one before"),
        ("reached_at", np.array([[5, 3, 2], [2, 0, 0]]), "at the one before"),
        ("observed_at", np.array([[4, 1, 0], [3, 0, 0]]), "at the one before"),
        ("accepted_at", np.array([[5.5, 1.25, 0.5], [0.75, 0.0, 0.0]]), "above 1"),
        ("accepted_at", np.array([[3.5, 1.25, np.nan], [0.75, 0.0, 0.0]]), "accepted_at"),
        ("rounds", np.array([5.0, 2.0]), "integers"),
    ],
)
def test_contradicting_expectations_are_refused(field, value, told):
    """Probabilities that no rounds can have, turned into a plausible length."""
    with pytest.raises(Eagle3RefError, match=told):
        expected_of(**{field: value})


def test_expectations_of_other_prompts_are_refused():
    """An expectation of another run beside the counts of this one."""
    with pytest.raises(Eagle3RefError, match="other prompts"):
        AcceptanceCounts(**(fields_of(counts_of(ROUNDS)) | {"expected": expected_of()}))
