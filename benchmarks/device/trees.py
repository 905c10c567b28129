"""Tree build and greedy verification: every integer equal to the reference's, and how long they take."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

import torch

from device.clock import cold_ms
from device.recorder import Case, Recorder
from device.setting import Setting
from eagle3ref.config import TreeConfig
from eagle3ref.kernels import get_ops
from eagle3ref.tree import Candidates, extend_beams

_SEQUENCES = 16
_VOCABULARY = 3  # few tokens, so that a target often agrees


def cases(setting: Setting, backend: str = "triton") -> list[Case]:
    """For each shape of tree, both checks and both times, of a backend."""
    made = []
    for tree in (TreeConfig(*shape) for shape in setting.sizes.trees):
        made.append(Case(f"{backend} trees {tree}", partial(check, setting, tree, backend)))
        made.append(Case(f"{backend} times of trees {tree}", partial(measure, setting, tree, backend), is_check=False))
    return made


def check(setting: Setting, tree: TreeConfig, backend: str, recorder: Recorder) -> None:
    """Both operations on random candidates, every integer against the reference's."""
    ops, reference = get_ops(backend), get_ops("torch")
    candidates, shape, target = _inputs(setting, tree)
    built, expected = (which.build_tree(candidates, **shape) for which in (ops, reference))
    recorder.check(f"{backend} build_tree {tree}", same(built, expected))
    got, wanted = (which.verify_greedy(expected, target) for which in (ops, reference))
    accepted = int(wanted.num_accepted.sum())
    recorder.check(f"{backend} verify_greedy {tree}", same(got, wanted) and accepted > 0, accepted=accepted)


def measure(setting: Setting, tree: TreeConfig, backend: str, recorder: Recorder) -> None:
    """Both operations, of the backend and of the reference."""
    candidates, shape, target = _inputs(setting, tree)
    built = get_ops("torch").build_tree(candidates, **shape)
    for arm, name in (("ours" if backend == "triton" else backend, backend), ("eager", "torch")):
        ops = get_ops(name)
        build_ms = cold_ms(setting, partial(ops.build_tree, candidates, **shape))
        recorder.write("time", name=f"build_tree {tree} x {_SEQUENCES}", arm=arm, ms=build_ms)
        verify_ms = cold_ms(setting, partial(ops.verify_greedy, built, target))
        recorder.write("time", name=f"verify_greedy {tree} x {_SEQUENCES}", arm=arm, ms=verify_ms)


def random_candidates(setting: Setting, tree: TreeConfig) -> Candidates:
    """What a draft loop would leave, with many equal scores: probabilities are 1, 1/2 and 1/4, best first."""
    topk = tree.topk
    scores, parents = _probs(setting, topk), torch.full((_SEQUENCES, topk), -1, device=setting.device)
    levels = [(scores, parents)]
    beams = torch.arange(topk, device=setting.device).expand(_SEQUENCES, -1)
    for step in range(tree.num_steps - 1):
        parents = beams.repeat_interleave(topk, -1)
        level, chosen = extend_beams(scores, _probs(setting, topk, topk))
        levels.append((level, parents))
        scores, beams = level.gather(-1, chosen), topk + step * topk**2 + chosen
    all_scores, all_parents = (torch.cat(parts, -1) for parts in zip(*levels, strict=True))
    return Candidates(all_scores, setting.integers(_VOCABULARY - 1, *all_scores.shape), all_parents)


def same(got: Any, expected: Any) -> bool:
    """Whether all fields of two trees or verifications are equal, dtypes included."""
    pairs = [(getattr(got, one.name), getattr(expected, one.name)) for one in fields(expected)]
    return all(left.dtype == right.dtype and torch.equal(left, right) for left, right in pairs)


def _probs(setting: Setting, *shape: int) -> torch.Tensor:
    halvings = setting.integers(2, _SEQUENCES, *shape).sort(-1).values
    return 0.5 ** halvings.float()


def _inputs(setting: Setting, tree: TreeConfig) -> tuple[Candidates, dict[str, Any], torch.Tensor]:
    """Candidates, the other arguments of build_tree, and the target's tokens."""
    lengths = setting.integers(9, _SEQUENCES)
    shape = {"root_tokens": lengths, "prefix_lengths": lengths, "num_draft_tokens": tree.num_draft_tokens}
    return random_candidates(setting, tree), shape, setting.integers(_VOCABULARY - 1, _SEQUENCES, tree.num_draft_tokens)
