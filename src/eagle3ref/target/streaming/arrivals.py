"""Pieces on the device that computes with them: views of a buffer on a CPU, copies made ahead on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from eagle3ref.target.loading import to_device
from eagle3ref.target.streaming.pieces import Piece
from eagle3ref.target.streaming.reader import Arrived, Reader


class Arrivals:
    """Takes pieces from a reader in the order of their requests.

    Args:
        reader: of the files; entered.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._ahead: _Upload | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def request(self, piece: Piece) -> None:
        """Read this piece after those requested before."""
        self._reader.request(piece)

    @contextmanager
    def next(self, device: torch.device) -> Iterator[Arrived]:
        """The tensors of the next piece, as they are stored, on its device; they serve inside the context only."""
        if device.type == "cpu":
            with self._reader.next() as arrived:
                yield arrived
            return
        upload = self._ahead or self._upload(device)
        # What is ready by now travels while this piece is computed with.
        following = self._reader.next_is_ready()
        self._ahead = self._upload(following.device) if following and following.device.type != "cpu" else None
        yield upload.finished()

    def _upload(self, device: torch.device) -> _Upload:
        # One stream a device: the allocator keeps freed memory for the stream that it was made on.
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return _Upload(self._reader, device, self._streams[device])


class _Upload:
    """A piece on its way to a GPU, beside the stream that computes; its buffer is kept until it is there."""

    def __init__(self, reader: Reader, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device = device
        with ExitStack() as stack:
            arrived = stack.enter_context(reader.next())
            with torch.cuda.stream(stream):
                moved = {part: to_device(part, tensor, device) for part, tensor in arrived.items()}
                self._there = stream.record_event()
            # What stays on the CPU is still the buffer, which the reader will write over.
            self._tensors = {part: tensor if tensor.is_cuda else tensor.clone() for part, tensor in moved.items()}
            self._buffer = stack.pop_all()

    def finished(self) -> Arrived:
        """Wait for the copies and give the buffer back."""
        self._there.synchronize()
        self._buffer.close()
        for tensor in self._tensors.values():
            if tensor.is_cuda:
                tensor.record_stream(torch.cuda.current_stream(self._device))
        return self._tensors
