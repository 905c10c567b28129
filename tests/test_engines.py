"""SGLang's figures and capture rules against numbers that servers printed and rules worked by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from eagle3ref.acceptance import AcceptanceCounts
from eagle3ref.config import TreeConfig
from eagle3ref.engines import SGLANG_0_5_23, SGLANG_LOG_ERAS, default_capture_points, sglang_capture_points
from eagle3ref.errors import Eagle3RefError

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sglang_engines.json").read_text())
OLD, MIDDLE, NEW = SGLANG_LOG_ERAS


def counts_with_length(length, tree, proposed_per_round):
    """100 rounds whose mean of c + 1 is ``length``, to two decimals: each accepts floor or ceil of the mean."""
    accepted = round(100 * length) - 100
    histogram = np.zeros((1, tree.num_steps + 1), np.int64)
    histogram[0, accepted // 100] = 100 - accepted % 100
    if accepted % 100:
        histogram[0, accepted // 100 + 1] = accepted % 100
    proposed, none = 100 * np.array([proposed_per_round]), np.zeros(1, np.int64)
    return AcceptanceCounts(tree, ("all",), histogram, proposed, none, none, none, "estimate")


def chain_counts(length):
    return counts_with_length(length, TreeConfig(num_steps=3, topk=1, num_draft_tokens=4), [1, 1, 1])


@pytest.mark.parametrize(
    ("pairs", "eras"),
    [("old_rate", (OLD, MIDDLE)), ("new_rate", (NEW,)), ("zero_rate", (NEW,))],
)
def test_printed_pairs_are_recognized(pairs, eras):
    """A rate with the bonus where there is none, or the reverse: of the eras only the right ones print this line."""
    for length, rate in GOLDEN[pairs]:
        line = f"accept len: {length:.2f}, accept rate: {rate:.2f}"
        assert tuple(era for era in SGLANG_LOG_ERAS if era.log_line(chain_counts(length)) == line) == eras


def test_rates_of_a_tree_divide_by_different_things():
    """num_steps + 1, num_draft_tokens and num_draft_tokens - 1 confused, which a chain cannot show apart."""
    counts = counts_with_length(2.5, TreeConfig(num_steps=3, topk=4, num_draft_tokens=16), [4, 6, 5])
    assert [era.accept_length(counts) for era in SGLANG_LOG_ERAS] == [2.5, 2.5, 2.5]
    assert [era.accept_rate(counts) for era in SGLANG_LOG_ERAS] == pytest.approx([2.5 / 4, 2.5 / 16, 1.5 / 15])
    assert MIDDLE.log_line(counts) == "accept len: 2.50, accept rate: 0.16"


def test_eras_are_in_time_order_and_end_with_the_release():
    """A look-up by date that picks the wrong era."""
    assert [era.since for era in SGLANG_LOG_ERAS] == ["2025-10-13", "2025-11-13", "2026-04-23"]
    assert NEW is SGLANG_0_5_23


@pytest.mark.parametrize("case", GOLDEN["capture_points"], ids=lambda case: f"{case['family']}-{case['ids']}")
def test_sglang_capture_points(case):
    """An id shifted by one layer: costs acceptance, raises nothing."""
    points = sglang_capture_points(case["ids"], case["num_layers"], case["family"])
    assert points == tuple(case["points"])


def test_capture_order_is_the_order_of_the_layers():
    """A concatenation in the order of the list: SGLang meets the layers in order, each once."""
    assert sglang_capture_points([58, 2, 30, 2], 61, "deepseek") == (2, 30, 58)


def test_deepseek_shift_looks_at_the_first_id_only():
    """The shift decided by the smallest id, or per id."""
    assert sglang_capture_points([30, 1, 57], 61, "deepseek") == (1, 30, 57)
    assert sglang_capture_points([1, 30, 58], 61, "deepseek") == (2, 31, 59)


@pytest.mark.parametrize(
    ("ids", "family", "told"),
    [
        ([-1, 2, 30], "deepseek", "-1"),
        ([2, 30, 61], "deepseek", "61"),
        ([2, 30, 60], "llama", "61"),
        ([], "llama", "empty"),
        ([2, 30, 58], "qwen", "qwen"),
    ],
)
def test_points_that_never_fire_are_refused(ids, family, told):
    """Ids that SGLang takes without a word and that capture nothing."""
    with pytest.raises(Eagle3RefError, match=told):
        sglang_capture_points(ids, 61, family)


def test_default_points_need_seven_layers():
    """Points that coincide or run backwards in a small target."""
    assert default_capture_points(7) == (2, 3, 4)
    assert default_capture_points(61) == (2, 30, 58)
    with pytest.raises(Eagle3RefError, match="6 layers"):
        default_capture_points(6)
