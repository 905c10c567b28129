"""What a target has before its first layer and behind its last one: enough to judge a dump without running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eagle3ref.config import TargetConfig
from eagle3ref.config.json_fields import JsonFields
from eagle3ref.config.target import KIMI_MODEL_TYPES
from eagle3ref.errors import Eagle3RefError
from eagle3ref.nn.norm import RMSNorm
from eagle3ref.target import Target, shared_weights
from eagle3ref.target.base import LayerMajorTarget, Scores, device_of
from eagle3ref.target.kimi_head import HEAD_ROWS, score
from eagle3ref.trace.block_pass import score_rows
from eagle3ref.weights import Weights

_NORM_NAMES = ("language_model.model.norm.weight", "model.norm.weight", "norm.weight")
# Models whose embedding, final norm and head are nothing but a table, an RMSNorm and a matrix.
_PLAIN_MODELS = (
    *KIMI_MODEL_TYPES,
    *("deepseek_v2", "deepseek_v3", "gpt_oss", "llama", "mistral", "mixtral", "phi3"),
    *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
)
_ROWS = 1024  # that are widened at a time
_UNIT = 0.02  # how far from 1 the size of a normed row may be: rounding to bf16 leaves it within 0.002


@dataclass(frozen=True)
class TargetHead:
    """The ends of a target.

    Args:
        score: final states [T, C] behind the norm and the tokens int64 [T] -> scores of every row, on the CPU; the last
            row, which no token follows, has no gap.
        norm: the final norm; None when only a loaded model knows it.
        embedding: [V, C], whose rows enter layer 0 as they are; None where a model does more to them.
    """

    score: Callable[[Tensor, Tensor], Scores]
    norm: RMSNorm | None
    embedding: Tensor | None

    @classmethod
    def of(cls, target: Target | str | Path) -> tuple[TargetHead | None, str]:
        """The ends of a loaded target or of a checkpoint folder, and why there are none.

        Raises:
            Eagle3RefError: no config.json in the folder.
        """
        if isinstance(target, str | Path):
            return _of_folder(Path(target))
        on_disk = _of_folder(Path(target.config.path))[0] if target.config.path else None
        norm = None if on_disk is None else on_disk.norm
        embedding = target.embedding() if target.config.model_type in _PLAIN_MODELS else None
        if isinstance(target, LayerMajorTarget):
            return cls(_of_next_tokens(target.score), norm, embedding), ""
        return cls(lambda final, tokens: score_rows(target, final.to(device_of(target)), tokens), norm, embedding), ""

    def is_normed(self, final: Tensor) -> bool | None:
        """Whether final states [R, C] are behind the norm: without the norm's weight, every such row has RMS 1."""
        if self.norm is None:
            return None
        weight = self.norm.weight.detach().double()
        used = weight.abs() > weight.abs().max() * 1e-3  # what is almost nothing times the weight is all rounding
        for rows in final.split(_ROWS):
            sizes = (rows.double()[:, used] / weight[used]).square().mean(1).sqrt()
            if not bool(((sizes - 1).abs() < _UNIT).all()):
                return False
        return True

    @torch.inference_mode()
    def normed(self, final: Tensor) -> Tensor | None:
        """Final states before the norm -> behind it, in their dtype."""
        if self.norm is None:
            return None
        norm = RMSNorm(final.shape[1], self.norm.eps).requires_grad_(False)
        norm.weight.data = self.norm.weight.to(final.dtype)
        return torch.cat([norm(rows) for rows in final.split(_ROWS)])


def _of_folder(folder: Path) -> tuple[TargetHead | None, str]:
    config = TargetConfig.from_folder(folder)
    if config.model_type not in _PLAIN_MODELS:
        return None, f"the final norm and head of {config.model_type} are known only to the loaded model"
    outer = JsonFields.read(folder / "config.json")
    norm = RMSNorm(config.hidden_size, (outer.object("text_config") or outer).number("rms_norm_eps"))
    try:
        norm.requires_grad_(False).weight.data = _final_norm(folder)
        shared = shared_weights(folder)
        embedding, head = shared.embedding(), shared.lm_head()
    except Eagle3RefError as error:
        return None, f"weights of {config.name} cannot be read ({error.found})"

    def run(final: Tensor, next_tokens: Tensor) -> Scores:
        return score(final, next_tokens, (piece.to(final.dtype) for piece in head.split(HEAD_ROWS)))

    return TargetHead(_of_next_tokens(run), norm, embedding), ""


def _final_norm(folder: Path) -> Tensor:
    weights = Weights(folder, only=_NORM_NAMES)
    return weights.read(next((name for name in _NORM_NAMES if name in weights), _NORM_NAMES[0]))


def _of_next_tokens(run: Callable[[Tensor, Tensor], Scores]) -> Callable[[Tensor, Tensor], Scores]:
    """From final states and the tokens that follow them to final states and the tokens themselves."""

    @torch.inference_mode()
    def score_sequence(final: Tensor, tokens: Tensor) -> Scores:
        argmax, gap = run(final, torch.cat((tokens[1:], tokens[-1:])))  # the last one stands in for what follows it
        gap = gap.to("cpu", torch.float32, copy=True)
        gap[-1] = 0
        return Scores(argmax.cpu(), gap)

    return score_sequence
