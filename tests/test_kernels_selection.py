"""Softmax and selection in one, against ``topk_stable`` of the softmax and against fp64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ref.errors import Eagle3RefError
from eagle3ref.kernels import eager_selection, get_ops, selection
from eagle3ref.sampling import topk_stable

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TWINS = {"torch": eager_selection.topk_probs, "triton": selection.topk_probs}
each_twin = pytest.mark.parametrize("twin", list(TWINS))


def stable(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    return topk_stable(logits.float().softmax(-1), k)


@each_twin
@settings(deadline=None, max_examples=15)
@given(st.data())
def test_equals_go_to_the_lower_index(twin, data):
    """Bug: among equal logits the wrong one, or the same one twice, also across stretches and at the end of a row."""
    size = data.draw(st.integers(1, 40))
    row = data.draw(st.lists(st.sampled_from([-60.0, -1.0, 0.0, 2.0, 2.5]), min_size=size, max_size=size))
    k = data.draw(st.integers(1, min(size, 9)))
    logits = torch.tensor([row, row[::-1]], device=DEVICE)
    probs, chosen = TWINS[twin](logits, k)
    wanted, indices = stable(logits, k)
    assert torch.equal(chosen, indices)
    torch.testing.assert_close(probs, wanted, rtol=1e-6, atol=1e-44)


@each_twin
@pytest.mark.parametrize(("shape", "k", "scale"), [((2, 3, 5000), 4, 8.0), ((2, 9001), 8, 30.0)])
def test_many_columns_equal_the_stable_best_of_the_softmax(twin, shape, k, scale):
    """Bug: a stretch left out or read twice, sums of stretches with different largest logits, or a shape lost."""
    logits = torch.randn(shape, device=DEVICE) * scale
    logits[..., -1] = logits.amax(-1)  # the last column ties with the best
    probs, chosen = TWINS[twin](logits, k)
    assert torch.equal(chosen, stable(logits, k)[1])
    exact = logits.double().softmax(-1).gather(-1, chosen)
    off, eager = ((part / exact - 1).abs().max() for part in (probs, stable(logits, k)[0]))
    assert off <= 2 * max(eager, torch.finfo(torch.float32).eps)


@each_twin
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_logits_have_fp32_probabilities(twin, dtype):
    """Bug: a softmax in the dtype of the logits, or strided rows read as if they lay side by side."""
    logits = (torch.randn(3, 2 * 300, device=DEVICE) * 4).to(dtype)[:, ::2]
    probs, chosen = TWINS[twin](logits, 5)
    assert probs.dtype == torch.float32
    wanted, indices = stable(logits, 5)
    assert torch.equal(chosen, indices)
    torch.testing.assert_close(probs, wanted, rtol=1e-6, atol=0)


@each_twin
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, inside of the interpreter
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_with_a_nan_has_nan_probabilities_at_indices_within_range(twin, bad):
    """Bug: an index that reads out of bounds on a device, a NaN that another row catches, or one that looks fine."""
    logits = torch.randn(2, 5000, device=DEVICE)
    logits[1, 4500] = bad
    probs, chosen = TWINS[twin](logits, 3)
    assert probs[1].isnan().all()
    assert probs[0].isfinite().all()
    assert ((chosen >= 0) & (chosen < 5000)).all()


@each_twin
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, inside of the interpreter
def test_masked_tokens_have_no_probability(twin):
    """Bug: a stretch of columns that are all -inf makes the row NaN; only a row that is all -inf has no softmax."""
    logits = torch.randn(3, 9000, device=DEVICE) - 200
    logits[0, 4096:8192] = -torch.inf
    logits[1] = -torch.inf
    logits[1, 8500] = -300.0
    logits[2] = -torch.inf
    probs, chosen = TWINS[twin](logits, 2)
    wanted, indices = stable(logits[:2], 2)
    assert torch.equal(chosen[:2], indices)
    torch.testing.assert_close(probs[:2], wanted, rtol=1e-6, atol=0)
    assert probs[2].isnan().all()


def test_a_gradient_is_refused():
    """Bug: a training loss whose gradient ends at a kernel without a word."""
    logits = torch.zeros(1, 7, device=DEVICE, requires_grad=True)
    with pytest.raises(Eagle3RefError, match="a tensor that requires a gradient"):
        selection.topk_probs(logits, 2)


@each_twin
@pytest.mark.parametrize("k", [0, 8])
def test_more_than_there_are_is_refused(twin, k):
    """Bug: torch.topk's own message, or columns behind the end of the row."""
    with pytest.raises(Eagle3RefError, match=f"k = {k}; expected 1 <= k <= 7"):
        TWINS[twin](torch.zeros(1, 7, device=DEVICE), k)


def test_no_rows_are_no_rows():
    """Bug: a launch of nothing, which a device refuses."""
    for twin in TWINS.values():
        probs, chosen = twin(torch.zeros(0, 9, device=DEVICE), 2)
        assert probs.shape == chosen.shape == (0, 2)


def test_the_oracle_is_fp64():
    """Bug: an oracle that rounds to fp32, and so forgives what a twin rounds."""
    logits = torch.randn(2, 9, dtype=torch.float64)
    probs, chosen = get_ops("torch").topk_probs(logits, 3)
    assert torch.equal(probs, logits.softmax(-1).gather(-1, chosen))
