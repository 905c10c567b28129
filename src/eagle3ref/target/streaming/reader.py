"""A thread that reads the pieces of a checkpoint ahead of those who compute with them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

import torch
from torch import Tensor

from eagle3ref.errors import Eagle3RefError
from eagle3ref.target.checkpoint import StoredTensor, as_tensor
from eagle3ref.target.streaming.files import CheckpointFiles, OpenFiles
from eagle3ref.target.streaming.pieces import Piece, aligned

Arrived = dict[StoredTensor, Tensor]  # each as it is stored, in a buffer of the reader


class Reader:
    """Pieces in the order in which they were requested, read ahead as far as the buffers reach.

    A context manager: the thread lives inside it. What goes wrong while reading is raised by ``next``.

    Args:
        files: that the pieces lie in.
        num_buffers: how many, at least 1; with 2, one is read while the other is used.
        buffer_bytes: of each; no piece is larger.
        pinned: page-locked, which copies to a GPU need to run beside it.
        on_read: called with the bytes of each piece, from the thread.
    """

    def __init__(
        self,
        files: CheckpointFiles,
        *,
        num_buffers: int,
        buffer_bytes: int,
        pinned: bool = False,
        on_read: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._files, self._on_read = files, on_read
        self._free = [torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(num_buffers)]
        self._requested: deque[Piece] = deque()
        self._ready: deque[tuple[Piece, Tensor, Arrived]] = deque()
        self._outstanding = 0  # requested and not yet taken
        self._error: Exception | None = None
        self._ended = self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="eagle3ref-reader", daemon=True)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()

    def request(self, piece: Piece) -> None:
        """Read this piece after those requested before."""
        with self._changed:
            self._requested.append(piece)
            self._outstanding += 1
            self._changed.notify_all()

    @contextmanager
    def next(self) -> Iterator[Arrived]:
        """The next piece's tensors, views of a buffer that the reader takes back when the context ends.

        Raises:
            Eagle3RefError: what the thread met while it read this piece.
        """
        with self._changed:
            if not self._outstanding:
                raise RuntimeError("no piece was requested")
            self._changed.wait_for(lambda: self._ready or self._ended)
            if not self._ready:
                raise self._error or RuntimeError("the reader thread has ended")
            _, buffer, arrived = self._ready.popleft()
            self._outstanding -= 1
        try:
            yield arrived
        finally:
            with self._changed:
                self._free.append(buffer)
                self._changed.notify_all()

    def next_is_ready(self) -> Piece | None:
        """The piece that ``next`` would give at once, if there is one."""
        with self._changed:
            return self._ready[0][0] if self._ready else None

    def _run(self) -> None:
        try:
            with self._files.open() as files:
                while (job := self._next_job()) is not None:
                    piece, buffer = job
                    arrived = self._read(files, piece, buffer)
                    with self._changed:
                        self._ready.append((piece, buffer, arrived))
                        self._changed.notify_all()
        except (Eagle3RefError, OSError, MemoryError) as error:  # raised again by ``next``
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _next_job(self) -> tuple[Piece, Tensor] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or (self._requested and self._free))
            return None if self._stopped else (self._requested.popleft(), self._free.pop())

    def _read(self, files: OpenFiles, piece: Piece, buffer: Tensor) -> Arrived:
        arrived, offset = Arrived(), 0
        for run in piece.runs():
            parts = []
            for tensor in run:
                parts.append(buffer[offset : offset + tensor.num_bytes])
                arrived[tensor] = as_tensor(tensor, parts[-1])
                offset += aligned(tensor.num_bytes)
            path, start = run[0].path, run[0].start
            files.read(path, start, [part.numpy().data for part in parts], lambda: self._stopped)
            files.forget(path, start, sum(tensor.num_bytes for tensor in run))
        for path in {tensor.path for tensor in arrived}:
            files.check(path)
        self._on_read(sum(tensor.num_bytes for tensor in arrived))
        return arrived
