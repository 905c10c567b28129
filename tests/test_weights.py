"""Weight files from outside: every container, every kind of damage, and hostile ones."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eagle3ref.errors import Eagle3RefError
from eagle3ref.weights import Weights

TENSORS = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.arange(5), "c": torch.ones(2, 2, dtype=torch.bfloat16)}


def sharded(folder: Path, weight_map: object = None) -> Path:
    """Tensor a in the first shard, b and c in the second."""
    folder.mkdir(exist_ok=True)
    save_file({"a": TENSORS["a"]}, folder / "1.safetensors")
    save_file({"b": TENSORS["b"], "c": TENSORS["c"]}, folder / "2.safetensors")
    if weight_map is None:
        weight_map = {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def single(folder: Path) -> Path:
    save_file(TENSORS, folder / "model.safetensors")
    return folder


def pickled(folder: Path) -> Path:
    torch.save(TENSORS, folder / "pytorch_model.bin")
    return folder


def old_pickled(folder: Path) -> Path:
    torch.save(TENSORS, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    return folder


def pickled_shards(folder: Path) -> Path:
    """As ``sharded``; the second shard also holds a tensor that the index does not list."""
    torch.save({"a": TENSORS["a"]}, folder / "1.bin")
    torch.save({"b": TENSORS["b"], "c": TENSORS["c"], "d": TENSORS["a"]}, folder / "2.bin")
    weight_map = {"a": "1.bin", "b": "2.bin", "c": "2.bin"}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("write", [single, sharded, pickled, old_pickled, pickled_shards])
def test_every_container_gives_the_same_tensors(write, tmp_path):
    """Bug: a shape that is not the tensor's, a dtype that is converted, a name that is only in one shard."""
    weights = Weights(write(tmp_path))
    assert weights.names == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert name in weights
        assert weights.shape(name) == tuple(tensor.shape)
        assert weights.read(name).dtype == tensor.dtype
        assert torch.equal(weights.read(name), tensor)
    assert "d" not in weights
    for call in (weights.read, weights.shape):
        with pytest.raises(Eagle3RefError, match="no tensor d; expected it among the 3"):
            call("d")


def test_a_folder_without_weights_is_refused(tmp_path):
    """Bug: an empty set of names, whose every tensor is missing."""
    with pytest.raises(Eagle3RefError, match="no weight file"):
        Weights(tmp_path)


@pytest.mark.parametrize("write", [single, pickled, old_pickled])
@pytest.mark.parametrize("share", [0.0, 0.003, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused_by_name_and_size(write, share, tmp_path):
    """Bug: a half-finished download read as far as it goes, or torch's own traceback."""
    write(tmp_path)
    [path] = tmp_path.iterdir()
    content = path.read_bytes()
    kept = min(int(len(content) * share), len(content) - 1)
    path.write_bytes(content[:kept])
    with pytest.raises(Eagle3RefError, match=rf"opening .*{path.name}: .*\({kept:,} bytes\)"):
        Weights(tmp_path)


def test_a_truncated_shard_is_refused_when_the_folder_is_opened(tmp_path):
    """Bug: the damage shows only when the last layer is read, hours later."""
    path = sharded(tmp_path) / "2.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Eagle3RefError, match=r"opening .*2\.safetensors"):
        Weights(tmp_path)


@pytest.mark.parametrize("header", [2**63, 2**40, 10**6])
def test_a_header_that_claims_to_be_huge_is_refused(header, tmp_path):
    """Bug: an allocation of whatever the first eight bytes say."""
    (tmp_path / "model.safetensors").write_bytes(header.to_bytes(8, "little") + b"{}" * 50)
    with pytest.raises(Eagle3RefError, match="opening"):
        Weights(tmp_path)


def test_offsets_past_the_end_are_refused(tmp_path):
    """Bug: a tensor that reads memory behind the file."""
    header = json.dumps({"a": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(Eagle3RefError, match="opening"):
        Weights(tmp_path)


@pytest.mark.parametrize(
    "index",
    ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}', '{"weight_map": null}', "[" * 200_000],
)
def test_an_index_that_is_none_is_refused(index, tmp_path):
    """Bug: a KeyError, AttributeError or RecursionError without the file's name."""
    (sharded(tmp_path) / "model.safetensors.index.json").write_text(index)
    with pytest.raises(Eagle3RefError, match=r"opening .*model\.safetensors\.index\.json: found no weight_map"):
        Weights(tmp_path)


def test_an_index_that_names_a_missing_shard_is_refused(tmp_path):
    """Bug: discovered at the tensor, not at the start; the file not named."""
    with pytest.raises(Eagle3RefError, match=r"opening .*3\.safetensors: .*no such file"):
        Weights(sharded(tmp_path, {"a": "3.safetensors"}))


def test_an_index_that_names_the_wrong_shard_is_refused(tmp_path):
    """Bug: found only when that tensor is read."""
    with pytest.raises(Eagle3RefError, match=r"opening .*2\.safetensors: found a is not in it"):
        Weights(sharded(tmp_path, {"a": "2.safetensors"}))


def test_an_index_of_pickles_that_names_a_missing_tensor_is_refused(tmp_path):
    """Bug: the tensor is missed later, or taken as not stored."""
    pickled_shards(tmp_path)
    torch.save({"a": TENSORS["b"]}, tmp_path / "2.bin")
    with pytest.raises(Eagle3RefError, match=r"opening .*2\.bin: found b is not in it"):
        Weights(tmp_path)


@pytest.mark.parametrize("way", ["../outside.safetensors", "absolute"])
def test_an_index_cannot_reach_out_of_its_folder(way, tmp_path):
    """Bug: path traversal; a checkpoint that reads another user's files."""
    save_file({"a": TENSORS["a"]}, tmp_path / "outside.safetensors")
    name = str(tmp_path / "outside.safetensors") if way == "absolute" else way
    with pytest.raises(Eagle3RefError, match=r"inside/outside\.safetensors: .*no such file"):
        Weights(sharded(tmp_path / "inside", {"a": name}))


class _Payload:
    """Runs a shell command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("plain", [True, False])
def test_a_hostile_pickle_does_not_run(plain, tmp_path):
    """Bug: torch.load without weights_only. The marker proves that the payload works when it is let."""
    marker = tmp_path / "marker"
    content = pickle.dumps(_Payload(marker), protocol=2)  # torch.load warns of others
    assert pickle.loads(content) == 0
    assert marker.exists()
    marker.unlink()
    if plain:
        (tmp_path / "pytorch_model.bin").write_bytes(content)
    else:
        torch.save({"a": torch.ones(1), "b": _Payload(marker)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(Eagle3RefError, match=r"opening .*pytorch_model\.bin"):
        Weights(tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "state", [[torch.ones(1)], {"a": {"b": torch.ones(1)}}, {1: torch.ones(1)}, {"a": torch.eye(2).to_sparse()}, 3]
)
def test_a_pickle_of_something_else_is_refused(state, tmp_path):
    """Bug: a training state, or a name that cannot be sorted among the others, fails far from the file."""
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(Eagle3RefError, match="something else than a dictionary of dense tensors by name"):
        Weights(tmp_path)


def test_a_folder_in_the_place_of_the_index_is_refused(tmp_path):
    """Bug: an IsADirectoryError, as any other refusal of the operating system, without a word of what to do."""
    (tmp_path / "model.safetensors.index.json").mkdir()
    with pytest.raises(Eagle3RefError, match=r"opening .*model\.safetensors\.index\.json.*Is a directory"):
        Weights(tmp_path)
