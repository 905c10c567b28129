"""Draft folders: every published spelling loads to the same network, everything that does not fit is refused."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

import pytest
import tiny
import torch

from eagle3ref.draft import DraftWarning, Eagle3Draft, load_draft
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target import KimiK25Target


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory) -> Path:
    return tiny.target_folder(tmp_path_factory.mktemp("target"))


def load_changed(folder: Path, *, kind="gqa", change=None, target=None, points=None, layers=1, **keys) -> Eagle3Draft:
    """Load a draft whose tensors ``change`` has altered and whose config.json has other ``keys`` (... removes one)."""
    config, tensors = tiny.draft_parts(kind, num_layers=layers, **keys)
    if change is not None:
        change(tensors)
    return load_draft(tiny.write_draft(folder, config, tensors), target=target, capture_points=points)


def assert_same_network(one: Eagle3Draft, other: Eagle3Draft) -> None:
    assert one.state_dict().keys() == other.state_dict().keys()
    assert all(torch.equal(one.state_dict()[name], value) for name, value in other.state_dict().items())
    assert torch.equal(one.target_ids, other.target_ids)


def renamed(old: str, new: str):
    def change(tensors):
        for name in [name for name in tensors if re.search(old, name)]:
            tensors[re.sub(old, new, name)] = tensors.pop(name)

    return change


def test_loading_imports_no_compiler(tmp_path, monkeypatch):
    """Bug: a second of CPU in every command for weights that are drawn on the meta device and thrown away."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # importing it fails
    load_changed(tmp_path)


SPELLINGS = {
    "layers.0.": (renamed("^midlayer", "layers.0"), {}),
    "model.midlayer.": (renamed("^", "model."), {}),
    "midlayer.0.": (renamed("^midlayer", "midlayer.0"), {}),
    "model. but the head": (renamed("^(?!lm_head)", "model."), {}),
    "aux_norm_low": (
        lambda tensors: [
            renamed(rf"^fc_norm\.{i}", f"aux_norm_{part}")(tensors) for i, part in enumerate(("low", "mid", "high"))
        ],
        {"fc_norm": True},
    ),
    "stray rotary buffer": (
        lambda tensors: tensors.update({"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(4)}),
        {},
    ),
    "hidden_norm in layer 1": (renamed(r"^layers\.1\.input_layernorm", "layers.1.hidden_norm"), {"layers": 2}),
    "mla midlayer.": (renamed(r"^layers\.0", "midlayer"), {"kind": "mla"}),
    "int32 d2t": (lambda tensors: tensors.update({"d2t": tensors["d2t"].int()}), {}),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_the_same_network(spelling, tmp_path):
    """Bug: a published spelling refused, or read into another layer."""
    change, keys = SPELLINGS[spelling]
    assert_same_network(
        load_changed(tmp_path / "plain", **keys), load_changed(tmp_path / "changed", change=change, **keys)
    )


@pytest.mark.parametrize("container", ["bin", "sharded"])
@pytest.mark.parametrize("kind", ["gqa", "mla"])
def test_every_container_is_the_same_network(kind, container, tmp_path):
    """Bug: a container that loses tensors or dtypes."""
    plain = load_draft(tiny.draft_folder(tmp_path / "plain", kind))
    assert_same_network(plain, load_draft(tiny.write_draft(tmp_path / "other", *tiny.draft_parts(kind), container)))


def test_a_wrong_num_hidden_layers_is_not_believed(tmp_path):
    """Bug: published configs give the target's depth with a single midlayer."""
    assert len(load_changed(tmp_path, num_hidden_layers=36).layers) == 1


def test_dtype_is_the_files_or_the_callers(tmp_path):
    """Bug: a draft silently converted; an fp16 file with a bf16 embedding left mixed."""
    config, tensors = tiny.draft_parts()
    mixed = {name: value.half() if value.is_floating_point() else value for name, value in tensors.items()}
    mixed["embed_tokens.weight"] = mixed["embed_tokens.weight"].bfloat16()
    folder = tiny.write_draft(tmp_path, config, mixed)
    assert {value.dtype for value in load_draft(folder).parameters()} == {torch.float16}
    assert {value.dtype for value in load_draft(folder, dtype=torch.float64).parameters()} == {torch.float64}


def test_d2t_is_read_as_offsets(tmp_path):
    """Bug: the offsets taken for target ids."""
    draft = load_changed(tmp_path)
    t2d = tiny.draft_parts()[1]["t2d"]
    assert torch.equal(draft.target_ids, t2d.nonzero().flatten())


def without(*names: str):
    return lambda tensors: [tensors.pop(name) for name in names]


def setting(name: str, make):
    return lambda tensors: tensors.update({name: make(tensors)})


FC, HEAD, EMBEDDING = "fc.weight", "lm_head.weight", "embed_tokens.weight"
REFUSED = {
    "unknown tensor": ({"change": setting("midlayer.x", lambda _: torch.ones(1))}, r"unknown tensors \(layers\.0\.x\)"),
    "odd layer name": ({"change": setting("layers.x.y", lambda _: torch.ones(1))}, r"unknown tensors \(layers\.x\.y\)"),
    "huge layer number": ({"change": setting("layers.99999999.y", lambda _: torch.ones(1))}, "9 missing .* 1 unknown"),
    "K3 gate": ({"change": setting("midlayer.self_attn.g_proj.weight", lambda _: torch.ones(1))}, "a Kimi-K3 network"),
    "missing norm": ({"change": without("midlayer.hidden_norm.weight")}, r"1 missing tensors \(layers\.0\.hidden_norm"),
    "missing fc": ({"change": without(FC)}, r"1 missing tensors \(fc\.weight\)"),
    "two spellings": ({"change": setting("layers.0.hidden_norm.weight", lambda _: torch.ones(32))}, "two tensors for"),
    "two norms in layer 1": (
        {"layers": 2, "change": setting("layers.1.hidden_norm.weight", lambda _: torch.ones(32))},
        "two tensors for layers.1.input_layernorm.weight",
    ),
    "one state wide fc": ({"change": setting(FC, lambda t: t[FC][:, :32].clone())}, r"\(32, 32\); expected \(32, 96\)"),
    "four ids": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 4, 5]}},
        r"\(32, 96\); expected \(32, 128\)\. fc takes all capture points",
    ),
    "zero fc": ({"change": setting(FC, lambda t: torch.zeros_like(t[FC]))}, "an all-zero fc.weight"),
    "NaN": ({"change": setting("norm.weight", lambda _: torch.full((32,), torch.nan))}, "norm.weight with non-finite"),
    "inf": ({"change": setting(HEAD, lambda t: t[HEAD] / 0)}, "lm_head.weight with non-finite"),
    "int fc": ({"change": setting(FC, lambda t: t[FC].int())}, "dtype torch.int32"),
    "FP8 fc": ({"change": setting(FC, lambda t: t[FC].to(torch.float8_e4m3fn))}, "torch.float8.* with 0 scales"),
    "FP8 scale": ({"change": setting("fc.weight_scale", lambda _: torch.ones(1))}, "unknown tensors"),
    "no d2t": ({"change": without("d2t")}, "found no d2t; expected d2t, int64 of shape .48"),
    "short d2t": ({"change": setting("d2t", lambda t: t["d2t"][:-1])}, r"d2t of shape \(47,\)"),
    "float d2t": ({"change": setting("d2t", lambda t: t["d2t"] * torch.nan)}, "dtype torch.float32"),
    "absolute d2t": (
        {"change": setting("d2t", lambda t: t["t2d"].nonzero().flatten())},
        r"target id \d+; expected target ids 0 to 95.*Absolute ids stored as offsets",
    ),
    "negative d2t": ({"change": setting("d2t", lambda t: t["d2t"] - 9)}, "with offset -8, i.e. target id -8"),
    "double d2t": (
        {"change": setting("d2t", lambda _: -(torch.arange(48) == 1).long())},
        r"target id 0 for draft ids \[0, 1\]",
    ),
    "no embedding, no target": ({"change": without(EMBEDDING)}, "1 missing .*pass the target"),
    "no head, small vocabulary": ({"change": without(HEAD)}, r"1 missing .*accept len 1\.00"),
    "q_norm without k_norm": (
        {"change": setting("midlayer.self_attn.q_norm.weight", lambda _: torch.ones(10))},
        r"1 missing tensors \(layers\.0\.self_attn\.k_norm\.weight\)",
    ),
    "bias without the key": ({"change": setting("fc.bias", lambda _: torch.ones(32))}, r"unknown tensors \(fc\.bias"),
    "head of another vocabulary": ({"change": setting(HEAD, lambda t: t[HEAD].repeat(2, 1))}, r"\(96, 32\).*\(48, 32"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case, tmp_path):
    """Bug: a server runs it without a word; or the message does not say what was found."""
    keys, found = REFUSED[case]
    with pytest.raises(Eagle3RefError, match=found):
        load_changed(tmp_path, **keys)


def warned(folder: Path, **keys) -> tuple[Eagle3Draft, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DraftWarning)
        draft = load_changed(folder, **keys)
    messages = [str(warning.message) for warning in caught if warning.category is DraftWarning]
    assert draft.warnings == messages
    return draft, messages


def cut_with_d2t(tensors):
    """TorchSpec's pruning slip: head rows d2t[i] instead of i + d2t[i]."""
    full = torch.randn(tiny.VOCAB, tiny.WIDTH)
    tensors[HEAD] = full[tensors["d2t"]]


ODD = {
    "zero d2t": ({"change": setting("d2t", lambda t: t["d2t"] * 0)}, ["d2t is all zeros", "t2d marks 48"]),
    "other t2d": ({"change": setting("t2d", lambda t: ~t["t2d"])}, ["t2d marks 48"]),
    "short t2d": ({"change": setting("t2d", lambda t: t["t2d"][:-1])}, ["t2d marks"]),
    "no t2d": ({"change": without("t2d")}, []),
    "head cut with d2t": ({"change": cut_with_d2t}, ["neighbouring rows of lm_head are identical"]),
    "nothing odd": ({}, []),
}


@pytest.mark.parametrize("case", ODD)
def test_oddities_are_warned_of_and_kept(case, tmp_path):
    """Bug: an export that a server would run badly loads in silence, or a good one is warned of."""
    keys, starts = ODD[case]
    _, messages = warned(tmp_path, **keys)
    assert len(messages) == len(starts)
    assert all(message.startswith(start) or start in message for message, start in zip(messages, starts, strict=True))


def test_embedding_and_head_come_from_the_target_where_the_draft_has_none(target_folder, tmp_path):
    """Bug: an uninitialised head or embedding; the wrong matrix of the two; no word on who supplied what."""
    target = KimiK25Target.from_folder(target_folder, dtype=torch.float32)
    both = without(EMBEDDING, HEAD)
    for given in (target_folder, str(target_folder), target):
        draft, messages = warned(tmp_path, kind="mla", change=both, target=given, draft_vocab_size=None)
        assert messages == []
        assert torch.equal(draft.embed_tokens.weight, target.embedding())
        assert torch.equal(draft.lm_head.weight, target.lm_head())
        assert {draft.origins[part] for part in ("embedding", "lm_head")} == {"the target's (the draft brings none)"}
    _, messages = warned(tmp_path, kind="mla", change=without(HEAD), target=target, draft_vocab_size=tiny.VOCAB)
    assert any("uninitialised head" in message for message in messages)


def test_an_own_embedding_is_kept_and_compared(target_folder, tmp_path):
    """Bug: SGLang's silent replacement goes unnoticed, or an equal copy is warned of."""
    target = KimiK25Target.from_folder(target_folder, dtype=torch.bfloat16)
    draft, messages = warned(tmp_path, target=target)
    assert not torch.equal(draft.embed_tokens.weight, target.embedding().float())
    assert any("embedding differs from the target's" in message for message in messages)
    _, messages = warned(tmp_path, target=target, change=setting(EMBEDDING, lambda _: target.embedding().float()))
    assert messages == []


def test_a_tied_head_is_the_embedding(tmp_path):
    """Bug: tie_word_embeddings ignored, or tied to the target's head."""
    draft = load_changed(tmp_path, kind="mla", change=without(HEAD), tie_word_embeddings=True)
    assert torch.equal(draft.lm_head.weight, draft.embed_tokens.weight)


def test_a_draft_of_another_target_is_refused(target_folder, tmp_path):
    """Bug: the target's embedding taken although width or vocabulary are not the draft's."""
    with pytest.raises(Eagle3RefError, match="a target 32 wide with 96 tokens; expected 40 wide with 96"):
        load_changed(tmp_path, target=target_folder, target_hidden_size=40)


def test_a_folder_that_is_a_target_is_refused(target_folder):
    """Bug: target and draft swapped on the command line, read as far as it goes."""
    with pytest.raises(Eagle3RefError, match="KimiK25ForConditionalGeneration.*Check that this folder is a draft"):
        load_draft(target_folder)


def test_num_aux_hidden_states_sets_the_width_of_fc(tmp_path):
    """Bug: three states hard-coded."""

    def change(tensors):
        tensors[FC] = torch.randn(32, 64)

    draft = load_changed(tmp_path, change=change, num_aux_hidden_states=2, points=(2, 4))
    assert draft.fuse(torch.zeros(64)).shape == (32,)
