"""Which device holds which layer, and what crosses a border between two of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target import load_target, placement
from eagle3ref.target.checkpoint import open_census
from eagle3ref.target.kimi_k25 import KimiK25Target
from eagle3ref.target.loading import StoredExperts, set_weight

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")
CPU_TWICE = "cpu,cpu"


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    num_blocks=st.integers(1, 4),
    first_has=st.integers(0, 20),
)
def test_the_largest_block_is_as_small_as_any_cut_makes_it(sizes, num_blocks, first_has):
    """Bug: blocks by number of layers, embedding and head forgotten, a layer left out, one block too many."""
    blocks = placement.spread(sizes, num_blocks, first_has)
    assert blocks == sorted(blocks)
    assert len(blocks) == len(sizes)
    assert blocks[-1] < num_blocks

    def largest(cuts):
        used = [first_has] + [0] * (num_blocks - 1)
        for size, block in zip(sizes, cuts, strict=True):
            used[block] += size
        return max(used)

    def every_cut(layers, block):
        if not layers:
            yield []
            return
        for other in range(block, num_blocks):
            yield from ([other, *rest] for rest in every_cut(layers - 1, other))

    assert largest(blocks) == min(largest(cut) for cut in every_cut(len(sizes), 0))


def test_experts_stay_packed_only_when_the_expanded_model_does_not_fit(tmp_path, monkeypatch):
    """Bug: packed although there is room (slower for nothing), expanded until the memory is full, or a wrong size."""
    folder = tiny.target_folder(tmp_path / "t")
    census = open_census(folder)
    every = list(census.all_weights())
    numbers = sum(torch.Size(weight.shape).numel() for weight in every)
    stored = sum(
        weight.num_bytes if weight.kind == "int4" else 4 * torch.Size(weight.shape).numel() for weight in every
    )
    for free, packed in ((4 * numbers, False), (4 * numbers - 1, True), (stored, True)):
        monkeypatch.setattr(placement, "free_memory", lambda _, free=free: free / 0.9 + 1e-3)
        assert placement.place(census, "cpu", torch.float32, None).packed is packed
        assert isinstance(load_target(folder, dtype=torch.float32).model.layers[1].mlp.experts, StoredExperts) is packed
    monkeypatch.setattr(placement, "free_memory", lambda _: stored / 0.9 - 1)
    with pytest.raises(Eagle3RefError, match="stream the weights"):
        load_target(folder, dtype=torch.float32)
    assert not placement.place(census, "cpu", torch.float32, False).packed  # asked for, so it is done


def test_devices_share_the_layers_and_the_first_has_the_ends(tmp_path):
    """Bug: layers dealt out in turn, or embedding and head counted nowhere."""
    census = open_census(tiny.target_folder(tmp_path / "t"))
    placed = placement.place(census, torch.device("cpu"), torch.float32, None)
    assert placed.devices == (CPU,) * tiny.NUM_LAYERS
    assert [str(each) for each in placement.parse_devices("cpu, meta")] == ["cpu", "meta"]
    sizes = [placement._layer_bytes(layer, torch.float32, packed=False) for layer in census.layers]
    assert max(sizes[1:]) == min(sizes[1:]) > sizes[0]


@pytest.mark.parametrize("device", ["gpu", "", "cuda:9", "cpu,,cpu", "mps"])
def test_devices_that_do_not_exist_are_refused(device, tmp_path):
    """Bug: a traceback from the depths of PyTorch, after the first shards were read."""
    folder = tiny.target_folder(tmp_path / "t")
    for weights in ("resident", "stream"):
        with pytest.raises(Eagle3RefError, match="placing a model"):
            load_target(folder, device=device, weights=weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_experts_and_two_devices_give_the_bits_of_expanded_ones_on_one(dtype, tmp_path):
    """Bug: an expert of another index, gate and up exchanged, scales rounded elsewhere, a cache row on its way lost."""
    folder = tiny.target_folder(tmp_path / "t")
    tokens = torch.randint(tiny.VOCAB, (2, 6), generator=torch.Generator().manual_seed(0))
    settings = ({}, {"packed": True}, {"device": CPU_TWICE}, {"device": CPU_TWICE, "packed": True})
    expected, *others = (run_twice(load_target(folder, dtype=dtype, **each), tokens) for each in settings)
    for other in others:
        assert all(torch.equal(*pair) for pair in zip(expected, other, strict=True))


def run_twice(target, tokens):
    """States of a prefill and of a step behind it."""
    cache = target.new_cache(len(tokens))
    outputs = [target.forward(tokens, cache=cache, capture_points=range(8))]
    cache.keep(torch.arange(tokens.shape[1]).expand(tokens.shape), torch.tensor([6, 4]))
    outputs.append(target.forward(tokens[:, :2], cache=cache, capture_points=range(8)))
    return [state for output in outputs for state in (*output.aux_hidden_states.values(), output.final_hidden_state)]


class NoMixing(TorchDispatchMode):
    """Fails when one operation gets tensors of two devices; what comes back from ``ELSEWHERE`` is made zeros."""

    def __init__(self):
        super().__init__()
        self.moves = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") not in (None, tensors[0].device):
            self.moves.append((tensors[0].device.type, kwargs["device"].type))
            if tensors[0].device == ELSEWHERE:
                return torch.zeros(tensors[0].shape, dtype=kwargs.get("dtype") or tensors[0].dtype)
        else:
            assert len({x.device for x in tensors}) <= 1, f"{func} on several devices"
        return func(*args, **kwargs)


def dense_layers_elsewhere() -> KimiK25Target:
    """Layers 0 to 2, dense, on a device that keeps no values; the others and the ends on the CPU."""
    target = tiny.random_target(num_dense_layers=3)
    for layer in target.model.layers[:3]:
        for name, parameter in list(layer.named_parameters()):
            set_weight(layer, name, parameter.to(ELSEWHERE))
    return target


def test_activations_move_at_the_borders_and_cache_rows_live_with_their_layer():
    """Bug: a mask, a position or a prefix stays on the first device; a state comes back on the last one."""
    target = dense_layers_elsewhere()
    cache, tokens = target.new_cache(2), torch.tensor([[1, 2, 3], [4, 5, 6]])
    with torch.no_grad(), NoMixing() as mode:
        streams = target.embed(list(tokens))
        places = [streams[0].device for _ in target.stream_layers(streams, cache=cache)]
        assert places == [ELSEWHERE] * 3 + [CPU] * 4
        assert mode.moves.count(("meta", "cpu")) == 1  # the streams, once
        assert [prefix.rows.first.device for prefix in cache.prefixes()] == places
        output = target.forward(tokens, cache=cache, capture_points=range(8))
        assert {state.device for state in (*output.aux_hidden_states.values(), output.final_hidden_state)} == {CPU}
        cache.keep(torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, dtype=torch.int64))
        assert [prefix.rows.first.device for prefix in cache.prefixes()] == places
        target.forward(tokens, cache=cache)


def test_this_test_would_notice_a_tensor_left_behind():
    """Bug: a device check that never fails."""
    layer = dense_layers_elsewhere().model.layers[0]
    with torch.no_grad(), NoMixing(), pytest.raises(AssertionError, match="on several devices"):
        layer.run(torch.zeros(3, tiny.WIDTH), [3])


def test_settings_that_do_not_go_together_are_refused(tmp_path):
    """Bug: a memory bound that is silently ignored because the weights are resident."""
    folder = tiny.target_folder(tmp_path / "t")
    for settings, refusal in (
        ({"memory": 2**30}, "--weights stream"),
        ({"weights": "stream", "packed": True}, "Leave packed out"),
        ({"weights": "mapped"}, "'mapped'"),
        ({"weights": "stream", "memory": -5}, "-5 bytes"),
        ({"weights": "stream", "dtype": torch.int8}, "torch.int8"),
    ):
        with pytest.raises(Eagle3RefError, match=refusal):
            load_target(folder, **settings)
    assert Path(load_target(folder, weights="stream").config.path) == folder


def test_free_memory_respects_the_limit_of_a_container(tmp_path, monkeypatch):
    """Bug: the host's memory is taken for the container's, which is then killed while loading."""
    monkeypatch.setattr(placement, "_CGROUP", tmp_path)
    whole = placement.free_memory(CPU)
    assert whole > 2**28
    for name, text in (("max", "1000000"), ("current", "900000"), ("stat", "anon 5\ninactive_file 50000\nx 1")):
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    assert placement.free_memory(CPU) == 150000
    (tmp_path / "memory.max").write_text("max\n")
    assert placement.free_memory(CPU) > 2**28
