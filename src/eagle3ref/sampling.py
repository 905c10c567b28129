"""Logits to probabilities, probabilities and given uniforms to tokens; every tie goes to the lower index."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3ref.config import GREEDY_TEMPERATURE
from eagle3ref.errors import Eagle3RefError


def argmax_first(scores: Tensor) -> Tensor:
    """Index of the first maximum along the last dimension, which ``torch.argmax`` documents.

    Args:
        scores: [..., V], any real dtype.

    Returns:
        int64 [...].

    Raises:
        Eagle3RefError: a NaN.
    """
    best = scores.argmax(-1)
    _refuse_nan(scores.gather(-1, best[..., None]), "taking the argmax of scores")
    return best


def topk_stable(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best along the last dimension: higher score first, then lower index.

    ``torch.topk`` promises no order among equals, neither which of them it keeps. Its k-th value is exact though, and
    is used as a threshold, so that a large vocabulary need not be sorted.

    Args:
        scores: [..., V], any real dtype.
        k: how many, 1 <= k <= V.

    Returns:
        values [..., k] and indices int64 [..., k].

    Raises:
        Eagle3RefError: k out of range, or a NaN.
    """
    size = scores.shape[-1]
    if not 1 <= k <= size:
        raise Eagle3RefError(
            "taking the best k scores",
            found=f"k = {k}",
            expected=f"1 <= k <= {size}, the number of scores",
            action="Ask for fewer, or for at least one.",
        )
    best = scores.topk(k, dim=-1).values
    _refuse_nan(best, "taking the best k scores")
    threshold = best[..., -1:]
    index = torch.arange(size, device=scores.device)
    # At most k - 1 scores lie above the threshold; negative keys put them before the lowest-indexed equals.
    keys = torch.where(scores > threshold, index - size, torch.where(scores == threshold, index, size))  # [..., V]
    kept = keys.topk(k, dim=-1, largest=False).values.remainder(size)  # [..., k]
    values, order = scores.gather(-1, kept).sort(dim=-1, descending=True, stable=True)
    return values, kept.gather(-1, order)


def target_probs(logits: Tensor, *, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Probabilities that an engine samples from: softmax, then top-k, then top-p of the renormalised result.

    The sequential order is SGLang 0.5.23's (eagle_utils.py). Tokens that tie with the last one kept are kept too, as
    in flashinfer's renormalisation. A temperature under 1e-6 is greedy: one-hot of the first maximum.

    Args:
        logits: [..., V], any float dtype.
        temperature: >= 0.
        top_k: tokens kept; 0 keeps all.
        top_p: mass kept, 0 < top_p <= 1; 1 keeps all.

    Returns:
        [..., V], fp64 for fp64 logits, otherwise fp32.

    Raises:
        Eagle3RefError: a setting out of range, or logits that are NaN, +inf, or -inf in a whole row.
    """
    _check_settings(temperature, top_k, top_p)
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if temperature < GREEDY_TEMPERATURE:
        return torch.zeros_like(logits, dtype=dtype).scatter_(-1, argmax_first(logits)[..., None], 1.0)
    probs = (logits.to(dtype) / temperature).softmax(-1)
    _refuse_nan(probs, "turning logits into probabilities")
    if 0 < top_k < probs.shape[-1]:
        probs = _renormalised(probs, probs.topk(top_k, dim=-1).values[..., -1:])
    if top_p < 1.0:
        ordered = probs.sort(dim=-1, descending=True).values
        # top_p is rounded like the probabilities: a mass of fp32 0.7 has to reach a top_p of 0.7.
        short = ordered.double().cumsum(-1) < torch.tensor(top_p, dtype=dtype, device=probs.device)
        last = short.sum(-1, keepdim=True).clamp(max=probs.shape[-1] - 1)  # rounding may leave all short
        probs = _renormalised(probs, ordered.gather(-1, last))
    return probs


def sample(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse CDF: the first index of positive mass whose cumulative mass exceeds ``uniform * total``.

    When rounding leaves none, the last index of positive mass (SGLang 0.5.23, sampling.cuh). The sums are fp64.

    Args:
        probs: [..., V], non-negative; the sum need not be 1.
        uniforms: [...], 0 <= u <= 1.

    Returns:
        int64 [...].

    Raises:
        Eagle3RefError: shapes that do not fit, a uniform out of range, a negative or NaN mass, or a row without mass.
    """
    if uniforms.shape != probs.shape[:-1]:
        _refuse_sampling(f"uniforms of shape {list(uniforms.shape)}", f"shape {list(probs.shape[:-1])}, one a row")
    if not ((uniforms >= 0) & (uniforms <= 1)).all():
        _refuse_sampling("a uniform out of range or NaN", "0 <= u <= 1")
    positive = probs > 0
    if not ((probs >= 0).all() and positive.any(-1).all()):
        _refuse_sampling("a negative or NaN mass, or a row without any mass", "non-negative rows with some mass")
    cumulative = probs.double().cumsum(-1)  # [..., V]
    # A parallel sum may round to a step where there is no mass.
    reached = positive & (cumulative > uniforms[..., None] * cumulative[..., -1:])
    first = reached.byte().argmax(-1)
    last_positive = probs.shape[-1] - 1 - positive.flip(-1).byte().argmax(-1)
    return torch.where(reached.any(-1), first, last_positive)


def _renormalised(probs: Tensor, threshold: Tensor) -> Tensor:
    kept = probs.where(probs >= threshold, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def _refuse_nan(values: Tensor, doing: str) -> None:
    # argmax and topk rank NaN above every number, so looking at what they picked is enough.
    if values.isnan().any():
        raise Eagle3RefError(
            doing,
            found="NaN",
            expected="finite numbers (-inf for what is forbidden)",
            action="Look for the first layer whose output is not finite.",
        )


def _check_settings(temperature: float, top_k: int, top_p: float) -> None:
    if not (0 <= temperature < float("inf") and top_k >= 0 and 0 < top_p <= 1):
        raise Eagle3RefError(
            "reading the sampling settings",
            found=f"temperature {temperature}, top_k {top_k}, top_p {top_p}",
            expected="a finite temperature >= 0, top_k >= 0 (0 keeps all), 0 < top_p <= 1",
            action="Correct the setting that is out of range; SGLang's top_k -1 is 0 here.",
        )


def _refuse_sampling(found: str, expected: str) -> None:
    action = "Check where the probabilities and the uniforms come from."
    raise Eagle3RefError("sampling from probabilities", found=found, expected=expected, action=action)
