"""The census: every tensor of the published checkpoints has its place, and whatever has none is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod
from pathlib import Path

import kimi_files
import pytest
import tiny
import torch

from eagle3ref.config import KimiK25Config
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.checkpoint import Census, Shards, StoredTensor, expert_shapes, layer_shapes, take_census
from eagle3ref.target.checkpoint.stored_weight import WeightFinder
from eagle3ref.target.kimi_layer import KimiLayer

TINY = tiny.random_target().architecture
LAYER = "language_model.model.layers.2."
EXPERT = f"{LAYER}mlp.experts.1.up_proj.weight"
Tensors = dict[str, StoredTensor]


def stored(name: str, dtype: str, shape: Iterable[int]) -> StoredTensor:
    return StoredTensor(name, Path("x"), dtype, tuple(shape), 0, kimi_files.SIZE.get(dtype, 1) * prod(shape))


def census(tensors: Tensors, architecture: KimiK25Config = TINY) -> Census:
    return take_census(Shards(Path("folder"), (), tensors), architecture)


@pytest.fixture(scope="module")
def tiny_tensors(tmp_path_factory) -> Tensors:
    return Shards.open(tiny.target_folder(tmp_path_factory.mktemp("tiny"))).tensors


def published(listed: Iterable[kimi_files.Listed]) -> Tensors:
    return {name: stored(name, dtype, shape) for name, dtype, shape in listed}


def test_the_names_of_kimi_k25_follow_from_its_settings():
    """Catches a name that is expected in vain, or not at all: 208,215 text tensors, each INT4 weight three of them."""
    settings = kimi_files.architecture()
    layers = [layer_shapes(settings, index) for index in range(settings.num_layers)]
    routed = 3 * len(expert_shapes(settings)) * settings.moe.num_experts * (settings.num_layers - 1)
    assert sum(map(len, layers)) + routed + 3 == 208_215
    weights = sum(prod(shape) for layer in layers for shape in layer.values()) + 2 * 163840 * 7168 + 7168
    weights += 60 * 384 * sum(map(prod, expert_shapes(settings).values()))
    assert weights == 1_026_408_232_448  # 1 T parameters


def test_layers_of_kimi_k25_are_of_the_published_size():
    """Catches a shape that is not Moonshot's in one dimension: 0.995 GB for the dense layer, 9.809 GB for others."""
    every = [tensor for shard in kimi_files.kimi_k25(num_layers=2) for tensor in shard]
    found = census(published(every), replace(kimi_files.architecture(), num_layers=2))
    assert (found.num_tensors, found.num_passed_over) == (len(every) - 2, 2)
    assert found.num_bytes == kimi_files.num_bytes(every[:-2])
    assert [layer.num_bytes for layer in found.layers] == [995_000_320, 9_808_554_496]
    expert = found.layers[1].experts[383]
    assert sum(weight.num_bytes for weight in expert.values()) == 24_772_632
    down = expert["down_proj.weight"]
    assert (down.shape, down.kind) == ((7168, 2048), "int4")
    assert [part.shape for part in down.parts] == [(7168, 256), (7168, 64), (2,)]


@pytest.mark.slow
def test_kimi_k2_instruct_is_fp8_but_for_embedding_head_router_and_norms():
    """Catches blocks of a matrix whose height is no multiple of 128 (kv_a: 576), and stray rotary buffers refused."""
    every = kimi_files.kimi_k2_instruct()
    assert len(every) == 139_644
    assert round(kimi_files.num_bytes(every) / 2**30, 1) == 958.5  # GiB, as published
    found = census(published(every), kimi_files.architecture())
    assert (found.prefix, found.num_tensors, found.num_passed_over) == ("model.", 139_583, 61)
    kinds = {weight.kind for layer in found.layers for weight in layer.parameters().values() if "_proj" in weight.name}
    assert kinds == {"fp8_block"}
    assert found.layers[0].weights["self_attn.kv_a_proj_with_mqa.weight"].parts[1].shape == (5, 56)


@pytest.mark.slow
def test_the_64_shards_of_full_size_are_opened_by_their_headers_alone(tmp_path):
    """Catches a reader that maps or reads 594 GB, offsets beyond 32 bits, one name too many; the files are sparse."""
    shards = kimi_files.kimi_k25()
    opened = Shards.open(kimi_files.write_sparse(tmp_path, shards))
    assert len(opened.files) == 64
    assert (
        sum(file.stat().st_blocks * 512 for file in opened.files)
        < 100_000_000
        < sum(file.stat().st_size for file in opened.files)
    )
    found = take_census(opened, kimi_files.architecture())
    assert (found.num_tensors, found.num_passed_over, found.num_bytes) == (208_215, 2, 594_205_904_896)
    assert [len(layer.experts) for layer in found.layers] == [0] + [384] * 60
    last = found.layers[60].experts[383]["down_proj.weight"].parts[-1]
    assert last.path.name == "model-00061-of-000064.safetensors"
    assert last.start + last.num_bytes == last.path.stat().st_size
    with last.path.open("r+b") as file:
        file.truncate(last.start - 1)
    with pytest.raises(
        Eagle3RefError, match=r"model-00061-.*2 tensors cut off: .*experts\.383\.down_proj\.weight_scale"
    ):
        Shards.open(tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        TINY,
        replace(TINY, attention=replace(TINY.attention, q_lora_rank=None)),
        replace(TINY, moe=replace(TINY.moe, num_shared_experts=0)),
        replace(TINY, moe=replace(TINY.moe, num_shared_experts=3), num_dense_layers=2),
    ],
)
def test_names_and_shapes_are_those_of_the_layer_that_is_built(settings):
    """Catches a parameter that the census does not look for, or looks for in vain."""
    for index in (0, 1, 2):
        with torch.device("meta"):
            layer = KimiLayer(settings, index, 1e-5)
        expected = {name: tuple(parameter.shape) for name, parameter in layer.named_parameters()}
        routed = {
            f"mlp.experts.{expert}.{name}": shape
            for expert in range(settings.moe.num_experts * (index >= settings.num_dense_layers))
            for name, shape in expert_shapes(settings).items()
        }
        assert layer_shapes(settings, index) | routed == expected


LAYOUTS = {
    "Moonshot's K2.5": (lambda n: n, "language_model.model."),
    "K2, and transformers' save of the text model": (lambda n: n.removeprefix("language_model."), "model."),
    "newer transformers": (
        lambda n: n.replace("language_model.model.", "model.language_model.").replace("language_model.lm", "lm"),
        "model.language_model.",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_names_is_read(layout, tiny_tensors):
    """Catches a prefix that is looked for in one place and not in the other, e.g. of the head."""
    rename, prefix = LAYOUTS[layout]
    found = census({rename(name): tensor for name, tensor in tiny_tensors.items()})
    assert (found.prefix, found.num_tensors) == (prefix, len(tiny_tensors))
    assert found.layers[2].parameters().keys() == census(tiny_tensors).layers[2].parameters().keys()


def test_vision_tensors_and_rotary_buffers_are_passed_over(tiny_tensors):
    """Catches the full checkpoint refused for its vision tower, and a text tensor passed over with it."""
    extra = ("vision_tower.x", "mm_projector.y", "model.mm_projector.pre_norm.weight", f"{LAYER}rotary_emb.inv_freq")
    found = census(tiny_tensors | {name: stored(name, "F32", (1,)) for name in extra})
    assert (found.num_tensors, found.num_passed_over) == (len(tiny_tensors), 4)
    assert found.num_bytes == sum(tensor.num_bytes for tensor in tiny_tensors.values())


def test_weight_shape_may_be_int64(tiny_tensors):
    """Catches compressed-tensors' newer files refused: Moonshot wrote int32."""
    name = f"{EXPERT}_shape"
    assert census(tiny_tensors | {name: stored(name, "I64", (2,))}).num_tensors == len(tiny_tensors)


def swap(name: str, dtype: str, shape: tuple[int, ...]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: stored(name, dtype, shape)})


def without(*names: str) -> Callable[[Tensors], object]:
    return lambda tensors: [tensors.pop(name) for name in names]


PROBLEMS: dict[str, tuple[Callable[[Tensors], object], int, str]] = {
    "no norm": (without("language_model.model.norm.weight"), 1, "no tensor language_model.model.norm.weight"),
    "no head": (without("language_model.lm_head.weight"), 1, "no tensor language_model.lm_head.weight"),
    "no embedding": (without("language_model.model.embed_tokens.weight"), 1, "no tensor .*embed_tokens.weight"),
    "no bias": (without(f"{LAYER}mlp.gate.e_score_correction_bias"), 1, "no tensor .*e_score_correction_bias"),
    "scale without packed": (without(f"{EXPERT}_packed"), 1, f"no tensor {EXPERT}_packed"),
    "packed without scale": (without(f"{EXPERT}_scale"), 1, f"no tensor {EXPERT}_scale"),
    "packed without shape": (without(f"{EXPERT}_shape"), 1, f"no tensor {EXPERT}_shape"),
    "a weight gone whole": (
        without(*(f"{EXPERT}_{p}" for p in ("packed", "scale", "shape"))),
        1,
        f"no tensor {EXPERT}",
    ),
    "plain and packed": (swap(EXPERT, "BF16", (32, 32)), 1, f"both {EXPERT} and {EXPERT}_packed"),
    "a norm of another width": (
        swap(f"{LAYER}input_layernorm.weight", "BF16", (9,)),
        1,
        rf"{LAYER}input_layernorm.weight is BF16 \[9\], not BF16 \[32\]",
    ),
    "a weight turned over": (
        swap(f"{LAYER}mlp.shared_experts.up_proj.weight", "BF16", (1024,)),
        1,
        r"not BF16 \[32, 32\]",
    ),
    "packed into int64": (swap(f"{EXPERT}_packed", "I64", (32, 4)), 1, r"is I64 \[32, 4\], not I32 \[32, 4\]"),
    "scales in fp32": (swap(f"{EXPERT}_scale", "F32", (32, 1)), 1, r"is F32 \[32, 1\], not BF16 \[32, 1\]"),
    "groups of another size": (swap(f"{EXPERT}_scale", "BF16", (32, 2)), 1, r"is BF16 \[32, 2\], not BF16 \[32, 1\]"),
    "a shape of three": (swap(f"{EXPERT}_shape", "I32", (3,)), 1, r"is I32 \[3\], not I32 \[2\]"),
    "an embedding in integers": (
        swap("language_model.model.embed_tokens.weight", "I32", (96, 32)),
        1,
        "not BF16 or F16",
    ),
    "FP8 without its scale": (
        swap(f"{LAYER}self_attn.o_proj.weight", "F8_E4M3", (32, 32)),
        1,
        f"no tensor {LAYER}self_attn.o_proj.weight_scale_inv",
    ),
    "FP8 leftovers": (swap(f"{LAYER}mlp.gate.weight_scale_inv", "F32", (1,)), 1, "unknown .*gate.weight_scale_inv"),
    "one layer too many": (swap("language_model.model.layers.7.x", "F32", (1,)), 1, r"unknown .*layers\.7\.x"),
    "one expert too many": (swap(f"{LAYER}mlp.experts.4.x", "F32", (1,)), 1, r"unknown .*experts\.4\.x"),
    "two prefixes": (swap("model.norm.weight", "F32", (32,)), 1, r"unknown model\.norm\.weight"),
    "a biased projection": (swap(f"{LAYER}self_attn.o_proj.bias", "BF16", (32,)), 1, r"unknown .*o_proj\.bias"),
    "a whole layer": (
        lambda t: [t.pop(name) for name in list(t) if name.startswith(LAYER)],
        (2 + 5 + 2) + 2 + 3 + 3 * 4,  # norms and attention, router, shared expert, experts
        rf"no tensor {LAYER}input_layernorm\.weight; no tensor .*; and 23 more",
    ),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_what_does_not_fit_is_counted_and_named_before_any_weight_is_read(problem, tiny_tensors):
    """Catches a tensor that is missing, unknown, of another dtype or shape, or there twice, and goes unnoticed."""
    change, number, found = PROBLEMS[problem]
    tensors = dict(tiny_tensors)
    change(tensors)
    with pytest.raises(Eagle3RefError, match=rf"found {number} problems?: .*{found}"):
        census(tensors)


def test_a_dense_layer_where_experts_are_expected_is_refused(tiny_tensors):
    """Catches first_k_dense_replace that is not the files'."""
    with pytest.raises(Eagle3RefError, match=r"no tensor language_model\.model\.layers\.1\.mlp\.gate_proj\.weight"):
        census(tiny_tensors, replace(TINY, num_dense_layers=2))


def test_columns_that_are_not_whole_groups_cannot_be_int4():
    """Catches 48 columns taken for one group of 32, with the rest cut off."""
    parts = (("packed", "I32", (8, 6)), ("scale", "BF16", (8, 1)), ("shape", "I32", (2,)))
    finder = WeightFinder({(name := f"a_proj.weight_{part}"): stored(name, *rest) for part, *rest in parts})
    finder.find("a_proj.weight", (8, 48))
    assert finder.problems == ["a_proj.weight is INT4, although 48 columns are not whole groups of 32"]


def expert_as(*parts: tuple[str, str]) -> list[StoredTensor]:
    """The tensors of one expert's matrix in another format; shapes do not matter, names and dtypes tell."""
    return [stored(f"{EXPERT.removesuffix('weight')}{last}", dtype, (32, 16)) for last, dtype in parts]


FORMATS = {
    "NVFP4": [
        expert_as(("weight", "U8"), ("weight_scale", "F8_E4M3"), ("weight_scale_2", "F32"), ("input_scale", "F32")),
        expert_as(("weight_packed", "U8"), ("weight_scale", "F8_E4M3"), ("weight_global_scale", "F32")),
        expert_as(("weight", "U8"), ("weight_scale", "F8_E4M3")),
    ],
    "MXFP4": [
        expert_as(("weight", "U8"), ("weight_scale", "U8")),
        expert_as(("weight_packed", "U8"), ("weight_scale", "F8_E8M0")),
        expert_as(("weight", "F4"), ("weight_scale", "F8_E8M0")),
        [stored(f"{LAYER}mlp.experts.gate_up_proj_blocks", "U8", (4, 4))],
    ],
    "AWQ or GPTQ": [
        expert_as(("qweight", "I32"), ("qzeros", "I32"), ("scales", "F16")),
        expert_as(("qweight", "I32"), ("g_idx", "I32"), ("scales", "F16")),
    ],
    "MLX": [expert_as(("weight", "U32"), ("scales", "BF16"), ("biases", "BF16"))],
    "bitsandbytes": [[*expert_as(("weight", "U8")), stored(f"{EXPERT}.absmax", "F32", (4,))]],
    "W4A8 (W4AFP8) or INT8": [
        expert_as(("weight", "I8"), ("weight_scale_inv", "BF16"), ("input_scale", "F32")),
        expert_as(("weight", "I8"), ("weight_scale", "F32")),
    ],
    "INT4 with zero points or reordered columns": [
        expert_as(("weight_packed", "I32"), ("weight_scale", "BF16"), ("weight_zero_point", "I32")),
        expert_as(("weight_packed", "I32"), ("weight_scale", "BF16"), ("weight_g_idx", "I32")),
    ],
    "MXFP8": [expert_as(("weight", "F8_E4M3"), ("weight_scale_inv", "U8"))],
    "FP8 with a scale for each channel, tensor or compressed-tensors block": [
        expert_as(("weight", "F8_E4M3"), ("weight_scale", "F32")),
        expert_as(("weight", "F8_E4M3"), ("weight_scale", "F32"), ("input_scale", "F32")),
    ],
}


@pytest.mark.parametrize(("name", "tensors"), [(name, case) for name, cases in FORMATS.items() for case in cases])
def test_other_quantizations_are_refused_by_name(name, tensors, tiny_tensors):
    """Catches a format told as "3 unknown tensors", or taken for another that shares its names."""
    ours = {each: tensor for each, tensor in tiny_tensors.items() if not each.startswith(EXPERT)}
    with pytest.raises(Eagle3RefError) as caught:
        census(ours | {tensor.name: tensor for tensor in tensors})
    assert f"found {name}: " in str(caught.value)
    assert any(str(tensor) in str(caught.value) for tensor in tensors)
    assert "use Moonshot's own files or a bf16 copy" in str(caught.value)


def test_quantized_vision_does_not_count(tiny_tensors):
    """Catches a format read off tensors that are passed over anyway."""
    name = "vision_tower.blocks.0.weight_scale_2"
    assert census(tiny_tensors | {name: stored(name, "F32", (1,))}).num_passed_over == 1
