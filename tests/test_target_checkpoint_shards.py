"""Shards and their index: what does not belong together is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.checkpoint import Shards

INDEX = "model.safetensors.index.json"
MAP = {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"}


def sharded(folder: Path, weight_map: object = None) -> Path:
    """a in the first shard, b and c in the second."""
    save_file({"a": torch.ones(2)}, folder / "1.safetensors")
    save_file({"b": torch.ones(3), "c": torch.ones(4)}, folder / "2.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": MAP if weight_map is None else weight_map}))
    return folder


def test_every_tensor_is_found_in_its_shard(tmp_path):
    """Catches shards that overwrite one another, and files in an order that changes."""
    shards = Shards.open(sharded(tmp_path))
    assert {name: tensor.path.name for name, tensor in shards.tensors.items()} == MAP
    assert [file.name for file in shards.files] == ["1.safetensors", "2.safetensors"]


def test_a_shard_may_be_a_link_as_in_the_cache_of_the_hub(tmp_path):
    """Catches a check of paths that refuses the layout that the hub's own downloader makes."""
    (tmp_path / "blobs").mkdir()
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for name in ("1.safetensors", "2.safetensors", INDEX):
        sharded(tmp_path / "blobs")
        (folder / name).symlink_to(f"../blobs/{name}")
    assert set(Shards.open(folder).tensors) == set(MAP)


def test_a_tensor_that_the_index_forgot_is_there_all_the_same(tmp_path):
    """Catches weights passed over in silence; the census decides whether it is one too many."""
    assert "c" in Shards.open(sharded(tmp_path, {"a": "1.safetensors", "b": "2.safetensors"})).tensors


@pytest.mark.parametrize(
    ("weight_map", "found"),
    [
        (MAP | {"d": "3.safetensors", "e": "4.safetensors"}, "no file 3.safetensors, 4.safetensors; .*all 4 shards"),
        (MAP | {"d": "2.safetensors"}, "1 tensor not where the index says, e.g. d in none of the shards"),
        (MAP | {"b": "1.safetensors"}, "b in 2.safetensors; expected it in 1.safetensors"),
        (MAP | {"a": "../1.safetensors"}, "the file name '../1.safetensors'"),
        (MAP | {"a": "/etc/passwd"}, "the file name '/etc/passwd'"),
        (MAP | {"a": "..\\1.safetensors"}, "the file name"),
        (MAP | {"a": ".."}, "the file name '..'"),
        (MAP | {"a": ""}, "the file name ''"),
        (MAP | {"a": "config.json"}, "the file name 'config.json'"),
        (MAP | {"a": 3}, "the file name 3"),
        (MAP | {"a": ["1.safetensors"]}, "no weight_map in it"),
        (["a"], "no weight_map in it"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(weight_map, found, tmp_path):
    """Catches a shard that is missing, a tensor in another file, and a path that leaves the folder."""
    with pytest.raises(Eagle3RefError, match=found):
        Shards.open(sharded(tmp_path, weight_map))


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}}'],
)
def test_an_index_that_is_no_index_is_refused(text, tmp_path):
    """Catches a traceback of the JSON reader, and of two places for a tensor the last one taken."""
    (sharded(tmp_path) / INDEX).write_bytes(text)
    with pytest.raises(Eagle3RefError, match="no weight_map in it"):
        Shards.open(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    """Catches two checkpoints mixed in a folder, of which one half would win."""
    sharded(tmp_path)
    save_file({"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.ones(4)}, tmp_path / "2.safetensors")
    with pytest.raises(Eagle3RefError, match=r"a in both 1\.safetensors and 2\.safetensors"):
        Shards.open(tmp_path)


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("Kimi-K2.5-UD-Q2_K_XL-00001-of-00008.gguf", "GGUF in Kimi-K2.5.*gguf: no tensor that can be named"),
        ("model-00001-of-000064.safetensors", "model-00001-of-000064.safetensors, and no index"),
        ("pytorch_model.bin", "pickled weights: pytorch_model.bin"),
        ("readme.md", "no weight file"),
    ],
)
def test_a_folder_without_safetensors_says_what_is_there(file, found, tmp_path):
    """Catches "no weight file" said of a folder full of weights in another format."""
    (tmp_path / file).touch()
    with pytest.raises(Eagle3RefError, match=found):
        Shards.open(tmp_path)
