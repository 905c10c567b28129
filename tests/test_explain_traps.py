"""Each trap is planted in a clean pair and must be named; the clean pairs must have none."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import tiny
import torch
from torch import Tensor

from eagle3ref import Eagle3RefError, Explanation, explain, load_draft
from eagle3ref.draft import export_draft
from eagle3ref.explain import traps
from eagle3ref.explain.traps import ALL_TRAPS
from eagle3ref.target import shared_weights

LLAMA, KIMI = "LlamaForCausalLM", "KimiK25ForConditionalGeneration"
SGLANG, VLLM = "sglang==0.5.23", "vllm==0.32.0"
VLLM_FLAGS = ["-sc", '{"method": "eagle3", "model": "draft", "num_speculative_tokens": 3}']
SGLANG_FLAGS = ["--speculative-algorithm", "EAGLE3"]
CHAIN = ["--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"]
TREE = ["--speculative-num-steps", "3", "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8"]
FLAGS = {"sglang": [*SGLANG_FLAGS, *CHAIN], "vllm": VLLM_FLAGS, "vllm-cpu": VLLM_FLAGS}
TRAP_FILES = [file for file in Path(traps.__file__).parent.glob("*.py") if file.stem != "__init__"]
Tensors = dict[str, Tensor]


def vllm_flags(**settings: Any) -> list[str]:
    return ["-sc", json.dumps({"method": "eagle3", "model": "draft", "num_speculative_tokens": 3, **settings})]


def ids(*layers: int) -> dict[str, Any]:
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(layers)}}


def write_target(folder: Path, architecture: str = LLAMA, layers: int = 7, context: int | None = 4096) -> Path:
    """Only a config.json: an explanation reads no more of a target."""
    text = {
        "architectures": [architecture],
        "model_type": "llama" if architecture == LLAMA else "kimi_k25",
        "num_hidden_layers": layers,
        "hidden_size": tiny.WIDTH,
        "vocab_size": tiny.VOCAB,
        "max_position_embeddings": context,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(text))
    return folder


@dataclass
class Pair:
    """A pair that is clean unless something is planted in it."""

    engine: str = SGLANG
    kind: str = "gqa"
    architecture: str = LLAMA
    flags: list[str] | None = None
    keys: dict[str, Any] = field(default_factory=dict)
    written: dict[str, Any] = field(default_factory=dict)  # into config.json, without the tensors that it would need
    change: Callable[[Tensors], object] = dict  # leaves them as they are
    layers: int = 1
    prompt_length: int | None = None
    capture_points: tuple[int, ...] | None = None
    context: int | None = 4096

    def explain(self, folder: Path) -> Explanation:
        right = ids(1, 2, 3) if (self.engine.startswith("sglang") and self.architecture == LLAMA) else ids(2, 3, 4)
        if self.engine.startswith("vllm"):
            right = {"eagle_aux_hidden_state_layer_ids": [2, 3, 4], "eagle_config": ...}
        config, tensors = tiny.draft_parts(self.kind, num_layers=self.layers, **{**right, **self.keys})
        config = {"num_hidden_layers": 1, **config, **self.written}
        config = {key: value for key, value in config.items() if value is not ...}
        tensors.pop("embed_tokens.weight")
        self.change(tensors)
        flags = FLAGS[self.engine.split("=")[0]] if self.flags is None else self.flags
        return explain(
            tiny.write_draft(folder / "draft", config, tensors),
            write_target(folder / "target", self.architecture, context=self.context),
            self.engine,
            flags,
            prompt_length=self.prompt_length,
            capture_points=self.capture_points,
        )


def rename(old: str, new: str) -> Callable[[Tensors], object]:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if old in name]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    return change


def drop(*names: str) -> Callable[[Tensors], object]:
    return lambda tensors: [tensors.pop(name) for name in names]


def add(name: str, *shape: int) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: torch.ones(shape)})


def absolute_d2t(tensors: Tensors) -> None:
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))


START, FIRST, SILENT, HARMLESS = (
    "fails at start",
    "fails at first forward",
    "silent, costs acceptance",
    "harmless",
)
CAPTURE_OFF = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": False}}
MLA: dict[str, Any] = {"kind": "mla", "architecture": KIMI}
FLAG_TRAPS = [
    ("wrong-algorithm", SILENT, "1.0 to 1.1", Pair(flags=["--speculative-algorithm", "EAGLE", *CHAIN])),
    ("wrong-algorithm", SILENT, "1.0 to 1.1", Pair(**MLA, flags=["--speculative-algorithm", "NEXTN", *CHAIN])),
    (
        "wrong-algorithm",
        FIRST,
        "shape error",
        Pair(
            flags=["--speculative-algorithm", "EAGLE", *CHAIN],
            keys={"hidden_size": 16, "target_hidden_size": tiny.WIDTH, "head_dim": 4},
        ),
    ),
    ("wrong-algorithm", START, "Unknown", Pair(flags=["--speculative-algorithm", "EAGLE-3", *CHAIN])),
    ("wrong-algorithm", SILENT, "EAGLE-3 draft", Pair(flags=["--speculative-algorithm", "NGRAM", *CHAIN])),
    ("wrong-algorithm", START, "EagleLlamaForCausalLMEagle3", Pair(engine=VLLM, flags=vllm_flags(method="eagle"))),
    ("wrong-algorithm", SILENT, "", Pair(**MLA, engine=VLLM, flags=vllm_flags(method="eagle"))),
    ("wrong-algorithm", SILENT, "", Pair(engine=VLLM, flags=vllm_flags(method=None, model="my/draft"))),
    ("wrong-algorithm", START, "not supported", Pair(engine=VLLM, flags=vllm_flags(method=None, model="eagle-eagle3"))),
    ("speculation-off", SILENT, "no accept len", Pair(flags=CHAIN)),
    ("unknown-flag", START, "unrecognized", Pair(flags=[*FLAGS["sglang"], "--speculative-eagle-top-k", "1"])),
    ("unknown-flag", START, "unrecognized", Pair(engine=VLLM, flags=["--speculative-algorithm", "EAGLE3"])),
    ("speculation-assumed", HARMLESS, "not speculate", Pair(flags=[])),
    ("speculation-assumed", HARMLESS, "not speculate", Pair(engine=VLLM, flags=[])),
    ("speculation-assumed", HARMLESS, "not speculate", Pair(engine=VLLM, flags=["--speculative-algorithm", "EAGLE3"])),
    ("speculation-assumed", HARMLESS, "not speculate", Pair(flags=["--context-length", "4096"])),
    ("incomplete-config", START, "must be provided", Pair(engine=VLLM, flags=vllm_flags(num_speculative_tokens=None))),
    ("incomplete-config", START, "without speculative model", Pair(engine=VLLM, flags=vllm_flags(model=None))),
    ("unknown-flag", START, "ValidationError", Pair(engine=VLLM, flags=vllm_flags(speculative_token_tree="[(0,)]"))),
    ("other-folder", HARMLESS, "same files", Pair(engine=VLLM, flags=vllm_flags(model="my/other"))),
    ("other-folder", HARMLESS, "same files", Pair(flags=[*FLAGS["sglang"], "--model-path", "org/other"])),
    ("unknown-backend", HARMLESS, "error", Pair(flags=[*FLAGS["sglang"], "--attention-backend", "flash3"])),
    ("incomplete-tree", START, "TypeError", Pair(flags=[*SGLANG_FLAGS, "--speculative-num-steps", "3"])),
    ("incomplete-tree", START, "AssertionError", Pair(flags=[*SGLANG_FLAGS, "--speculative-num-draft-tokens", "4"])),
    ("incomplete-tree", START, "TypeError", Pair(flags=[*SGLANG_FLAGS, *TREE[:4]])),
    (
        "incomplete-tree",
        START,
        "AssertionError",
        Pair(flags=[*SGLANG_FLAGS, "--speculative-adaptive", "--speculative-eagle-topk", "4"]),
    ),
    ("too-many-draft-tokens", FIRST, "topk", Pair(flags=[*SGLANG_FLAGS, *TREE[:5], "99"])),
    ("adjusted-chain", HARMLESS, "warning", Pair(flags=[*SGLANG_FLAGS, *CHAIN[:5], "8"])),
    ("adaptive", HARMLESS, "mixture", Pair(flags=[*FLAGS["sglang"], "--speculative-adaptive"])),
    ("token-map", HARMLESS, "d2t", Pair(flags=[*FLAGS["sglang"], "--speculative-token-map", "map.pt"])),
    ("topk-refused", START, "ValueError", Pair(flags=[*SGLANG_FLAGS, *TREE, "--attention-backend", "trtllm_mha"])),
    (
        "topk-refused",
        START,
        "ValueError",
        Pair(**MLA, flags=[*SGLANG_FLAGS, *TREE, "--attention-backend", "flashinfer"]),
    ),
    (
        "paged-topk-refused",
        START,
        "ValueError",
        Pair(flags=[*SGLANG_FLAGS, *TREE, "--attention-backend", "fa4", "--page-size", "64"]),
    ),
    ("unnamed-backend", HARMLESS, "GPU", Pair(**MLA, flags=[*SGLANG_FLAGS, *TREE])),
    ("inherited-backend", FIRST, "error", Pair(flags=[*FLAGS["sglang"], "--attention-backend", "flashmla"])),
    (
        "rejection-refused",
        START,
        "ValueError",
        Pair(flags=[*FLAGS["sglang"], "--speculative-use-rejection-sampling"]),
    ),
    (
        "rejection-refused",
        START,
        "ValueError",
        Pair(**MLA, flags=[*SGLANG_FLAGS, *TREE, "--speculative-use-block-verification"]),
    ),
    (
        "low-thresholds",
        "silent, changes the text",
        "temperature",
        Pair(flags=[*FLAGS["sglang"], "--speculative-accept-threshold-single", "0.5"]),
    ),
    (
        "inherited-quantization",
        SILENT,
        "load",
        Pair(flags=[*FLAGS["sglang"], "--quantization", "fp8"]),
    ),
    ("draft-window", SILENT, "", Pair(flags=[*FLAGS["sglang"], "--speculative-draft-window-size", "512"])),
    ("draft-window", HARMLESS, "", Pair(**MLA, flags=[*FLAGS["sglang"], "--speculative-draft-window-size", "512"])),
    ("short-context", START, "SGLANG_ALLOW", Pair(context=262144)),
    ("short-context", START, "SGLANG_ALLOW", Pair(flags=[*FLAGS["sglang"], "--context-length", "8192"])),
    ("short-rope", SILENT, "4,096", Pair(prompt_length=5000)),
    ("short-rope", SILENT, "4,096", Pair(engine=VLLM, prompt_length=5000)),
    ("short-rope", SILENT, "4,096", Pair(engine=VLLM, flags=[*VLLM_FLAGS, "--max-model-len", "5000"])),
]
FILE_TRAPS = [
    ("capture-off", SILENT, "accept len about 1.00", Pair(keys=CAPTURE_OFF)),
    ("capture-off", SILENT, "accept len about 1.00", Pair(**MLA, keys=CAPTURE_OFF)),
    (
        "capture-off",
        FIRST,
        "shape error",
        Pair(keys={**CAPTURE_OFF, "hidden_size": 16, "target_hidden_size": tiny.WIDTH, "head_dim": 4}),
    ),
    ("capture-off", SILENT, "fc is not built", Pair(engine=VLLM, written=CAPTURE_OFF)),
    ("ids-outside", FIRST, "", Pair(keys=ids(-2, 2, 3))),
    ("ids-outside", FIRST, "captured x of y", Pair(**MLA, keys=ids(-1, 2, 3))),
    ("ids-outside", FIRST, "captured x of y", Pair(**MLA, keys=ids(2, 3, 7))),
    ("ids-outside", FIRST, "", Pair(keys=ids(1, 2, 6))),
    ("other-capture-points", SILENT, "tenth of a token", Pair(keys=ids(2, 3, 4))),
    ("other-capture-points", SILENT, "tenth of a token", Pair(**MLA, engine="sglang==0.5.12", keys=ids(2, 3, 4))),
    ("training-unknown", SILENT, "", Pair(keys=ids(0, 2, 4))),
    ("unsupported-target", START, "EAGLE-3", Pair(**MLA, engine="vllm==0.17.0")),
    (
        "ids-not-read",
        HARMLESS,
        "happens to be",
        Pair(keys={"eagle_config": ..., "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}),
    ),
    (
        "ids-not-read",
        SILENT,
        "no error",
        Pair(keys={"eagle_config": ..., "eagle_aux_hidden_state_layer_ids": [1, 3, 5]}),
    ),
    ("ids-out-of-order", SILENT, "order", Pair(**MLA, keys=ids(4, 2, 3), capture_points=(2, 3, 4))),
    ("missing-lm-head", SILENT, "accept len 1.00", Pair(change=drop("lm_head.weight"))),
    ("missing-lm-head", SILENT, "accept len 1.00", Pair(**MLA, change=drop("lm_head.weight"))),
    ("missing-lm-head", FIRST, "shape error", Pair(engine=VLLM, change=drop("lm_head.weight"))),
    ("replaced-lm-head", SILENT, "no error", Pair(keys={"draft_vocab_size": ...}, written={"draft_vocab_size": None})),
    ("unsupported-architecture", START, "serves", Pair(keys={"architectures": ["LlamaForCausalLM"]})),
    ("unsupported-architecture", START, "no mla draft", Pair(**MLA, engine="sglang==0.5.11", keys=ids(1, 2, 3))),
    ("taken-for-mtp", START, "MTP", Pair(**MLA, engine=VLLM, keys={"model_type": "deepseek_v3"})),
    ("too-many-layers", START, "1 layer", Pair(**MLA, keys={"num_hidden_layers": 2}, layers=2)),
    ("other-number-of-layers", SILENT, "memory", Pair(keys={"num_hidden_layers": 36})),
    ("null-target-hidden-size", START, "TypeError", Pair(keys={"target_hidden_size": None})),
    ("null-target-hidden-size", START, "TypeError", Pair(engine=VLLM, **MLA, keys={"target_hidden_size": None})),
    ("no-draft-vocab-size", START, "AttributeError", Pair(keys={"draft_vocab_size": ...})),
    ("missing-tensors", SILENT, "random", Pair(change=rename("midlayer.", "midlayer.0."))),
    ("missing-tensors", SILENT, "a warning", Pair(**MLA, change=rename("layers.0.", "model.layers.0."))),
    ("missing-tensors", SILENT, "random", Pair(layers=2, keys={"num_hidden_layers": 2})),
    ("dropped-tensors", SILENT, "no error", Pair(change=add("midlayer.foo.weight", 3))),
    ("dropped-tensors", SILENT, "a warning", Pair(**MLA, change=add("layers.0.foo.weight", 3))),
    ("unsaid-vocabulary", START, "AttributeError", Pair(written={"draft_vocab_size": ...})),
    ("unsaid-vocabulary", SILENT, "rows", Pair(written={"draft_vocab_size": None})),
    ("unsaid-vocabulary", START, "assertion", Pair(engine=VLLM, written={"draft_vocab_size": ...})),
    ("unknown-tensors", START, "ValueError", Pair(engine=VLLM, change=add("midlayer.extra.weight", 3))),
    ("unknown-tensors", START, "ValueError", Pair(engine=VLLM, **MLA, keys={"norm_before_fc": True})),
    ("wrong-shapes", START, "assertion", Pair(change=add("fc.weight", tiny.WIDTH, 2 * tiny.WIDTH))),
    ("wrong-shapes", START, "assertion", Pair(**MLA, written={"v_head_dim": 4})),
    ("missing-d2t", SILENT, "accept len about 1", Pair(change=drop("d2t", "t2d"))),
    ("wrong-d2t", SILENT, "wrong tokens", Pair(change=absolute_d2t)),
    ("wrong-d2t", SILENT, "wrong tokens", Pair(change=lambda tensors: tensors["d2t"].unsqueeze_(1))),
    ("wrong-d2t", SILENT, "only target ids below", Pair(change=lambda tensors: tensors["d2t"].zero_())),
    ("unnamed-quantization", SILENT, "unscaled", Pair(change=add("fc.weight_scale", tiny.WIDTH, 1))),
    (
        "dropped-scales",
        SILENT,
        "unscaled",
        Pair(change=add("fc.weight_scale", tiny.WIDTH, 1), written={"quantization_config": {"quant_method": "fp8"}}),
    ),
    ("ignored-key", SILENT, "another network", Pair(keys={"norm_before_residual": True})),
    ("ignored-key", SILENT, "another network", Pair(**MLA, keys={"norm_before_fc": True})),
    ("ignored-key", SILENT, "another network", Pair(keys={"attention_bias": True})),
    ("ignored-key", HARMLESS, "greedy", Pair(keys={"logit_scale": 2.0})),
    (
        "missing-key",
        SILENT,
        "normed residual",
        Pair(engine=VLLM, written={"speculators_model_type": "eagle3", "architectures": ["Eagle3DraftModel"]}),
    ),
    ("norm-output", SILENT, "fed back", Pair(keys={"norm_output": True})),
    (
        "skipped-fc",
        SILENT,
        "skipped",
        Pair(keys={"hidden_size": 96, "target_hidden_size": tiny.WIDTH, "head_dim": 24}),
    ),
]
CLEAN = [
    Pair(),
    Pair(**MLA),
    Pair(engine=VLLM),
    Pair(engine=VLLM, **MLA),
    Pair(flags=["--speculative-algorithm", "eagle3", *TREE, "--attention-backend", "fa3"]),
    Pair(**MLA, flags=[*SGLANG_FLAGS, *CHAIN, "--speculative-use-rejection-sampling"]),
    Pair(**MLA, keys=ids(1, 2, 3)),
    Pair(engine="sglang==0.5.12", **MLA, keys=ids(1, 2, 3)),
    Pair(prompt_length=4096, context=4096),
    Pair(context=None),  # a target that does not say how long its context is
    Pair(keys={"fc_norm": True, "norm_before_fc": False}),
    Pair(engine=VLLM, keys={"norm_before_residual": True}),
    Pair(engine=VLLM, keys={"fc_norm": True, "use_aux_norm": True}),
    Pair(engine=VLLM, flags=vllm_flags(method=None, model="AngelSlim/Qwen3-8B_eagle3/draft")),
    Pair(flags=[*FLAGS["sglang"], "--model-path", "a/target", "--speculative-draft-model-path", "a/draft"]),
    Pair(change=add("verifier_norm.weight", 3)),
    Pair(engine=VLLM, change=add("layers.0.self_attn.rotary_emb.inv_freq", 4)),
    *(
        Pair(
            engine=engine,
            **MLA,
            change=add("fc.weight_scale", tiny.WIDTH, 1),
            written={"quantization_config": {"quant_method": "compressed-tensors"}},
        )
        for engine in (SGLANG, VLLM)
    ),
]


@pytest.mark.parametrize(("name", "severity", "seen", "pair"), [*FLAG_TRAPS, *FILE_TRAPS])
def test_a_planted_trap_is_named(name: str, severity: str, seen: str, pair: Pair, tmp_path: Path) -> None:
    """Catches the failure of that name going unnoticed until a server runs, and one called by another severity."""
    explanation = pair.explain(tmp_path)
    found = [trap for trap in explanation.traps if trap.name == name]
    assert found, [trap.name for trap in explanation.traps]
    assert found[0].severity == severity
    assert seen in found[0].seen
    assert found[0].fix.endswith((".", f"--target {explanation.case.target_folder}"))
    assert found[0].source.where
    assert explanation.is_wrong == any(trap.severity != HARMLESS for trap in explanation.traps)


@pytest.mark.parametrize("pair", CLEAN)
def test_a_clean_pair_has_no_trap(pair: Pair, tmp_path: Path) -> None:
    """Catches false alarms, which make people stop reading."""
    explanation = pair.explain(tmp_path)
    assert explanation.traps == ()
    assert not explanation.is_wrong


@pytest.mark.parametrize("engine", [SGLANG, VLLM])
@pytest.mark.parametrize("value", [None, ...])
def test_a_vocabulary_that_is_not_said_is_one_trap_with_the_right_number(
    engine: str, value: object, tmp_path: Path
) -> None:
    """Catches advice to write the target's vocabulary, beside a head and a d2t that are smaller."""
    (trap,) = Pair(engine=engine, written={"draft_vocab_size": value}).explain(tmp_path).traps
    assert f"Write draft_vocab_size {tiny.DRAFT_VOCAB} (lm_head and d2t" in trap.fix
    assert ("null" in trap.what) == (value is None)


def test_tensors_of_an_ignored_key_are_told_once(tmp_path: Path) -> None:
    """Catches one cause as two traps: the biases are dropped because the key is not read."""
    assert [trap.name for trap in Pair(keys={"attention_bias": True}).explain(tmp_path).traps] == ["ignored-key"]


def test_a_folder_of_the_command_is_compared_by_where_it_leads(tmp_path: Path) -> None:
    """Catches another copy of the same name passed over, and false alarms for links, and for a hub's local cache."""
    target = write_target(tmp_path / "target")
    cached = tiny.draft_folder(tmp_path / "models--org--mine" / "snapshots" / "1a2b", "gqa", **ids(1, 2, 3))
    copy = tiny.draft_folder(tmp_path / "copies" / "1a2b", "gqa", **ids(1, 2, 3))
    (tmp_path / "link").symlink_to(cached)

    def named(path: object) -> list[str]:
        flags = [*FLAGS["sglang"], "--speculative-draft-model-path", str(path)]
        return [trap.what for trap in explain(cached, target, SGLANG, flags).traps if trap.name == "other-folder"]

    assert named(tmp_path / "link") == named(cached) == named("org/mine") == []
    assert len(named(copy)) == len(named("org/yours")) == 1
    assert str(copy) in named(copy)[0]
    assert str(cached) in named(copy)[0]


def test_every_trap_is_planted_here() -> None:
    """Catches a new trap without a test."""
    names = {name for file in TRAP_FILES for name in re.findall(r'Trap\(\s*"([\w-]+)"', file.read_text())}
    planted = {name for name, *_ in (*FLAG_TRAPS, *FILE_TRAPS)}
    assert names - planted == {"replaced-embedding"}  # needs a target with weights, see below
    assert planted <= names


def test_a_replaced_embedding_is_compared_if_it_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a harmless replacement that is called a loss, a loss that is not, and a look that reads gigabytes."""
    target = tiny.target_folder(tmp_path / "target")
    config, tensors = tiny.draft_parts("mla")
    tiny.write_draft(tmp_path / "other", config, tensors)
    tensors["embed_tokens.weight"] = shared_weights(target).embedding()
    tiny.write_draft(tmp_path / "same", config, tensors)

    def severities(draft: str) -> list[str]:
        found = explain(tmp_path / draft, target, SGLANG, FLAGS["sglang"]).traps
        return [trap.severity for trap in found if trap.name == "replaced-embedding"]

    assert severities("other") == [SILENT]
    assert severities("same") == []
    monkeypatch.setattr(sys.modules["eagle3ref.explain.wiring"], "_MOST_BYTES_READ", 100)
    assert severities("other") == severities("same") == [HARMLESS]


def test_every_trap_function_is_registered() -> None:
    """Catches a trap that is written and never looked for."""
    modules = [importlib.import_module(f"eagle3ref.explain.traps.{file.stem}") for file in TRAP_FILES]
    public = {
        function.__name__
        for module in modules
        for function in vars(module).values()
        if getattr(function, "__module__", "") == module.__name__ and not function.__name__.startswith("_")
    }
    assert public == {function.__name__ for function in ALL_TRAPS}


def test_the_worst_comes_first(tmp_path: Path) -> None:
    """Catches a list in which a server that does not start stands below a remark."""
    pair = Pair(flags=[*SGLANG_FLAGS, *CHAIN[:5], "8"], keys={**ids(2, 3, 4), "target_hidden_size": None})
    assert [trap.severity for trap in pair.explain(tmp_path).traps] == [START, SILENT, HARMLESS]


def test_a_draft_that_switches_capture_off_gets_no_states(tmp_path: Path) -> None:
    """Catches layers named as captured, or a second trap about them, on a server that captures nothing."""
    config = ids(2, 3, 4)["eagle_config"] | {"use_aux_hidden_state": False}
    explanation = Pair(keys={"eagle_config": config}).explain(tmp_path)
    assert [trap.name for trap in explanation.traps if trap.is_wrong] == ["capture-off"]
    assert explanation.to_dict()["captured"] is None
    assert any(line.text.startswith("none; the draft gets") for line in explanation.statements)


def test_another_target_is_bad_input(tmp_path: Path) -> None:
    """Catches an explanation of a pair that cannot belong together."""
    with pytest.raises(Eagle3RefError, match="another target"):
        Pair(keys={"target_hidden_size": 64}).explain(tmp_path)


@pytest.mark.parametrize(
    ("engine", "pair_ids", "fix"),
    [
        (VLLM, ids(1, 2, 3), "eagle_aux_hidden_state_layer_ids = [2, 3, 4] into"),
        ("vllm==0.10.0", ids(1, 2, 3), "cannot be told"),
        ("tensorrt-llm", ids(2, 3, 4), "eagle3_layers_to_capture = [1, 2, 3] at launch"),
        (SGLANG, {"eagle_config": ..., "eagle_aux_hidden_state_layer_ids": [2, 3, 4]}, "layer_ids = [1, 2, 3] into"),
    ],
)
def test_following_the_advice_on_ids_captures_what_the_draft_was_trained_on(
    engine: str, pair_ids: dict[str, Any], fix: str, tmp_path: Path
) -> None:
    """Catches ids that are moved to another engine's key as they are, where they mean other layers; and a crash for
    engines that read no key."""
    keys = {"eagle_aux_hidden_state_layer_ids": ..., **pair_ids}
    (trap,) = [
        trap for trap in Pair(engine, keys=keys, flags=[]).explain(tmp_path).traps if trap.name == "ids-not-read"
    ]
    assert fix in trap.fix


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("points", [(2, 3, 4), (3, 4, 5)])
def test_an_export_has_no_trap_on_the_engine_that_it_was_made_for(
    engine: Literal["sglang", "vllm"], points: tuple[int, ...], tmp_path: Path
) -> None:
    """Catches the points that an export notes for itself taken for the list of ids that the engine reads."""
    target = tiny.target_folder(tmp_path / "target")
    for kind in ("gqa", "mla"):
        config, tensors = tiny.draft_parts(kind, max_position_embeddings=262144)
        folder = tiny.write_draft(tmp_path / kind, config, tensors)
        loaded = load_draft(folder, target=target, capture_points=points)
        loaded.embed_tokens.weight.data.copy_(shared_weights(target).embedding())
        copy = export_draft(loaded, tmp_path / f"{kind}-copy", format=engine, target=target)
        assert [trap.name for trap in explain(copy, target, engine, FLAGS[engine]).traps if trap.is_wrong] == []


@pytest.mark.parametrize("layers", ["1", [1], 1.5, 0])
def test_a_count_of_layers_that_is_none_is_bad_input(layers: object, tmp_path: Path) -> None:
    """Catches a traceback, and a count that is rounded."""
    with pytest.raises(Eagle3RefError, match="num_hidden_layers"):
        Pair(written={"num_hidden_layers": layers}).explain(tmp_path)
