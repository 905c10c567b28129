"""A small pair that answers a few prompts of different lengths, and what the parts of answering are held against."""

from __future__ import annotations

from pathlib import Path

import torch
from tiny import VOCAB, draft_folder, target_folder

import eagle3ref as e3
from eagle3ref.decode import answer_prompts
from eagle3ref.target.generate import Sampling, generate

CHAIN, TREE = e3.TreeConfig(3, 1, 4), e3.TreeConfig(2, 8, 30)  # wide: the draft is random too
WARM = Sampling(temperature=0.9, top_k=30, top_p=0.95, seed=5)
NUM_NEW = 8
_LENGTHS = (3, 9, 1)


class Pair:
    """A random target and draft in fp64, prompts of different lengths."""

    def __init__(self, folder: Path) -> None:
        self.folder = target_folder(folder / "target")
        self.target = e3.load_target(self.folder, dtype=torch.float64)
        self.draft = e3.load_draft(
            draft_folder(folder / "draft", "mla"), target=self.target, capture_points=(2, 3, 4), dtype=torch.float64
        )
        generator = torch.Generator().manual_seed(0)
        self.prompts = [torch.randint(VOCAB - 3, (length,), generator=generator) for length in _LENGTHS]

    def answers(self, target=None, prompts=None, **settings) -> list[list[int]]:
        prompts = self.prompts if prompts is None else prompts
        found = answer_prompts(target or self.target, prompts, **{"max_new_tokens": NUM_NEW, **settings})
        return [answer.tolist() for answer in found]

    def generated(self, **settings) -> list[list[int]]:
        return [answer.tolist() for answer in generate(self.target, self.prompts, max_new_tokens=NUM_NEW, **settings)]
