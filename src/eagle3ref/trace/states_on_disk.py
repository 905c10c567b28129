"""The streams and states of a streamed pass on disk: killed at any moment, it goes on at the last layer.

A file is the bytes of a tensor and a checksum that also covers the pass it belongs to and its own name. So what a kill
has cut short, what a disk has changed and what another pass has left are all found, and never used.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from eagle3ref.durable import replace_file
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace.access import reading, writing
from eagle3ref.trace.header import TraceHeader

_STREAM = re.compile(r"stream-(\d+)\.bin")
_CHECKSUM_BYTES = hashlib.sha256().digest_size


class WorkWarning(UserWarning):
    """A pass that cannot go on where it was."""


class StatesOnDisk:
    """``KeptStates`` of a pass: after every layer the residual streams, and the states of its capture points.

    A thread writes the copy of one layer's streams while the next layer is computed. The streams come last, and under a
    name that only whole files get; those of the layer before are deleted then. Use it as a context manager.

    Args:
        folder: the work folder, which is there.
        key: names the pass; goes into every checksum.
        lengths: T of each sequence.
        header: capture points, width and dtype of the states.
        recorded: places of the sequences that are in the trace; their states are not looked for.
    """

    def __init__(
        self, folder: Path, key: bytes, lengths: Sequence[int], header: TraceHeader, recorded: frozenset[int]
    ) -> None:
        self._folder, self._key, self._lengths, self._header = folder, key, list(lengths), header
        self._recorded = recorded
        self._copy = torch.empty(0)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="work-folder")
        self._writing: Future[None] | None = None

    def __enter__(self) -> StatesOnDisk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.shutdown()

    def resume(self) -> tuple[int, list[Tensor]] | None:
        """See ``KeptStates``. The last layer whose streams and states are all whole; streams of others are deleted.

        Warns:
            WorkWarning: layers were computed and cannot be used.
        """
        with reading(self._folder.parent):
            layers = sorted(int(match[1]) for path in self._folder.iterdir() if (match := _STREAM.fullmatch(path.name)))
            for layer in reversed(layers):
                streams = self._read(_stream_name(layer), sum(self._lengths))
                if streams is not None and self._has_states(layer):
                    self._delete(_stream_name(other) for other in layers if other != layer)
                    return layer, list(streams.split(self._lengths))
        if layers:
            message = f"The work folder {self._folder} is damaged: its pass starts again with the first layer."
            warnings.warn(message, WorkWarning, stacklevel=2)
            self._delete(map(_stream_name, layers))
        return None

    def keep(self, layer: int, streams: Sequence[Tensor]) -> None:
        """See ``KeptStates``.

        Raises:
            Eagle3RefError: the operating system refuses what this layer or the one before has to write.
        """
        if layer == 0 and layer not in self._header.capture_points:
            return  # embedding anew costs nothing
        self.finish()  # one copy at a time
        self._writing = self._thread.submit(self._write_layer, layer, self._copied(streams))

    def finish(self) -> None:
        """See ``KeptStates``.

        Raises:
            Eagle3RefError: the operating system refuses what the last layer has to write.
        """
        if self._writing is not None:
            with writing(self._folder.parent):
                self._writing.result()
            self._writing = None

    def sequence(self, index: int) -> dict[int, Tensor]:
        """See ``KeptStates``.

        Raises:
            Eagle3RefError: a file that was changed since this run wrote or checked it.
        """
        with reading(self._folder.parent):
            names = {point: _state_name(point, index) for point in self._header.capture_points}
            return {point: self._read_whole(name, self._lengths[index]) for point, name in names.items()}

    def forget(self, index: int) -> None:
        """See ``KeptStates``."""
        with writing(self._folder.parent):
            self._delete(_state_name(point, index) for point in self._header.capture_points)

    def _copied(self, streams: Sequence[Tensor]) -> Tensor:
        """All streams behind each other in the one buffer that all layers use."""
        if not len(self._copy):
            width = self._header.target.hidden_size
            self._copy = torch.empty(sum(self._lengths), width, dtype=self._header.torch_dtype)
        for rows, stream in zip(self._copy.split(self._lengths), streams, strict=True):
            rows.copy_(stream)
        return self._copy

    def _write_layer(self, layer: int, streams: Tensor) -> None:
        if layer in self._header.capture_points:
            for i, rows in enumerate(streams.split(self._lengths)):
                self._write(_state_name(layer, i), rows)
        if layer > 0:
            self._write(_stream_name(layer), streams)
            self._delete([_stream_name(layer - 1)])

    def _write(self, name: str, rows: Tensor) -> None:
        data = _bytes(rows)
        replace_file(self._folder / name, data, self._checksum(name, data))

    def _read(self, name: str, num_rows: int) -> Tensor | None:
        """The tensor of a file; None when the file is not whole, or not of this pass."""
        rows = torch.empty(num_rows, self._header.target.hidden_size, dtype=self._header.torch_dtype)
        data = _bytes(rows)
        path = self._folder / name
        if not path.is_file() or path.stat().st_size != len(data) + _CHECKSUM_BYTES:
            return None
        with path.open("rb") as file:
            file.readinto(data)
            return rows if file.read() == self._checksum(name, data) else None

    def _read_whole(self, name: str, num_rows: int) -> Tensor:
        rows = self._read(name, num_rows)
        if rows is None:
            raise Eagle3RefError(
                f"reading {self._folder / name}",
                found="a file that is missing or damaged",
                expected="the states that this pass has written there",
                action="Run the same command again: the pass starts with its first layer.",
            )
        return rows

    def _has_states(self, layer: int) -> bool:
        """Whether the states of all capture points up to ``layer`` are whole, where they are still needed."""
        return all(
            self._read(_state_name(point, i), length) is not None
            for i, length in enumerate(self._lengths)
            if i not in self._recorded
            for point in self._header.capture_points
            if point <= layer
        )

    def _checksum(self, name: str, data: memoryview) -> bytes:
        digest = hashlib.sha256(self._key + name.encode())
        digest.update(data)
        return digest.digest()

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            (self._folder / name).unlink(missing_ok=True)


def _stream_name(layer: int) -> str:
    return f"stream-{layer:04d}.bin"


def _state_name(point: int, index: int) -> str:
    return f"state-{point:04d}-{index:06d}.bin"


def _bytes(rows: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU; writing to it changes the tensor."""
    return rows.view(torch.uint8).flatten().numpy().data
