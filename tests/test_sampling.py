"""Probabilities and tokens against plain Python, with ties, zeros and the borders of the CDF."""

from __future__ import annotations

import json
import random
from pathlib import Path

import oracles
import pytest
import torch

from eagle3ref.errors import Eagle3RefError
from eagle3ref.sampling import argmax_first, sample, target_probs, topk_stable

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sglang_tree.json").read_text())["topk_topp_order"]
NAN, INF = float("nan"), float("inf")


def test_argmax_takes_the_first_of_equal_maxima():
    """Bug: a tie goes to whichever lane of a vectorised reduction wins."""
    random.seed(0)
    for size in (1, 2, 7, 64, 1000, 40000):
        scores = [float(random.randrange(3)) for _ in range(size)]
        assert argmax_first(torch.tensor(scores)).item() == scores.index(max(scores))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_topk_is_a_stable_descending_sort(dtype):
    """Bug: equal scores come out in torch.topk's arbitrary order, or the wrong ones of them are kept."""
    random.seed(1)
    for size in (1, 2, 3, 17, 256, 3000):
        rows = [[random.randrange(levels) - 2 for _ in range(size)] for levels in (1, 2, 5, 50)]
        for k in {1, min(4, size), size // 2 or 1, size}:
            values, indices = topk_stable(torch.tensor(rows, dtype=dtype), k)
            assert indices.tolist() == [oracles.best(row, k) for row in rows]
            assert values.tolist() == [[row[index] for index in oracles.best(row, k)] for row in rows]


def test_topk_of_a_vocabulary_of_minus_infinities_and_zeros():
    """Bug: forbidden tokens (-inf), or -0.0 beside 0.0, break the comparison with the threshold."""
    scores = torch.full((2, 3, 163840), -INF)
    scores[..., 70] = 0.0
    scores[..., 30] = -0.0
    assert topk_stable(scores, 4)[1].tolist() == [[[30, 70, 0, 1]] * 3] * 2


@pytest.mark.parametrize("k", [0, -1, 4])
def test_topk_out_of_range_names_the_range(k):
    """Bug: torch's own index error, without the number of scores."""
    with pytest.raises(Eagle3RefError, match=f"k = {k}.*1 <= k <= 3"):
        topk_stable(torch.zeros(2, 3), k)


def test_nan_is_refused_wherever_it_stands():
    """Bug: NaN ranks as the best score, and a broken layer looks like a confident one."""
    for position in range(5):
        scores = torch.arange(10.0).reshape(2, 5)
        scores[1, position] = NAN
        for call in (
            lambda scores=scores: topk_stable(scores, 2),
            lambda scores=scores: argmax_first(scores),
            lambda scores=scores: target_probs(scores, temperature=0.0),
            lambda scores=scores: target_probs(scores, temperature=1.0),
        ):
            with pytest.raises(Eagle3RefError, match="found NaN"):
                call()


def test_temperature_zero_is_one_hot_of_the_first_maximum():
    """Bug: greedy divides by zero, or splits the mass between equal logits."""
    logits = torch.tensor([[1.0, 3.0, 3.0, -INF], [5.0, 5.0, 5.0, 5.0]], dtype=torch.bfloat16)
    for temperature in (0.0, 1e-7):
        probs = target_probs(logits, temperature=temperature)
        assert probs.dtype == torch.float32
        assert probs.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


def test_target_probs_equal_the_exact_ones():
    """Bug: filters in the wrong order, thresholds that lose ties, temperature applied after the filter."""
    random.seed(2)
    for _ in range(200):
        logits = [float(random.randrange(-6, 6)) / 2 for _ in range(random.randrange(1, 12))]
        temperature, top_k = random.choice([0.3, 1.0, 2.5]), random.choice([0, 1, 2, 4, 50])
        top_p = random.choice([1.0, 0.9, 0.617, 0.1, 1e-6])
        probs = target_probs(
            torch.tensor([logits] * 2, dtype=torch.float64), temperature=temperature, top_k=top_k, top_p=top_p
        )
        expected = oracles.top_k_then_top_p(_merged(oracles.softmax(logits, temperature)), top_k, top_p)
        assert probs.dtype == torch.float64
        assert probs.tolist() == [pytest.approx(expected, rel=1e-10, abs=0)] * 2


def _merged(probs: list[float]) -> list[float]:
    """Equal logits must count as equal whatever the last bit of exp says."""
    return [float(f"{p:.12e}") for p in probs]


def test_top_p_is_applied_to_what_top_k_left():
    """Bug: the joint filter of later SGLang versions, which keeps a fourth token here; 0.5.23 keeps three."""
    logits = torch.tensor(GOLDEN["probs"], dtype=torch.float64).log()
    after_top_k = target_probs(logits, temperature=1.0, top_k=GOLDEN["top_k"])
    both = target_probs(logits, temperature=1.0, top_k=GOLDEN["top_k"], top_p=GOLDEN["top_p"])
    assert after_top_k[after_top_k > 0].tolist() == pytest.approx(GOLDEN["derived"]["after_top_k"])
    assert both.nonzero()[:, 0].tolist() == GOLDEN["derived"]["support_after_top_p"]
    assert both[both > 0].tolist() == pytest.approx(GOLDEN["derived"]["probs"])
    assert len(both[both > 0]) < len(GOLDEN["later_joint"])


def test_top_p_that_the_first_token_just_reaches_keeps_only_it():
    """Bug: fp32 0.7 compared with fp64 0.7 falls short by 1e-8 and lets a second token in."""
    logits = torch.tensor([0.7, 0.2, 0.1]).log()
    first = target_probs(logits, temperature=1.0)[0].item()
    assert target_probs(logits, temperature=1.0, top_p=first + 1e-10).tolist() == [1.0, 0.0, 0.0]


def test_top_p_that_rounding_never_reaches_keeps_all():
    """Bug: fp32 probabilities that sum to just under top_p run past the end of the vocabulary."""
    probs = target_probs(torch.zeros(3, 41), temperature=1.0, top_p=1 - 1e-9)
    assert probs.count_nonzero() == 3 * 41


def test_filters_keep_what_ties_with_the_last_one_kept():
    """Bug: which of two equal tokens survives depends on the sort."""
    logits = torch.tensor([1.0, 1.0, 0.0])
    assert target_probs(logits, temperature=1.0, top_k=1).tolist() == [0.5, 0.5, 0.0]
    assert target_probs(logits, temperature=1.0, top_p=0.3).tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize(
    "setting", [{"temperature": -1.0}, {"temperature": NAN}, {"temperature": INF}, {"top_k": -1}, {"top_p": 0.0}]
)
def test_settings_out_of_range_are_refused(setting):
    """Bug: a negative temperature inverts the ranking without a word."""
    with pytest.raises(Eagle3RefError, match="reading the sampling settings"):
        target_probs(torch.zeros(3), **({"temperature": 1.0} | setting))


def test_sample_equals_the_exact_inverse_cdf():
    """Bug: `>=` instead of `>` at a border of the CDF, a zero-mass token drawn, the total assumed to be 1."""
    random.seed(3)
    for _ in range(100):
        size = random.randrange(1, 9)
        rows = [[random.randrange(4) / 8 for _ in range(size)] for _ in range(4)]
        rows = [row if any(row) else [*row[1:], 0.5] for row in rows]
        # Dyadic masses, and uniforms that hit every border exactly when the total is a power of two.
        uniforms = [random.choice([0.0, 0.125, 0.25, 0.5, 0.75, 1.0, random.random()]) for _ in rows]
        tokens = sample(torch.tensor(rows), torch.tensor(uniforms, dtype=torch.float64))
        assert tokens.dtype == torch.int64
        assert tokens.tolist() == [oracles.inverse_cdf(row, u) for row, u in zip(rows, uniforms, strict=True)]


def test_sample_at_the_ends_of_the_unit_interval():
    """Bug: u = 0 draws a leading zero-mass token, u = 1 a trailing one or index V."""
    probs = torch.tensor([0.0, 0.0, 0.25, 0.0, 0.75, 0.0]).expand(2, 2, 6)
    assert sample(probs, torch.tensor([[0.0, 1.0], [0.25, 0.2499999]])).tolist() == [[2, 4], [4, 2]]


def test_sample_reaches_tiny_masses_behind_a_large_one():
    """Bug: fp32 sums stand still at 1.0, and the tail of a large vocabulary is never drawn."""
    probs = [1.0] + [2.0**-30] * 1000
    uniforms = [1 - 2.0**-21, 1 - 2.0**-22, 1 - 2.0**-25]
    tokens = sample(torch.tensor([probs] * 3), torch.tensor(uniforms, dtype=torch.float64))
    assert tokens.tolist() == [oracles.inverse_cdf(probs, u) for u in uniforms]
    assert 1 < tokens.min() < tokens.max() < 1000


def test_sample_frequencies_over_a_grid_of_uniforms():
    """Bug: a bias that single borders do not show; a grid of u must give back the probabilities."""
    probs = target_probs(torch.randn(1000, generator=torch.Generator().manual_seed(4)), temperature=1.0)
    grid = (torch.arange(20000) + 0.5) / 20000
    counts = sample(probs.expand(20000, -1), grid).bincount(minlength=1000)
    assert (counts / 20000 - probs).abs().max() <= 1 / 20000 + 1e-7


@pytest.mark.parametrize(
    ("probs", "uniforms"),
    [
        ([[0.0, 0.0]], [0.5]),
        ([[-0.5, 1.5]], [0.5]),
        ([[NAN, 1.0]], [0.5]),
        ([[0.5, 0.5]], [1.5]),
        ([[0.5, 0.5]], [NAN]),
        ([[0.5, 0.5]], [0.5, 0.5]),
    ],
)
def test_sample_refuses_what_is_not_a_distribution_or_a_uniform(probs, uniforms):
    """Bug: a row without mass (residual of equal distributions) quietly yields token V - 1."""
    with pytest.raises(Eagle3RefError, match="sampling from probabilities"):
        sample(torch.tensor(probs), torch.tensor(uniforms))
