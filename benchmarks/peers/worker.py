"""Another interpreter that scores on demand: a line in, JSON out."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import torch


class PeerError(RuntimeError):
    """A peer cannot be run; the text is the reason, as the results give it."""


class Worker:
    """A script of this folder in another interpreter or with other sources; a context manager, ended with it.

    Args:
        python: the interpreter.
        script: a file of this folder.
        arguments: of the script.
        environment: variables besides this process's own.
    """

    def __init__(self, python: Path | str, script: str, *arguments: object, environment: dict[str, str]) -> None:
        self._name = script
        self._process = subprocess.Popen(
            [python, Path(__file__).with_name(script), *map(str, arguments)],
            env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, line: str) -> dict[str, Any]:
        """The answer to a line.

        Raises:
            PeerError: the process has ended.
        """
        sent, answers = self._process.stdin, self._process.stdout
        assert sent is not None
        assert answers is not None
        try:
            sent.write(line + "\n")
            sent.flush()
        except BrokenPipeError as error:
            raise PeerError(f"{self._name} has ended; its last words are above") from error
        if not (text := answers.readline()):
            raise PeerError(f"{self._name} has ended; its last words are above")
        answer: dict[str, Any] = json.loads(text)
        return answer
