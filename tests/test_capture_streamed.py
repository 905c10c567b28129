"""Capture with streamed weights: the bytes of a resident one, also when it was stopped anywhere in between."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from streamed_captures import POINTS, StopError, capture, contents, make_prompts, stream
from tiny import NUM_LAYERS, VOCAB, target_folder

import eagle3ref as e3
from eagle3ref.trace.passes import LayerDone
from eagle3ref.trace.states_on_disk import WorkWarning

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def whole(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Of an undisturbed capture by the resident target."""
    path = tmp_path_factory.mktemp("whole") / "t"
    capture(e3.load_target(checkpoint, dtype=torch.float32), path)
    return contents(path)


def stop_at(layer: int, number: int = 0) -> Callable[[LayerDone], None]:
    def on_layer(done: LayerDone) -> None:
        if (done.number, done.layer) == (number, layer):
            raise StopError

    return on_layer


def stopped(checkpoint: Path, path: Path, layer: int, **settings: Any) -> Path:
    """A capture that was stopped when its streams had reached ``layer``; its work folder."""
    with pytest.raises(StopError):
        capture(stream(checkpoint), path, on_layer=stop_at(layer), **settings)
    return path / ".pass"


@pytest.mark.parametrize("batch_size", [6, 2])
def test_streamed_and_resident_captures_are_the_same_bytes(checkpoint, tmp_path, batch_size):
    """Catches states of another layer or sequence, another order of computation, and work files left behind."""
    prompts = make_prompts(num_open=3)
    for name, target in (("s", stream(checkpoint)), ("r", e3.load_target(checkpoint, dtype=torch.float32))):
        capture(target, tmp_path / name, prompts, batch_size=batch_size)
    assert contents(tmp_path / "s") == contents(tmp_path / "r")


@pytest.mark.parametrize("layer", [1, *(pytest.param(i, marks=slow) for i in (2, 3, 5, 6)), 4, NUM_LAYERS])
def test_a_pass_stopped_at_any_layer_goes_on_there(checkpoint, whole, tmp_path, layer):
    """Catches layers computed twice, streams of another layer, and captured states that are lost or doubled."""
    stopped(checkpoint, tmp_path / "t", layer)
    target, layers = stream(checkpoint), []
    capture(target, tmp_path / "t", on_layer=lambda done: layers.append(done.layer))
    assert layers == list(range(layer, NUM_LAYERS + 1))
    assert contents(tmp_path / "t") == whole


@pytest.mark.parametrize("last", ["p0", pytest.param("p3", marks=slow), "p5"])
def test_a_capture_stopped_while_its_sequences_are_written_goes_on(checkpoint, whole, tmp_path, last):
    """Catches sequences recorded twice, and work files that were deleted before their sequence was safe."""

    def stop(sequence: Any) -> None:
        if sequence.id == last:
            raise StopError

    with pytest.raises(StopError):
        capture(stream(checkpoint), tmp_path / "t", on_sequence=stop)
    recorded: list[str] = []
    capture(stream(checkpoint), tmp_path / "t", on_sequence=lambda sequence: recorded.append(sequence.id))
    assert recorded == [f"p{i}" for i in range(int(last[1]) + 1, 6)]
    assert contents(tmp_path / "t") == whole


def test_the_disk_never_holds_a_sequence_twice_for_long(checkpoint, tmp_path):
    """Catches work files that stay until the whole pass is in the trace: twice its size on the disk."""
    left: list[int] = []
    work = tmp_path / "t" / ".pass"
    capture(stream(checkpoint), tmp_path / "t", on_sequence=lambda _: left.append(len(list(work.glob("state-*")))))
    assert left == [len(POINTS) * still for still in (6, 5, 4, 3, 2, 1)]


def damage(path: Path, kind: str) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes({"a bit": data, "cut short": data[:-7], "empty": b""}[kind])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("stream-0003.bin", "a bit"),
        ("state-0002-000004.bin", "cut short"),
        pytest.param("stream-0003.bin", "empty", marks=slow),
        pytest.param("state-0000-000001.bin", "a bit", marks=slow),
    ],
)
def test_a_damaged_work_file_is_found_and_not_used(checkpoint, whole, tmp_path, name, kind):
    """Catches states that a bad disk has changed in a trace that says they are the target's."""
    damage(stopped(checkpoint, tmp_path / "t", 3) / name, kind)
    with pytest.warns(WorkWarning, match="starts again with the first layer"):
        capture(stream(checkpoint), tmp_path / "t")
    assert contents(tmp_path / "t") == whole


def test_what_a_kill_between_two_files_leaves_is_put_right(checkpoint, whole, tmp_path):
    """Catches a resume from the older of two layers, from a half-written file, or that trips over either."""
    work = stopped(checkpoint, tmp_path / "t", 2)
    older = (work / "stream-0002.bin").read_bytes()
    with pytest.raises(StopError):
        capture(stream(checkpoint), tmp_path / "t", on_layer=stop_at(5))
    (work / "stream-0002.bin").write_bytes(older)  # the newer one was complete before this was deleted
    (work / "stream-0006.bin.partial").write_bytes(older[:99])
    (work / "state-0007-000001.bin.partial").write_bytes(b"")
    layers: list[int] = []
    capture(stream(checkpoint), tmp_path / "t", on_layer=lambda done: layers.append(done.layer))
    assert layers == [5, 6, 7]
    assert contents(tmp_path / "t") == whole


def test_streams_of_another_pass_are_not_taken_for_this_ones(checkpoint, whole, tmp_path):
    """Catches a checksum of the bytes alone: prompts of the same lengths leave files of the same size and name."""
    other = [e3.Prompt(prompt.id, (prompt.tokens + 1) % (VOCAB - 3), prompt.answer) for prompt in make_prompts()]
    foreign = stopped(checkpoint, tmp_path / "other", 4, prompts=other)
    work = stopped(checkpoint, tmp_path / "t", 3)
    shutil.copy(foreign / "stream-0004.bin", work)
    layers: list[int] = []
    capture(stream(checkpoint), tmp_path / "t", on_layer=lambda done: layers.append(done.layer))
    assert layers[0] == 3
    assert contents(tmp_path / "t") == whole


def test_other_prompts_or_settings_are_refused_and_lose_nothing(checkpoint, whole, tmp_path):
    """Catches hours of layers thrown away by a command with a slip in it."""
    stopped(checkpoint, tmp_path / "t", 3)
    before = contents(tmp_path / "t")
    prompts = make_prompts()
    changed = [e3.Prompt("p0", prompts[0].tokens, torch.tensor([1, 2])), *prompts[1:]]
    for found, settings in (
        ("another final_hidden_state", {"final_hidden_state": False}),
        ("sequence 'p5', which is not asked for now", {"prompts": prompts[:5]}),
        ("other tokens of sequence 'p0'", {"prompts": changed}),
    ):
        with pytest.raises(e3.Eagle3RefError, match=f"going on with the trace .*{found}.*it goes on where it was"):
            capture(stream(checkpoint), tmp_path / "t", **settings)
        assert contents(tmp_path / "t") == before
    capture(stream(checkpoint), tmp_path / "t")
    assert contents(tmp_path / "t") == whole


@pytest.mark.parametrize(
    "record", [b"", b"[]", b'{"schema_version": 1}', b'{"schema_version": 2, "settings": {}, "sequences": []}']
)
@pytest.mark.parametrize("name", ["pass.json", "split.json"])
def test_a_damaged_record_of_a_pass_is_told(checkpoint, whole, tmp_path, name, record):
    """Catches a traceback, and layers thrown away because a small file beside them is damaged."""
    work = stopped(checkpoint, tmp_path / "t", 3)
    intact = (work / name).read_bytes()
    (work / name).write_bytes(record)
    if name == "pass.json":
        with pytest.raises(e3.Eagle3RefError, match=r"going on with .*a damaged pass.json.*give its layers up, delete"):
            capture(stream(checkpoint), tmp_path / "t")
        (work / name).write_bytes(intact)
    capture(stream(checkpoint), tmp_path / "t")
    assert contents(tmp_path / "t") == whole


def test_passes_are_cut_as_the_first_run_cut_them(checkpoint, tmp_path, monkeypatch):
    """Catches passes that depend on how much memory was free at a restart: their last bits would differ."""
    for name in ("a", "b"):
        monkeypatch.setattr("eagle3ref.target.streaming.StreamedTarget.max_tokens", lambda *_: 20)
        if name == "b":
            with pytest.raises(StopError):
                capture(stream(checkpoint), tmp_path / name, on_layer=stop_at(2, number=1))
            monkeypatch.setattr("eagle3ref.target.streaming.StreamedTarget.max_tokens", lambda *_: 1000)
        totals: list[tuple[int, int]] = []
        capture(
            stream(checkpoint),
            tmp_path / name,
            on_layer=lambda done, seen=totals: seen.append((done.num_passes, done.num_tokens)),
        )
        assert set(totals) == ({(3, 9), (3, 16), (3, 19)} if name == "a" else {(2, 16), (2, 19)})
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_answers_that_were_stopped_go_on_at_their_round(checkpoint, tmp_path):
    """Catches rounds of answers, each a reading of all weights, that are thrown away by a kill."""
    prompts = make_prompts(num_open=3)
    capture(stream(checkpoint), tmp_path / "whole", prompts)

    def stop(done: Any) -> None:
        if done.num_rounds == 3:
            raise StopError

    with pytest.raises(StopError):
        capture(stream(checkpoint), tmp_path / "t", prompts, on_round=stop)
    rounds: list[int] = []
    capture(stream(checkpoint), tmp_path / "t", prompts, on_round=lambda done: rounds.append(done.num_rounds))
    assert rounds[0] >= 3
    assert contents(tmp_path / "t") == contents(tmp_path / "whole")


@slow
def test_a_prompt_longer_than_a_block_of_rows(checkpoint, tmp_path):
    """Catches rows lost or shifted where attention or the MLP ends a block of a long sequence."""
    tokens = torch.randint(VOCAB - 3, (1100,), generator=torch.Generator().manual_seed(1))
    trace = capture(stream(checkpoint), tmp_path / "t", [e3.Prompt("long", tokens, torch.tensor([4]))])
    target = e3.load_target(checkpoint, dtype=torch.float64)
    alone = target.forward(torch.cat((tokens, torch.tensor([4])))[None], capture_points=POINTS)
    for point in POINTS:
        torch.testing.assert_close(
            trace[0].aux_hidden_states[point].double(), alone.aux_hidden_states[point][0], atol=1e-4, rtol=1e-4
        )
