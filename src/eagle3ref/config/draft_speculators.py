"""The config.json of speculators drafts: a decoder layer's settings inside, EAGLE-3's own around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3ref.config.json_fields import JsonFields
from eagle3ref.errors import Eagle3RefError

# What transformers' LlamaConfig and Qwen3Config, with which speculators reads the layer, put in for missing keys.
_LAYER_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
    },
    "qwen3": {
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
    },
}
_DEFAULT_LAYER_TYPE = "qwen3"
_DEFAULT_DRAFT_VOCAB_SIZE = 32000
_LAYER_KEY = "transformer_layer_config"


def flatten_speculators(fields: JsonFields) -> JsonFields:
    """Both shapes of a speculators config.json as one flat object.

    The nested shape has the layer in ``transformer_layer_config``; there, missing keys mean what speculators 0.9.0
    and transformers make of them (a missing ``model_type`` is Qwen3, ``draft_vocab_size`` 32000). A file that was
    flattened for vLLM is already flat.

    Raises:
        Eagle3RefError: a layer type that speculators has no EAGLE-3 head for.
    """
    layer = fields.object(_LAYER_KEY)
    if layer is None:
        return fields
    layer_type = layer.text("model_type", _DEFAULT_LAYER_TYPE)
    if layer_type not in _LAYER_DEFAULTS:
        raise Eagle3RefError(
            f"reading {layer.where}",
            found=f"model_type {layer_type!r}",
            expected=f"one of {', '.join(_LAYER_DEFAULTS)}",
            action="speculators has no EAGLE-3 head with this layer; check the file.",
        )
    own = {key: value for key, value in fields.values.items() if key != _LAYER_KEY and value is not None}
    values = {
        **_LAYER_DEFAULTS[layer_type],
        "draft_vocab_size": _DEFAULT_DRAFT_VOCAB_SIZE,
        **_without_unused_share(layer.values),
        "model_type": layer_type,
        **{key: value for key, value in own.items() if key not in ("model_type", "tie_word_embeddings")},
    }
    return JsonFields(values, fields.where)


def _without_unused_share(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Plain rope turns the whole head, whatever ``partial_rotary_factor`` says.

    In transformers' Llama and Qwen3, with which speculators trains, only the other rope types look at it. (vLLM always
    does, and would rotate a part.)
    """
    key, places = "partial_rotary_factor", ("rope_parameters", "rope_scaling")
    ropes = [layer[place] for place in places if isinstance(layer.get(place), dict)]
    if any(rope.get("rope_type", rope.get("type", "default")) != "default" for rope in ropes):
        return dict(layer)
    plain = {
        place: {name: value for name, value in layer[place].items() if name != key}
        for place in places
        if isinstance(layer.get(place), dict)
    }
    return {name: value for name, value in layer.items() if name != key} | plain


def sliding_windows(fields: JsonFields) -> tuple[int | None, ...]:
    """The window of each layer in tokens, the row itself included; None is full attention.

    ``layer_types`` says which layers have one. Without it, Qwen3 gives one to the layers from ``max_window_layers`` on.
    Qwen3's ``sliding_window`` counts only with ``use_sliding_window``.
    """
    is_qwen3 = fields.text("model_type", "") == "qwen3"
    is_on = not is_qwen3 or fields.flag("use_sliding_window")
    has_default = is_qwen3 and "sliding_window" not in fields.values
    window = 4096 if has_default else fields.optional_size("sliding_window")
    types = fields.values.get("layer_types")
    if types is None:
        first = fields.size("max_window_layers", 28, lowest=0)
        num_layers = fields.size("num_hidden_layers", 1, highest=2**10)
        types = ["sliding_attention" if is_qwen3 and i >= first else "full_attention" for i in range(num_layers)]
    if not isinstance(types, list) or not all(isinstance(kind, str) for kind in types):
        raise Eagle3RefError(
            f"reading 'layer_types' of {fields.where}",
            found=repr(types),
            expected="a list of names such as full_attention and sliding_attention",
            action="Correct the file.",
        )
    return tuple(window if is_on and kind == "sliding_attention" else None for kind in types)
