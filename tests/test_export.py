"""Exports: the copy is the same network, and what would be lost is refused by name."""

from __future__ import annotations

import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from exports import EMBEDDING, FORMATS, HEAD, ROPES, assert_same_network, config_of, draft_of, write_target
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import mla_variants, variants
from safetensors.torch import load_file
from typer.testing import CliRunner

import eagle3ref as e3
from eagle3ref.cli import app
from eagle3ref.draft import export_draft, load_draft
from eagle3ref.draft.export import folder as export_folder
from eagle3ref.errors import Eagle3RefError

pytestmark = pytest.mark.filterwarnings("ignore::eagle3ref.draft.DraftWarning")

MLA_ROPES = ("plain", "older yarn", "yarn", "yarn with both temperatures")
ENGINE_ROPES = tuple(name for name in ROPES if name != "dynamic")

# (format, attention) -> the settings that its reader holds: switches, ropes, numbers, layers.
NORMS = ("norm_output", "fc_norm", "norm_before_fc")
BIASES = ("norm_before_residual", "attention_bias", "mlp_bias")
WIDTH, SCALE, EPS = {"target_hidden_size": 40}, {"logit_scale": 0.5}, {"rms_norm_eps": 1e-3}
HOLDS: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...], tuple[dict[str, Any], ...], int]] = {
    ("sglang", "gqa"): (NORMS, ENGINE_ROPES, (WIDTH, EPS), 3),
    ("sglang", "mla"): (("norm_output", "fc_norm", "bias"), MLA_ROPES, (WIDTH, EPS, {"rope_interleave": False}), 1),
    ("vllm", "gqa"): (NORMS + BIASES, ENGINE_ROPES, (WIDTH, EPS, SCALE), 3),
    ("vllm", "mla"): (("norm_output", "fc_norm", "norm_before_residual"), MLA_ROPES, (WIDTH, EPS, SCALE), 3),
    ("speculators", "gqa"): (("norm_output", "fc_norm", *BIASES), tuple(ROPES), (EPS,), 3),
}


@st.composite
def drafts_and_formats(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A format, and arguments of ``draft_of`` that it holds."""
    format, kind = draw(st.sampled_from(sorted(HOLDS)))
    switches, ropes, numbers, most_layers = HOLDS[format, kind]
    keys: dict[str, Any] = {key: True for key in switches if draw(st.booleans())}
    if draw(st.booleans()):
        keys |= {"draft_vocab_size": tiny.VOCAB, "tie_word_embeddings": draw(st.booleans())}
    # Other points depend on the target for SGLang, and have tests of their own.
    points = [(2, 3, 4), (2, 30, 58)] + [(1, 4, 6), (0, 2, 9), (3, 5, 8)] * (format != "sglang")
    return format, {
        **keys,
        **ROPES[draw(st.sampled_from(ropes))],
        **draw(st.sampled_from([{}, *numbers])),
        "kind": kind,
        "layers": draw(st.integers(1, most_layers)),
        "points": draw(st.sampled_from(points)),
        "dtype": draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64])),
    }


@settings(max_examples=25, deadline=None)
@given(case=drafts_and_formats())
def test_a_copy_is_the_same_network(tmp_path_factory, case):
    """Bug: a setting, a tensor, a dtype or a capture point that changes on the way out and back in."""
    format, arguments = case
    folder = tmp_path_factory.mktemp("draft")
    draft = draft_of(folder / "original", **arguments)
    assert_same_network(draft, load_draft(export_draft(draft, folder / "copy", format=format)))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("variant", variants.VARIANTS)
def test_drafts_of_speculators_convert(variant, format, tmp_path):
    """Bug: query norms, windows, or speculators' own spelling lost; a plain draft refused."""
    points = (2, 4, 6)[: variants.num_aux_states(variants.config(variant))]
    draft = load_draft(variants.write(variant, tmp_path / "original"), capture_points=points)
    layer = variants.config(variant)["transformer_layer_config"]
    is_qwen3 = layer.get("model_type", "qwen3") == "qwen3"
    is_biased = layer["attention_bias"] or layer.get("mlp_bias", False)
    lost = {
        "sglang": is_qwen3 or is_biased or draft.config.norm_before_residual,
        "vllm": is_qwen3 and is_biased,
        "speculators": False,
    }
    if lost[format]:
        with pytest.raises(Eagle3RefError, match="what .* can hold"):
            export_draft(draft, tmp_path / "copy", format=format)
    else:
        assert_same_network(draft, load_draft(export_draft(draft, tmp_path / "copy", format=format)))


@pytest.mark.parametrize("format", ["sglang", "vllm"])
@pytest.mark.parametrize("variant", ["kimi", "one beta", "two temperatures", "no temperature", "no scaling"])
def test_mla_drafts_convert(variant, format, tmp_path):
    """Bug: YaRN's temperatures lost between the keys of engines and those of transformers."""
    draft = load_draft(mla_variants.write(variant, tmp_path / "original"))
    assert_same_network(draft, load_draft(export_draft(draft, tmp_path / "copy", format=format)))


def test_what_the_target_supplied_is_written_where_the_reader_needs_it(tmp_path):
    """Bug: a copy without a head (accept length 1.00 on SGLang), or with a gigabyte that no engine reads."""
    config, tensors = tiny.draft_parts("mla", draft_vocab_size=None)
    embedding = tensors.pop(EMBEDDING)
    del tensors[HEAD]
    target = write_target(tmp_path / "target", embedding)
    draft = load_draft(tiny.write_draft(tmp_path / "mla", config, tensors), target=target)
    for format in ("sglang", "vllm"):
        exported = export_draft(draft, tmp_path / format, format=format, target=target)
        names = set(load_file(exported / "model.safetensors"))
        assert HEAD in names
        assert EMBEDDING not in names
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_same_network(draft, load_draft(exported, target=target))
    alone = export_draft(draft, tmp_path / "alone", format="sglang")
    assert_same_network(draft, load_draft(alone))


def test_speculators_always_brings_the_embedding_and_names_the_target(tmp_path):
    """Bug: an embedding of NaN in speculators, or a copy that vLLM cannot serve by itself."""
    draft = draft_of(tmp_path / "original")
    target = write_target(tmp_path / "target", draft.embed_tokens.weight)
    exported = export_draft(draft, tmp_path / "copy", format="speculators", target=target)
    assert torch.equal(load_file(exported / "model.safetensors")[EMBEDDING], draft.embed_tokens.weight)
    assert config_of(exported)["speculators_config"]["verifier"]["name_or_path"] == str(target)


def test_an_embedding_that_sglang_would_replace_is_refused(tmp_path):
    """Bug: another network on SGLang without a word; or a refusal where the embedding can not be shared at all."""
    draft = draft_of(tmp_path / "original")
    target = write_target(tmp_path / "target", draft.embed_tokens.weight + 1)
    with pytest.raises(Eagle3RefError, match=r"embed_tokens\.weight that is not the target's"):
        export_draft(draft, tmp_path / "copy", format="sglang", target=target)
    kept = export_draft(draft, tmp_path / "vllm", format="vllm", target=target)
    assert torch.equal(load_file(kept / "model.safetensors")[EMBEDDING], draft.embed_tokens.weight)
    narrow = draft_of(tmp_path / "narrow", target_hidden_size=40)
    wide_target = write_target(tmp_path / "wide", torch.randn(tiny.VOCAB, 40))
    exported = export_draft(narrow, tmp_path / "copy", format="sglang", target=wide_target)
    assert_same_network(narrow, load_draft(exported))


@pytest.mark.parametrize("format", ["sglang", "vllm", "speculators"])
def test_another_target_is_refused(format, tmp_path):
    """Bug: ids for the layers, or the name, of a target that the draft was not trained on."""
    target = write_target(tmp_path / "target", torch.randn(tiny.VOCAB + 1, tiny.WIDTH))
    with pytest.raises(Eagle3RefError, match="belongs to another target"):
        export_draft(draft_of(tmp_path / "original"), tmp_path / "copy", format=format, target=target)


@pytest.mark.parametrize(
    ("format", "maps"), [("sglang", {"d2t", "t2d"}), ("vllm", {"d2t"}), ("speculators", {"d2t", "t2d"})]
)
def test_vocabulary_maps_are_offsets_and_there_when_needed(format, maps, tmp_path):
    """Bug: absolute ids, a mask of other ids, or a map for a full vocabulary, which vLLM refuses."""
    draft = draft_of(tmp_path / "original")
    tensors = load_file(export_draft(draft, tmp_path / "copy", format=format) / "model.safetensors")
    assert {"d2t", "t2d"} & set(tensors) == maps
    assert [i + int(offset) for i, offset in enumerate(tensors["d2t"])] == draft.target_ids.tolist()
    if "t2d" in maps:
        assert tensors["t2d"].nonzero().flatten().tolist() == draft.target_ids.tolist()
    full = draft_of(tmp_path / "full", draft_vocab_size=tiny.VOCAB)
    names = load_file(export_draft(full, tmp_path / "full copy", format=format) / "model.safetensors")
    assert not {"d2t", "t2d"} & set(names)


def test_a_quantized_draft_is_written_in_full(tmp_path):
    """Bug: scales or a quantization_config left over, by which an engine would scale once more."""
    config, tensors = tiny.draft_parts("mla", quantization_config={"quant_method": "fp8"})
    tensors = {name: value.bfloat16() for name, value in tensors.items()}
    scale = tensors["fc.weight"].float().abs().amax(1, keepdim=True) / 448
    tensors |= {"fc.weight": (tensors["fc.weight"] / scale).to(torch.float8_e4m3fn), "fc.weight_scale": scale}
    draft = load_draft(tiny.write_draft(tmp_path / "fp8", config, tensors))
    exported = export_draft(draft, tmp_path / "copy", format="sglang")
    written = load_file(exported / "model.safetensors")
    assert {value.dtype for value in written.values()} == {torch.bfloat16}
    assert not [name for name in written if "scale" in name]
    assert "quantization_config" not in config_of(exported)
    assert config_of(exported)["torch_dtype"] == "bfloat16"
    assert_same_network(draft, load_draft(exported))


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "residual": ({"norm_before_residual": True}, "sglang", "norm_before_residual = true"),
    "norm before fc": ({"kind": "mla", "norm_before_fc": True}, "sglang vllm", "norm_before_fc = true"),
    "both norms": ({"fc_norm": True, "norm_before_fc": True}, "speculators", "fc_norm together with norm_before_fc"),
    "logit scale": ({"logit_scale": 0.5}, "sglang speculators", "logit_scale other than 1"),
    "attention bias": ({"attention_bias": True}, "sglang", "biases of q_proj, k_proj, v_proj, a bias of o_proj"),
    "some biases": ({"qkv_bias": True}, "sglang vllm speculators", "biases of some attention projections"),
    "MLP bias": ({"mlp_bias": True}, "sglang", "mlp_bias = true"),
    "fc bias": ({"bias": True}, "sglang vllm speculators", r"bias = true \(of fc\)"),
    "fc bias of MLA": ({"kind": "mla", "bias": True}, "vllm", r"bias = true \(of fc\)"),
    "width": ({"target_hidden_size": 40}, "speculators", "target_hidden_size other than hidden_size"),
    "MLA": ({"kind": "mla"}, "speculators", "kv_lora_rank"),
    "MLA layers": ({"kind": "mla", "layers": 2}, "sglang", "num_hidden_layers above 1"),
    "no query rank": ({"kind": "mla", "q_lora_rank": None}, "sglang vllm", "q_lora_rank = null"),
    "pairs": ({"kind": "mla", "rope_interleave": False}, "vllm", "rope_interleave = false"),
    "MLA rope": ({"kind": "mla", **ROPES["llama3"]}, "sglang vllm", "a rope of another type"),
    "MLA truncate": ({"kind": "mla", **ROPES["yarn with a factor"]}, "sglang vllm", "truncate = false"),
    "dynamic": (ROPES["dynamic"], "sglang vllm", "a dynamic rope"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_format_cannot_hold_is_refused_by_name(case, tmp_path):
    """Bug: a silent loss; a refusal that does not name the field; or one where the reader could hold it."""
    keys, lossy, field = REFUSED[case]
    draft = draft_of(tmp_path / "original", **keys)
    for format in FORMATS:
        if format in lossy.split():
            with pytest.raises(Eagle3RefError, match=f"found .*{field}.*; expected what"):
                export_draft(draft, tmp_path / format, format=format)
        elif keys.get("kind") != "mla" or format != "speculators":
            assert_same_network(draft, load_draft(export_draft(draft, tmp_path / format, format=format)))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("change", [{"final_norm": "none"}, {"hidden_double_norm": True}, {"layer_windows": (4, 5)}])
def test_what_no_reader_holds_is_refused(change, format, tmp_path):
    """Bug: an option of this package, or two windows, written as if it were nothing."""
    draft = draft_of(tmp_path / "original", layers=2)
    with pytest.raises(
        Eagle3RefError, match="no norm before the head|hidden_double_norm|two different sliding windows"
    ):
        export_draft(draft.rewired(replace(draft.config, **change)), tmp_path / "copy", format=format)


@pytest.mark.parametrize("format", ["vllm", "speculators"])
def test_a_full_vocabulary_in_another_order_is_refused(format, tmp_path):
    """Bug: vLLM and speculators look for d2t only when the draft vocabulary is smaller."""
    draft = draft_of(tmp_path / "original", draft_vocab_size=tiny.VOCAB)
    draft.target_ids = draft.target_ids.flip(0)
    with pytest.raises(Eagle3RefError, match="d2t of a full vocabulary in another order"):
        export_draft(draft, tmp_path / "copy", format=format)
    assert_same_network(draft, load_draft(export_draft(draft, tmp_path / "sglang", format="sglang")))


def test_an_existing_folder_is_left_alone(tmp_path):
    """Bug: files of two drafts mixed, or one overwritten."""
    draft, exported = draft_of(tmp_path / "original"), tmp_path / "copy"
    exported.mkdir()
    with pytest.raises(Eagle3RefError, match="something of that name"):
        export_draft(draft, exported, format="vllm")
    assert list(exported.iterdir()) == []


def test_an_unknown_format_is_refused(tmp_path):
    """Bug: a misspelt format written as one of the others."""
    with pytest.raises(Eagle3RefError, match="format 'SGLang'.*sglang, vllm, speculators"):
        export_draft(draft_of(tmp_path / "original"), tmp_path / "copy", format="SGLang")


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_nothing_partial_is_left(error, tmp_path, monkeypatch):
    """Bug: half a draft under the final name, or a leftover beside it."""

    def fail(*_: object, **__: object) -> None:
        raise error

    draft = draft_of(tmp_path / "original")
    monkeypatch.setattr(export_folder, "save_file", fail)
    with pytest.raises(type(error)):
        export_draft(draft, tmp_path / "copy", format="vllm")
    assert [path.name for path in tmp_path.iterdir()] == ["original"]


KILLED_IN_THE_WRITE = """
import os, signal, sys
from eagle3ref.draft import export_draft, load_draft
from eagle3ref.draft.export import folder

def half(tensors, path, **_):
    path.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

folder.save_file = half
export_draft(load_draft(sys.argv[1]), sys.argv[2], format="vllm")
"""


def test_killed_in_the_write_it_leaves_nothing_under_the_name(tmp_path):
    """Bug: weights cut short under the final name, or a leftover that keeps the next export from running."""
    draft = draft_of(tmp_path / "original")
    command = [sys.executable, "-c", KILLED_IN_THE_WRITE, tmp_path / "original", tmp_path / "copy"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == -signal.SIGKILL
    assert not (tmp_path / "copy").exists()
    assert_same_network(draft, load_draft(export_draft(draft, tmp_path / "copy", format="vllm")))


def test_others_may_read_the_weights_too(tmp_path):
    """Bug: weights for the owner's eyes only, as safetensors writes them: the server runs as another user."""
    exported = export_draft(draft_of(tmp_path / "original"), tmp_path / "copy", format="vllm")
    modes = {path.name: path.stat().st_mode for path in exported.iterdir()}
    assert set(modes) == {"config.json", "model.safetensors"}
    assert len(set(modes.values())) == 1


def test_a_tied_head_is_written_out(tmp_path):
    """Bug: two tensors of one memory, which safetensors refuses; or a copy that still says it is tied."""
    draft = draft_of(tmp_path / "original", "mla", tie_word_embeddings=True)
    exported = export_draft(draft, tmp_path / "copy", format="sglang")
    assert config_of(exported)["tie_word_embeddings"] is False
    assert set(load_file(exported / "model.safetensors")) >= {HEAD, EMBEDDING}


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["export", *map(str, arguments)], env={"COLUMNS": "200"})


def test_the_command_writes_the_copy_and_says_where_things_came_from(tmp_path):
    """Bug: options that do not reach the draft or the export."""
    original = tiny.draft_folder(tmp_path / "original")
    target = write_target(tmp_path / "target", load_draft(original).embed_tokens.weight)
    arguments = (original, "--format", "sglang", "-o", tmp_path / "copy", "--target", target)
    done = run(*arguments, "--capture-points", "3,5,6", "--rope-theta", "700", "--final-norm", "head+state")
    assert done.exit_code == 0, done.output
    assert "capture points: (3, 5, 6), given by the caller" in done.output
    config = config_of(tmp_path / "copy")
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert config["rope_theta"] == 700
    assert config["norm_output"] is True
    assert EMBEDDING not in load_file(tmp_path / "copy" / "model.safetensors")


def test_the_command_ends_with_2_when_something_would_be_lost(tmp_path):
    """Bug: a traceback, or success without a copy."""
    original = tiny.draft_folder(tmp_path / "original", norm_before_residual=True)
    done = run(original, "--format", "sglang", "-o", tmp_path / "copy")
    assert done.exit_code == 2
    assert "norm_before_residual = true" in done.output
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("format", FORMATS)
def test_the_nano_draft_converts(format, tmp_path):
    """Bug: the shipped draft, which has all that published ones have, does not convert."""
    target = e3.nano.target_path()
    draft = load_draft(e3.nano.draft_path(), target=target)
    exported = export_draft(draft, tmp_path / "copy", format=format, target=target)
    assert_same_network(draft, load_draft(exported, target=target))
