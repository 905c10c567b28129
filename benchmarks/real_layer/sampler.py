"""What threads are busy with, by looking at their stacks every few milliseconds; nothing of them is replaced."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import FrameType, TracebackType

_INTERVAL_S = 0.003
# The innermost frame that matches says what a thread does: (end of the file's name, start of the function's, what).
_COMPUTING = (
    ("threading.py", "wait", "wait for the reader"),
    ("queue.py", "get", "wait for the reader"),
    ("", "dequantize", "dequantize"),
    ("nn/attention.py", "", "attention"),
    ("nn/mlp.py", "", "multiply"),
)
_READING = (("threading.py", "wait", "wait for room"), ("queue.py", "put", "wait for room"))


class Sampler:
    """A context in which the calling thread and all others but its own are watched."""

    def __init__(self) -> None:
        self._main, self._done = threading.get_ident(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._computing: Counter[str] = Counter()
        self._reading: Counter[str] = Counter()

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def shares(self) -> dict[str, dict[str, float]]:
        """Of the looks at each thread, the share that found it at each kind of work."""
        return {
            name: {what: round(count / counts.total(), 3) for what, count in counts.most_common()}
            for name, counts in (("computing thread", self._computing), ("reading thread", self._reading))
            if counts
        }

    def _watch(self) -> None:
        while not self._done.wait(_INTERVAL_S):
            for thread, frame in sys._current_frames().items():
                if thread == self._main:
                    self._computing[_work(frame, _COMPUTING) or "everything else"] += 1
                elif thread != self._thread.ident:
                    self._reading[_work(frame, _READING) or "read"] += 1


def _work(frame: FrameType | None, known: tuple[tuple[str, str, str], ...]) -> str | None:
    while frame is not None:
        code = frame.f_code
        for file, function, what in known:
            if code.co_filename.endswith(file) and code.co_name.startswith(function):
                return what
        frame = frame.f_back
    return None
