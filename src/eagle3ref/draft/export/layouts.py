"""The file formats that can be written, and what each of them cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from eagle3ref.config import GQAConfig, MLAConfig
from eagle3ref.draft.model import Eagle3Draft
from eagle3ref.errors import Eagle3RefError

ExportFormat = Literal["sglang", "vllm", "speculators"]
LayerKind = Literal["llama", "qwen3", "mla"]

# The release whose source says how the format is read.
READER: dict[ExportFormat, str] = {
    "sglang": "SGLang 0.5.23",
    "vllm": "vLLM 0.32.0",
    "speculators": "speculators 0.9.0",
}


def layer_kind(draft: Eagle3Draft) -> LayerKind:
    """The decoder layer that the draft is made of, as the engines divide them."""
    attention = draft.config.attention
    if isinstance(attention, MLAConfig):
        return "mla"
    return "llama" if attention.qk_norm_eps is None else "qwen3"


@dataclass(frozen=True)
class _Limit:
    """Something that a draft may have and a reader would lose.

    Args:
        field: its name in config.json, and its value.
        present: whether a draft has it.
        lost: readers, and kinds of layer, that have no place for it; a missing reader holds it.
    """

    field: str
    present: Callable[[Eagle3Draft], bool]
    lost: dict[ExportFormat, tuple[LayerKind, ...]]


_ALL: tuple[LayerKind, ...] = ("llama", "qwen3", "mla")
_EVERYWHERE: dict[ExportFormat, tuple[LayerKind, ...]] = {"sglang": _ALL, "vllm": _ALL, "speculators": _ALL}


def _gqa(test: Callable[[GQAConfig], bool]) -> Callable[[Eagle3Draft], bool]:
    return lambda draft: isinstance(draft.config.attention, GQAConfig) and test(draft.config.attention)


def _mla(test: Callable[[MLAConfig], bool]) -> Callable[[Eagle3Draft], bool]:
    return lambda draft: isinstance(draft.config.attention, MLAConfig) and test(draft.config.attention)


def _has_reordered_vocabulary(draft: Eagle3Draft) -> bool:
    ids = draft.target_ids
    return len(ids) == draft.config.vocab_size and not torch.equal(ids, torch.arange(len(ids), device=ids.device))


def _has_two_windows(draft: Eagle3Draft) -> bool:
    return len({window for window in draft.config.layer_windows if window is not None}) > 1


def _has_bare_temperature(draft: Eagle3Draft) -> bool:
    rope = draft.config.attention.rope
    return rope.type == "yarn" and rope.factor <= 1 and rope.attention_factor != 1


_LIMITS = (
    _Limit("kv_lora_rank (MLA)", _mla(lambda _: True), {"speculators": ("mla",)}),
    _Limit("q_norm and k_norm", _gqa(lambda gqa: gqa.qk_norm_eps is not None), {"sglang": ("qwen3",)}),
    _Limit("norm_before_residual = true", lambda draft: draft.config.norm_before_residual, {"sglang": _ALL}),
    _Limit("norm_before_fc = true", lambda draft: draft.config.norm_before_fc, {"sglang": ("mla",), "vllm": ("mla",)}),
    _Limit(
        "fc_norm together with norm_before_fc",
        lambda draft: draft.config.fc_norm and draft.config.norm_before_fc,
        {"speculators": _ALL},
    ),
    _Limit("no norm before the head", lambda draft: draft.config.final_norm == "none", _EVERYWHERE),
    _Limit("hidden_double_norm", lambda draft: draft.config.hidden_double_norm, _EVERYWHERE),
    _Limit(
        "logit_scale other than 1",
        lambda draft: draft.config.logit_scale != 1,
        {"sglang": _ALL, "speculators": _ALL},
    ),
    # SGLang's window of the draft is a server flag.
    _Limit("sliding_window", lambda draft: any(draft.config.layer_windows), {"sglang": _ALL, "vllm": ("mla",)}),
    _Limit("two different sliding windows", _has_two_windows, _EVERYWHERE),
    _Limit("biases of q_proj, k_proj, v_proj", _gqa(lambda gqa: gqa.bias), {"sglang": _ALL, "vllm": ("qwen3",)}),
    _Limit("a bias of o_proj", _gqa(lambda gqa: gqa.output_bias), {"sglang": _ALL, "vllm": ("qwen3",)}),
    _Limit("biases of some attention projections", _gqa(lambda gqa: gqa.bias != gqa.output_bias), _EVERYWHERE),
    _Limit(
        "mlp_bias = true",
        lambda draft: draft.config.mlp_bias,
        {"sglang": _ALL, "vllm": ("qwen3", "mla"), "speculators": ("qwen3",)},
    ),
    # SGLang's Llama class reads the same key as "o_proj has a bias", which no file of this draft would fill.
    _Limit(
        "bias = true (of fc)",
        lambda draft: draft.config.fc_bias,
        {"sglang": ("llama", "qwen3"), "vllm": _ALL, "speculators": _ALL},
    ),
    _Limit(
        "target_hidden_size other than hidden_size",
        lambda draft: draft.config.target_hidden_size != draft.config.hidden_size,
        {"speculators": _ALL},
    ),
    _Limit("num_hidden_layers above 1", lambda draft: len(draft.layers) > 1, {"sglang": ("mla",)}),
    _Limit("q_lora_rank = null", _mla(lambda mla: mla.q_lora_rank is None), {"sglang": ("mla",), "vllm": ("mla",)}),
    _Limit("rope_interleave = false", _mla(lambda mla: not mla.interleaved), {"vllm": ("mla",)}),
    _Limit(
        "a rope of another type than default and yarn",
        _mla(lambda mla: mla.rope.type not in ("default", "yarn")),
        {"sglang": ("mla",), "vllm": ("mla",)},
    ),
    _Limit("truncate = false", _mla(lambda mla: not mla.rope.truncate), {"sglang": ("mla",), "vllm": ("mla",)}),
    _Limit(
        "attention_factor of a yarn rope with factor 1",
        _has_bare_temperature,
        {"sglang": _ALL, "vllm": ("mla",)},
    ),
    # Both give every position the base that belongs to the longest text.
    _Limit(
        "a dynamic rope",
        lambda draft: draft.config.attention.rope.type == "dynamic",
        {"sglang": _ALL, "vllm": _ALL},
    ),
    _Limit("d2t of a full vocabulary in another order", _has_reordered_vocabulary, {"vllm": _ALL, "speculators": _ALL}),
)


def refuse_losses(draft: Eagle3Draft, format: ExportFormat, doing: str) -> None:
    """Refuse a draft that the format's reader would run as another network.

    Source: the three releases in ``READER``: SGLang's llama_eagle3.py and kimi_k25_eagle3.py, vLLM's llama_eagle3.py,
    qwen3_eagle3.py and deepseek_eagle3.py, speculators' models/eagle3.

    Raises:
        Eagle3RefError: names every field that would be lost.
    """
    kind = layer_kind(draft)
    lost = [limit.field for limit in _LIMITS if kind in limit.lost.get(format, ()) and limit.present(draft)]
    if lost:
        raise Eagle3RefError(
            doing,
            found=", ".join(lost),
            expected=f"what {READER[format]} can hold of a {kind} draft",
            action="It would run another network without a word. Choose another --format, or another engine.",
        )
