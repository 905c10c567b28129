"""The most probable tokens of a draft's vocabulary: every index as ``topk_stable`` of the softmax has it, and times."""

from __future__ import annotations

from functools import partial

import torch

from device.calls import Call, Timed, time_case
from device.recorder import Case, Recorder
from device.setting import Setting
from eagle3ref.kernels import get_ops
from eagle3ref.sampling import topk_stable

_TOPK = 4
_SHARPNESS = 8.0  # standard deviation of the logits
_CLOSE = 1e-6  # relative, of a probability to that in fp64


def cases(setting: Setting) -> list[Case]:
    """Checks in every dtype, then times."""
    vocabularies = (setting.sizes.draft_vocab, setting.sizes.vocab)
    checks = [
        Case(f"most probable of {size}, {dtype}", partial(check, setting, size, dtype))
        for dtype in setting.dtypes
        for size in vocabularies
    ]
    return checks + [time_case(setting, _timed(setting, size)) for size in vocabularies]


def check(setting: Setting, size: int, dtype: torch.dtype, recorder: Recorder) -> None:
    """A row for each checked size; the logits of a 16-bit head tie often."""
    logits = setting.random(setting.sizes.checked_rows[-1], size, dtype=dtype, scale=_SHARPNESS)
    probs, chosen = get_ops("triton").topk_probs(logits, _TOPK)
    wanted = topk_stable(logits.float().softmax(-1), _TOPK)[1]
    exact = logits.double().softmax(-1).gather(-1, wanted)
    off = float((probs / exact - 1).abs().max())
    equal = torch.equal(chosen, wanted)
    recorder.check(
        f"most probable of {size}, {dtype}", equal and off <= _CLOSE, largest_relative_error=off, equal=equal
    )


def _timed(setting: Setting, size: int) -> Timed:
    rows = _TOPK * setting.sizes.buckets[-1]
    return Timed(
        f"most probable {_TOPK} of {size}, {rows} rows",
        lambda: Call("topk_probs", (setting.random(rows, size, scale=_SHARPNESS), _TOPK)),
        num_bytes=rows * size * setting.served.itemsize,
        flops=0,
    )
