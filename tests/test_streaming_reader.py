"""The thread that reads ahead: what it delivers, and how it ends when the disk, the file or the consumer fails."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target import load_target
from eagle3ref.target.checkpoint import Shards, StoredTensor, StoredWeight, open_census
from eagle3ref.target.streaming import arrivals, files
from eagle3ref.target.streaming.files import CheckpointFiles
from eagle3ref.target.streaming.matrix import mapped, read_rows
from eagle3ref.target.streaming.pieces import Piece, aligned, buffer_bytes, grouped, rows_of
from eagle3ref.target.streaming.reader import Reader
from eagle3ref.target.streaming.schedule import Schedule

CPU = torch.device("cpu")
SECONDS = 20  # none of these tests takes one; a thread that hangs fails instead of blocking the suite


def stored(path: Path) -> dict[str, StoredWeight]:
    tensors = Shards.open(path.parent).tensors.values()
    return {tensor.name: StoredWeight(tensor.name, tensor.shape, "plain", (tensor,)) for tensor in tensors}


@pytest.fixture
def path(tmp_path) -> Path:
    """Tensors of odd sizes and several dtypes in one file."""
    generator = torch.Generator().manual_seed(0)
    tensors = {f"t{i}": torch.randn(3 * i + 1, 5, generator=generator) for i in range(6)}
    tensors |= {f"b{i}": torch.randn(7, i + 1, generator=generator).bfloat16() for i in range(5)}
    tensors["i"] = torch.randint(-9, 9, (11,), generator=generator, dtype=torch.int32)
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def reader(path: Path, number: int = 2, size: int = 4096) -> Reader:
    return Reader(CheckpointFiles([path]), num_buffers=number, buffer_bytes=size)


def everything(reading: Reader, weights: dict[str, StoredWeight]) -> dict[str, torch.Tensor]:
    """Each weight by itself, requested ahead."""
    for weight in weights.values():
        reading.request(Piece((weight,), CPU))
    found = {}
    for name, weight in weights.items():
        with reading.next() as arrived:
            found[name] = arrived[weight.parts[0]].clone()
    return found


def none_left() -> bool:
    return not any(thread.name == "eagle3ref-reader" for thread in threading.enumerate())


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("step", [None, 7])
def test_pieces_arrive_whole_and_in_order(path, number, step, monkeypatch):
    """Bug: a buffer given out twice, a tensor at an odd place, a short read taken for a whole one."""
    if step:
        read = os.preadv
        monkeypatch.setattr(files.os, "preadv", lambda fd, views, at: read(fd, [views[0][:step]], at))
    with reader(path, number) as reading:
        found = everything(reading, stored(path))
    assert none_left()
    expected = load_file(path)
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_reading_runs_ahead_no_further_than_the_buffers(path):
    """Bug: no read-ahead at all, or one that fills the memory."""
    weights = stored(path)
    read, two = [], threading.Event()

    def on_read(num_bytes):
        read.append(num_bytes)
        if len(read) == 2:
            two.set()

    files_ = CheckpointFiles([path])
    with Reader(files_, num_buffers=2, buffer_bytes=4096, on_read=on_read) as reading:
        for weight in weights.values():
            reading.request(Piece((weight,), CPU))
        assert two.wait(SECONDS)
        with reading.next():
            assert len(read) == 2  # both buffers hold a piece, one of them in use
    sizes = [weight.num_bytes for weight in weights.values()]
    assert read == sizes[: len(read)]
    assert none_left()


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 3)


def replaced(path: Path) -> None:
    """The same bytes under the same name, from another file."""
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def written_to(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 1)
        file.write(b"x")
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (truncated, "its end at byte"),
        (replaced, "written to or replaced"),
        (written_to, "written to or replaced"),
        (Path.unlink, "No such file"),
    ],
)
def test_a_file_that_changes_meanwhile_is_named(path, damage, found):
    """Bug: half of another checkpoint is computed with, or the consumer waits for ever."""
    weights = dict(sorted(stored(path).items(), key=lambda item: -item[1].parts[0].start))  # the end of the file first
    reading = reader(path)
    damage(path)
    with pytest.raises(Eagle3RefError, match=found) as caught, reading:
        everything(reading, weights)
    assert path.name in str(caught.value)
    assert none_left()


@pytest.mark.parametrize("failing", ["preadv", "open"])
def test_an_error_of_the_disk_names_file_and_place(path, failing, monkeypatch):
    """Bug: the error dies with the thread, and the consumer waits for a piece that never comes."""
    weights = stored(path)

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files.os, failing, fail)
    with pytest.raises(Eagle3RefError, match="Input/output error") as caught, reader(path) as reading:
        everything(reading, weights)
    assert path.name in str(caught.value)
    assert ("byte" in caught.value.found) == (failing == "preadv")
    assert none_left()


@pytest.mark.parametrize(("raised", "seen"), [(MemoryError, MemoryError), (ZeroDivisionError, RuntimeError)])
def test_an_unexpected_error_in_the_thread_does_not_leave_the_consumer_waiting(path, raised, seen, monkeypatch):
    """Bug: a fault that nobody thought of blocks the program for ever, or one that is thought of loses its name."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def fail(*_):
        raise raised

    monkeypatch.setattr(files.OpenFiles, "check", fail)
    with pytest.raises(seen), reader(path) as reading:
        everything(reading, stored(path))
    assert none_left()


def test_leaving_stops_a_read_in_progress(path, monkeypatch):
    """Bug: closing waits until the last requested byte was read."""
    started = threading.Event()

    def endless(_descriptor, _views, _at):
        started.set()
        return 1

    weights = stored(path)
    monkeypatch.setattr(files.os, "preadv", endless)
    (part,) = weights["t5"].parts
    huge = StoredTensor(part.name, part.path, "F32", (2**24,), part.start, 2**26)  # minutes, a byte at a time
    with reader(path, size=2**26) as reading:
        reading.request(Piece((StoredWeight("huge", huge.shape, "plain", (huge,)),), CPU))
        assert started.wait(SECONDS)
    assert none_left()


def test_a_piece_that_nobody_requested_is_an_error_and_not_a_wait(path):
    """Bug: a consumer out of step with its requests hangs."""
    with reader(path) as reading, pytest.raises(RuntimeError, match="no piece was requested"), reading.next():
        pass
    assert none_left()


@given(st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=3), min_size=1, max_size=12), st.integers(0, 600))
def test_groups_fill_a_buffer_and_lose_nothing(sizes, extra):
    """Bug: a unit in two pieces, out of order, or a piece larger than its buffer."""
    units = [[_weight(size) for size in unit] for unit in sizes]
    limit = max(buffer_bytes(unit) for unit in units) + extra
    groups = grouped(units, limit)
    assert [index for group in groups for index in group] == list(range(len(units)))
    taken = [sum(buffer_bytes(units[index]) for index in group) for group in groups]
    assert max(taken) <= limit
    for size, following in zip(taken, groups[1:], strict=False):
        assert size + buffer_bytes(units[following[0]]) > limit  # else it would have gone into this one


def _weight(num_bytes: int) -> StoredWeight:
    return StoredWeight("x", (num_bytes,), "plain", (StoredTensor("x", Path("f"), "U8", (num_bytes,), 0, num_bytes),))


@pytest.mark.parametrize("all_experts", [True, False])
def test_requests_follow_the_walk(all_experts, tmp_path):
    """Bug: a piece is consumed that was requested at another place of the queue, or a layer is requested late."""
    census = open_census(tiny.target_folder(tmp_path / "t"))
    requested: list[Piece] = []
    schedule = Schedule(
        census,
        requested.append,
        buffer_bytes=2**20,
        all_experts=all_experts,
        devices=(CPU, torch.device("meta")),
        first_layer=0,
    )
    taken = 0
    for layer in census.layers:
        schedule.enter(layer.index)
        for half in ("attention", "mlp"):
            for piece in schedule.pieces_of(layer.index, half):
                assert requested[taken] is piece
                taken += 1
        if layer.experts:
            groups = schedule.experts_of(layer.index, [1, 3])
            assert [index for group in groups for index in group] == ([0, 1, 2, 3] if all_experts else [1, 3])
            for group in groups:
                expected = [weight for index in group for weight in layer.experts[index].values()]
                assert list(requested[taken].weights) == expected
                taken += 1
        assert requested[taken - 1].device == (CPU, torch.device("meta"))[layer.index % 2]
        assert len(requested) > taken or layer is census.layers[-1]  # the next layer is on its way
    assert len(requested) == taken


@pytest.mark.parametrize("shift", [0, 1])
def test_matrix_rows_and_mapping_equal_the_file(tmp_path, shift):
    """Bug: rows counted in elements, a mapping that is shifted where the header's length is odd."""
    matrix = torch.randn(9, 6).bfloat16()
    save_file({"m": matrix}, tmp_path / "model.safetensors")
    weight = stored(tmp_path / "model.safetensors")["m"]
    if shift:  # the same bytes at an odd place
        (part,) = weight.parts
        raw = part.path.read_bytes()
        part.path.write_bytes(b"\0" * shift + raw)
        moved = type(part)(part.name, part.path, part.dtype, part.shape, part.start + shift, part.num_bytes)
        weight = StoredWeight("m", weight.shape, "plain", (moved,))
    assert torch.equal(mapped(weight), matrix)
    indices = torch.tensor([[3, 8, 3], [0, 0, 5]])
    files_ = CheckpointFiles([weight.parts[0].path])
    assert torch.equal(read_rows(files_, weight, indices, device=CPU, dtype=torch.bfloat16), matrix[indices])
    assert torch.equal(read_rows(files_, weight, indices, device=CPU, dtype=torch.float32), matrix[indices].float())
    assert torch.equal(mapped(weight)[2:5], matrix[2:5])
    part = rows_of(weight, 2, 3)
    assert (part.shape, part.num_bytes) == ((3, 6), 36)


def test_a_shard_cut_short_between_two_passes_is_named_and_the_target_stays_usable(tmp_path):
    """Bug: a pass that failed leaves locks or threads behind, so that the next one hangs."""
    folder = tiny.target_folder(tmp_path / "t")
    target = load_target(folder, dtype=torch.float32, weights="stream")
    shard = target.census.layers[4].weights["self_attn.o_proj.weight"].parts[0].path
    whole, status = shard.read_bytes(), shard.stat()
    truncated(shard)
    streams = target.embed([torch.tensor([1, 2])])
    with pytest.raises(Eagle3RefError, match=shard.name):
        list(target.stream_layers(streams))
    assert none_left()
    with shard.open("r+b") as file:
        file.write(whole)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert list(target.stream_layers(target.embed([torch.tensor([1, 2])]))) == list(range(1, 8))


def test_alignment():
    """Bug: a bf16 or int32 view at an odd byte, which PyTorch refuses."""
    assert [aligned(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]


class PretendedGpu:
    """Stands for ``torch.cuda`` and a device of it; copies are made at once, on the CPU."""

    type = "cuda"
    streams = 0

    def new_stream(self, _device):
        self.streams += 1
        return self

    Stream = new_stream

    def stream(self, stream):
        return contextlib.nullcontext(stream)

    def record_event(self):
        return self

    def synchronize(self):
        pass


def test_pieces_for_a_gpu_survive_their_buffers(path, monkeypatch):
    """Bug: what stays on the CPU is overwritten, the piece behind is taken first, a buffer is never given back."""
    gpu = PretendedGpu()
    monkeypatch.setattr(arrivals.torch, "cuda", gpu)
    moved = []

    def to_device(part, tensor, device):
        assert device is gpu
        moved.append(part.name)
        return tensor if part.name == "i" else tensor.clone()

    monkeypatch.setattr(arrivals, "to_device", to_device)
    weights = stored(path)
    names = ["i", *sorted(set(weights) - {"i"}), "i"]
    with reader(path, number=2) as reading:
        arriving = arrivals.Arrivals(reading)
        for name in names:
            arriving.request(Piece((weights[name],), gpu))
        found = []
        for name in names:
            with arriving.next(gpu) as arrived:
                time.sleep(0.005)  # the reader fills every buffer that it has
                found.append(arrived[weights[name].parts[0]].clone())
    expected = load_file(path)
    assert moved == names
    assert all(torch.equal(tensor, expected[name]) for name, tensor in zip(names, found, strict=True))
    assert gpu.streams == 1
    assert none_left()
