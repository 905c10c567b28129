"""speculators' config.json: its layer has the defaults of transformers."""

from __future__ import annotations

import json

import pytest

from eagle3ref.config import DraftConfig
from eagle3ref.errors import Eagle3RefError


@pytest.mark.parametrize("model_type", ["llama", "qwen3", None])
def test_missing_keys_of_a_speculators_layer_are_those_of_transformers(model_type, tmp_path):
    """Bug: another default than speculators 0.9.0 puts in; a missing model_type is Qwen3, whose heads are 128 wide."""
    from transformers import LlamaConfig, Qwen3Config

    theirs = LlamaConfig() if model_type == "llama" else Qwen3Config()
    layer = {} if model_type is None else {"model_type": model_type}
    config = {
        "architectures": ["Eagle3DraftModel"],
        "model_type": "speculator_model",
        "transformer_layer_config": layer,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = DraftConfig.from_folder(tmp_path)
    same = ("hidden_size", "intermediate_size", "vocab_size", "rms_norm_eps", "max_position_embeddings")
    assert [getattr(ours, key) for key in same] == [getattr(theirs, key) for key in same]
    heads = (ours.attention.num_heads, ours.attention.num_kv_heads, ours.attention.head_dim, ours.attention.rope.theta)
    assert heads == (theirs.num_attention_heads, theirs.num_key_value_heads, theirs.head_dim, 10000.0)
    assert ours.attention.qk_norm_eps == (None if model_type == "llama" else theirs.rms_norm_eps)
    assert (ours.draft_vocab_size, ours.norm_before_residual, ours.final_norm) == (32000, False, "head")
    assert not any((ours.fc_norm, ours.norm_before_fc, ours.tie_word_embeddings, ours.attention.bias))


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
        {"use_sliding_window": True, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 7},
        {"sliding_window": 7, "layer_types": ["sliding_attention"] * 3},
        {"use_sliding_window": True, "sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"]},
    ],
    ids=range(7),
)
def test_windows_of_a_qwen3_layer_are_those_of_transformers(keys, tmp_path):
    """Bug: a window on a layer that was trained without, or a switched-off one that counts."""
    from transformers import Qwen3Config

    layer = {"num_hidden_layers": len(keys.get("layer_types", "abc")), **keys}
    theirs = Qwen3Config(**layer)
    expected = [theirs.sliding_window if kind == "sliding_attention" else None for kind in theirs.layer_types]
    config = {"architectures": ["Eagle3DraftModel"], "transformer_layer_config": layer}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert list(DraftConfig.from_folder(tmp_path).layer_windows) == expected


@pytest.mark.parametrize(
    ("layer", "found"),
    [
        ({"model_type": "gemma3"}, "model_type 'gemma3'; expected one of llama, qwen3"),
        ({"model_type": 3}, "reading 'model_type'"),
        ({"layer_types": [1]}, "reading 'layer_types'"),
        ({"num_hidden_layers": 2**30}, "num_hidden_layers"),
        ({"hidden_size": "x"}, "hidden_size"),
        ([1], "transformer_layer_config"),
    ],
)
def test_speculators_layers_of_another_kind_are_refused(layer, found, tmp_path):
    """Bug: a KeyError from the table of layers, or a list as long as a hostile number says."""
    config = {"architectures": ["Eagle3DraftModel"], "transformer_layer_config": layer}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Eagle3RefError, match=found):
        DraftConfig.from_folder(tmp_path)
