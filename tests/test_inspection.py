"""Inspection: what files say of themselves, without running anything."""

from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from eagle3ref import Trace
from eagle3ref.inspection import (
    DraftInspection,
    TargetInspection,
    inspect_draft,
    inspect_path,
    inspect_target,
    summarize_trace,
)
from eagle3ref.inspection.variant import network_variant
from eagle3ref.trace import RecordedSampling, RecordedSequence, TargetIdentity, TraceHeader, TraceWriter
from eagle3ref.weights import Weights


def write_trace(path: Path, answers: list[list[int]], argmax: list[int] | None = None) -> Trace:
    """A prompt [0, 1] before each answer; ``argmax`` are the first choices along the last answer."""
    target = TargetIdentity("t", "", "kimi_k25", 4, 2, 9, "")
    header = TraceHeader(target, None, (1,), "float32", RecordedSampling(0.0, 1.0, 0, None), "by hand")
    with TraceWriter.open(path, header) as writer:
        for i, answer in enumerate(answers):
            tokens = torch.tensor([0, 1, *answer])
            is_last = i == len(answers) - 1
            choices = torch.tensor([8, *argmax, 8]) if argmax and is_last else None
            writer.add(RecordedSequence(f"s{i}", tokens, 2, {1: torch.zeros(len(tokens), 2)}, argmax=choices))
    return Trace.open(path)


def test_parameters_are_counted_as_trained(tmp_path: Path) -> None:
    """Would catch packed INT4 counted by its int32 words, or scales and vocabulary maps counted as parameters."""
    found = inspect_target(tiny.target_folder(tmp_path / "target"))
    trained = sum(parameter.numel() for parameter in tiny.random_target().parameters())
    assert sum(group.num_parameters for group in found.tensors) == trained
    files = (tmp_path / "target").glob("*.safetensors")
    stored = sum(tensor.nbytes for file in files for tensor in load_file(file).values())
    assert sum(group.num_bytes for group in found.tensors) == stored
    config, tensors = tiny.draft_parts()
    draft = inspect_draft(tiny.write_draft(tmp_path / "draft", config, tensors))
    trained = sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())
    assert sum(group.num_parameters for group in draft.tensors) == trained


def test_pickled_checkpoints_count_the_same(tmp_path: Path) -> None:
    """Would catch dtypes that only safetensors' spelling of them gives bytes for."""
    parts = tiny.draft_parts()
    pickled = inspect_draft(tiny.write_draft(tmp_path / "bin", *parts, container="bin"))
    safe = inspect_draft(tiny.write_draft(tmp_path / "safe", *parts))
    assert [(g.name, g.num_bytes, g.num_parameters) for g in pickled.tensors] == [
        (g.name, g.num_bytes, g.num_parameters) for g in safe.tensors
    ]


def test_target_is_inspected_without_reading_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a look at a 594 GB checkpoint that reads it."""

    def refuse(*_: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(Weights, "read", refuse)
    found = inspect_path(tiny.target_folder(tmp_path / "target"))
    assert isinstance(found, TargetInspection)
    assert found.oddities == ()
    assert dict(found.facts)["capture points"].startswith("(2, 3, 4)")


def test_target_with_a_layer_missing_is_odd(tmp_path: Path) -> None:
    """Would catch a half-downloaded target that looks complete."""
    folder = tiny.target_folder(tmp_path / "target")
    (folder / "model.safetensors.index.json").unlink()
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
        file.unlink()
    kept = {name: tensor for name, tensor in tensors.items() if ".layers.5." not in name}
    save_file(kept, folder / "model.safetensors")
    oddity, census = inspect_target(folder).oddities
    assert "none of layer 5" in oddity
    assert census.startswith("it cannot be loaded: 26 problems: no tensor language_model.model.layers.5.")


def test_a_kimi_says_how_its_weights_are_stored(tmp_path: Path) -> None:
    """Would catch a format read from the config instead of the files, and experts counted with the rest."""
    folder = tiny.target_folder(tmp_path / "target")
    num_tensors = sum(len(load_file(file)) for file in folder.glob("*.safetensors"))
    assert inspect_target(folder).facts["census"] == (
        f"{num_tensors} text tensors, 0.2 MB; routed experts INT4 in groups of 32; the rest BF16"
    )


def test_a_router_bias_that_was_rounded_is_odd(tmp_path: Path) -> None:
    """Would catch a copy converted to bf16 as a whole, which loads and routes some tokens elsewhere."""
    folder = tiny.target_folder(tmp_path / "target")
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        for name in tensors:
            if name.endswith("e_score_correction_bias"):
                tensors[name] = tensors[name].bfloat16()
        save_file(tensors, file)
    (oddity,) = inspect_target(folder).oddities
    assert oddity.startswith(
        "6 router biases are stored as BF16, not F32, e.g. language_model.model.layers.1.mlp.gate."
    )


def test_draft_alone_is_checked_as_far_as_it_goes(tmp_path: Path) -> None:
    """Would catch NaN, or an fc that was never trained, that hides behind a missing target."""
    config, tensors = tiny.draft_parts()
    del tensors["embed_tokens.weight"]
    sound = inspect_draft(tiny.write_draft(tmp_path / "sound", config, tensors))
    assert (sound.oddities, sound.findings, sound.problem) == ((), (), None)
    assert len(sound.unchecked) == 1
    tensors["fc.weight"].zero_()
    tensors["norm.weight"][0] = torch.nan
    odd = inspect_draft(tiny.write_draft(tmp_path / "odd", config, tensors))
    assert [(finding.tensor, finding.found) for finding in odd.findings] == [
        ("fc.weight", "is all zeros"),
        ("norm.weight", "holds NaN or infinity"),
    ]
    assert odd.is_faulty


def test_llama_architecture_does_not_make_a_draft(tmp_path: Path) -> None:
    """Would catch kinds told apart by architecture, which drafts and Llama targets share."""
    config, tensors = tiny.draft_parts(architectures=["LlamaForCausalLM"])
    assert isinstance(inspect_path(tiny.write_draft(tmp_path / "draft", config, tensors)), DraftInspection)
    config["num_hidden_layers"], config["model_type"] = 1, "llama"
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("fc.")}
    assert isinstance(inspect_path(tiny.write_draft(tmp_path / "llama", config, tensors)), TargetInspection)


def test_summary_counts_loops_and_misses_by_hand(tmp_path: Path) -> None:
    """Would catch n-grams across answers or with the prompt, or an argmax held against the wrong token."""
    loop, varied = [3, 3, 3, 3, 3, 3], [2, 3, 4, 5, 6]
    found = summarize_trace(write_trace(tmp_path / "trace", [loop, varied], argmax=[2, 3, 8, 5, 6]))
    assert (found.ngrams, found.distinct_ngrams) == (3 + 2, 1 + 2)
    assert (found.off_argmax.judged_tokens, found.off_argmax.tokens) == (5, 1)
    assert (found.prompt_tokens, found.generated_tokens, found.longest) == (4, 11, 8)
    without = summarize_trace(write_trace(tmp_path / "short", [[3]]))
    assert (without.off_argmax.share, without.distinct_ngram_share) == (None, None)


def test_sha256_of_a_trace_names_the_contents(tmp_path: Path) -> None:
    """Would catch two traces of one name, or one that depends on where it lies."""
    first, same = write_trace(tmp_path / "a", [[3, 4]]), write_trace(tmp_path / "b", [[3, 4]])
    other = write_trace(tmp_path / "c", [[3, 5]])
    assert first.sha256() == same.sha256()
    assert first.sha256() != other.sha256()


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("gqa", {}, ()),
        ("mla", {}, ()),
        ("gqa", {"norm_before_residual": True, "fc_norm": True}, ("norm_before_residual", "fc_norm")),
        ("mla", {"norm_before_fc": True}, ("norm_before_fc",)),
        ("gqa", {"attention_bias": True}, ("qkv bias", "o_proj bias")),
        ("gqa", {"norm_output": True}, ("final norm as in EAGLE-3.1: head and next step read the normed stream",)),
    ],
)
def test_variant_is_what_differs_from_the_plain_head(
    kind: str, settings: dict[str, bool], expected: tuple[str, ...], tmp_path: Path
) -> None:
    """Would catch a look at a draft that hides which network it is, or calls the plain one a variant."""
    assert inspect_draft(tiny.draft_folder(tmp_path / "draft", kind, **settings)).variant == expected


def test_variant_tells_layers_windows_biases_and_query_norms(tmp_path: Path) -> None:
    """Would catch layers counted by config.json, and a window, a bias or a norm of the queries that is not told."""
    plain = inspect_draft(tiny.draft_folder(tmp_path / "draft")).config
    attention = replace(plain.attention, qk_norm_eps=1e-6)
    config = replace(plain, attention=attention, layer_windows=(None, 64), fc_bias=True, mlp_bias=True, logit_scale=0.5)
    names = ["layers.0.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight"]
    told = ("2 layers", "fc bias", "mlp bias", "logit_scale 0.5", "query and key norms", "sliding window 64")
    assert network_variant(config, names) == told


def test_capture_points_can_be_given_where_the_file_has_none(tmp_path: Path) -> None:
    """Would catch a look that asks for the target's depth although the user said which streams they are."""
    config, tensors = tiny.draft_parts()
    del config["eagle_config"]
    folder = tiny.write_draft(tmp_path / "draft", config, tensors)
    assert len(inspect_draft(folder).unchecked) == 1
    found = inspect_draft(folder, capture_points=(2, 3, 5))
    assert (found.unchecked, found.origins["capture points"]) == ((), "(2, 3, 5), given by the caller")
    del tensors["embed_tokens.weight"]
    shares = inspect_draft(tiny.write_draft(tmp_path / "shares", config, tensors), capture_points=(2, 3, 5))
    assert shares.unchecked == ("the embedding: the draft brings none",)
    assert shares.origins["capture points"] == "(2, 3, 5), given by the caller"
