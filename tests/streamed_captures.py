"""A small checkpoint, prompts for it, and captures of them with streamed weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny import VOCAB
from torch import Tensor

import eagle3ref as e3
from eagle3ref.target.base import TargetCache, TargetOutput
from eagle3ref.target.streaming import StreamedTarget

POINTS = (0, 2, 4, 7)  # the embedding, two layers, and the stream that enters the final norm


class StopError(Exception):
    """Stands for a kill; what it leaves is what the disk has."""


class InBlocks:
    """A target that cannot go layer by layer, as those of transformers."""

    def __init__(self, target: e3.Target) -> None:
        self._target, self.config = target, target.config

    def new_cache(self, batch_size: int) -> TargetCache:
        return self._target.new_cache(batch_size)

    def forward(self, tokens: Tensor, **settings: Any) -> TargetOutput:
        return self._target.forward(tokens, **settings)

    def logits(self, final_hidden_state: Tensor) -> Tensor:
        return self._target.logits(final_hidden_state)

    def embedding(self) -> Tensor:
        return self._target.embedding()

    def lm_head(self) -> Tensor:
        return self._target.lm_head()


def make_prompts(num_open: int = 0) -> list[e3.Prompt]:
    """Six prompts of different lengths with answers of 1 to 3 tokens; the last ``num_open`` have none."""
    generator = torch.Generator().manual_seed(3)
    prompts = []
    for i, length in enumerate((5, 1, 9, 3, 12, 2)):
        tokens = torch.randint(VOCAB - 3, (length,), generator=generator)
        answer = torch.randint(VOCAB - 3, (i % 3 + 1,), generator=generator)
        prompts.append(e3.Prompt(f"p{i}", tokens, None if i >= 6 - num_open else answer))
    return prompts


def stream(folder: Path, memory: int | None = None) -> StreamedTarget:
    return StreamedTarget.from_folder(folder, dtype=torch.float32, memory=memory)


def capture(target: e3.Target, path: Path, prompts: list[e3.Prompt] | None = None, **settings: Any) -> e3.Trace:
    chosen = {"capture_points": POINTS, "max_new_tokens": 5, "final_hidden_state": True, **settings}
    return e3.capture(target, make_prompts() if prompts is None else prompts, path, **chosen)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file by its name; of the header what does not tell the time."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files["trace.json"] = files["trace.json"].split(b'"provenance"')[0]
    return files
