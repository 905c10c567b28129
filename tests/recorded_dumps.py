"""The dumps that real engines made (``golden/dumps``), and what their target computes for the same tokens."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import eagle3ref as e3
from eagle3ref.config import TargetConfig
from eagle3ref.trace import Prompt

GOLDEN = Path(__file__).parent / "golden"
TARGET = GOLDEN / "engines" / "target"
SGLANG = GOLDEN / "dumps" / "sglang"
POINTS = (2, 4, 5)  # SGLang was given the ids 4 1 3, or a draft with 1 3 4
CONFIG = TargetConfig.from_folder(TARGET)
NORMED = "normed"  # the state behind the final norm, among the boundaries


def lines(name: str) -> list[dict[str, Any]]:
    """What was asked and answered in a dump of SGLang."""
    text = gzip.decompress((SGLANG / name / "responses.jsonl.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def prompts_of(name: str, *, with_answers: bool = True) -> dict[str, Prompt]:
    """The prompts of a dump with one prompt a request, named ``p0``, ``p1``, …"""
    made = {}
    for i, line in enumerate(lines(name)):
        answer = torch.tensor(line["response"]["output_ids"]) if with_answers else None
        made[f"p{i}"] = Prompt(f"p{i}", torch.tensor(line["request"]["input_ids"]), answer)
    return made


@cache
def target(dtype: torch.dtype) -> e3.Target:
    """The model that both engines ran."""
    return e3.load_target(TARGET, dtype=dtype)


@cache
def _boundaries(tokens: tuple[int, ...], dtype: torch.dtype) -> dict[int | str, Tensor]:
    points = range(CONFIG.num_layers + 1)
    with torch.inference_mode():
        output = target(dtype).forward(torch.tensor([tokens]), capture_points=points)
    streams: dict[int | str, Tensor] = {point: states[0] for point, states in output.aux_hidden_states.items()}
    return {**streams, NORMED: output.final_hidden_state[0]}


def error(dumped: Tensor, tokens: Tensor, first_row: int, boundary: int | str) -> float:
    """How far rows are from a boundary of the target in float64, in multiples of what the target's own float32 is.

    Both add the same products in another order, so that of right rows is a small number.
    """
    ids = tuple(tokens.tolist())
    exact = _boundaries(ids, torch.float64)[boundary]
    own = (_boundaries(ids, torch.float32)[boundary].double() - exact).abs().max()
    rows = exact[first_row : first_row + len(dumped)]
    return float((dumped.double() - rows).abs().max() / own)
