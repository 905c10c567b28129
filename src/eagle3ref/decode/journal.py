"""The rounds of a decode on disk, so that a killed one goes on behind the last round that it finished."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle3ref.config import TreeConfig
from eagle3ref.decode.chooser import Chooser
from eagle3ref.decode.trajectory import Trajectory
from eagle3ref.durable import replace_file, write_line
from eagle3ref.errors import Eagle3RefError
from eagle3ref.target import Target
from eagle3ref.target.base import dtype_of

_VERSION = 1


def journal_header(
    target: Target, prompts: Sequence[Tensor], chooser: Chooser, tree: TreeConfig | None, streams: Sequence[int]
) -> dict[str, Any]:
    """What the answers depend on, in JSON.

    Greedy answers are the target's own whatever the draft, so that no draft is named. Sampled ones name rule and tree:
    a round's random numbers lie in blocks of their size, and no number may be used twice.
    """
    sampling = chooser.sampling
    header: dict[str, Any] = {
        "schema_version": _VERSION,
        "target": {
            "config_sha256": target.config.config_sha256,
            "num_layers": target.config.num_layers,
            "hidden_size": target.config.hidden_size,
            "vocab_size": target.config.vocab_size,
            "dtype": str(dtype_of(target)).removeprefix("torch."),
        },
        "prompts": {"count": len(prompts), "sha256": _digest(prompts)},
        "rule": chooser.rule.name,
    }
    if chooser.rule.name != "greedy":
        header["rule"] = vars(chooser.rule)
        header["sampling"] = vars(sampling)
        header["streams"] = [int(stream) for stream in streams]
        header["tree"] = None if tree is None else str(tree)
    return header


def _digest(prompts: Sequence[Tensor]) -> str:
    return hashlib.sha256(json.dumps([prompt.tolist() for prompt in prompts]).encode()).hexdigest()


class Journal:
    """A file of JSON lines: a header, then of every round the new tokens of each prompt that was open in it.

    A line is on disk before the next round begins. What a kill leaves of a last line is written over.

    Args:
        path: of the file; made when it is missing.
        header: as of ``journal_header``.

    Raises:
        Eagle3RefError: the file is a journal of something else or no journal, it is damaged, or the operating system
            refuses. Nothing is deleted then.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self._path = path
        first = _line(header)
        with _told(path):
            data = path.read_bytes() if path.exists() else b""
            if first.startswith(data) and data != first:  # nothing there, or a header cut short
                replace_file(path, first)
                data = first
        whole = data[: data.rfind(b"\n") + 1]
        found, *self._lines = whole.splitlines() or [data]
        self._check_header(_parsed(found), json.loads(first))
        self._size = len(whole)
        self.num_lines = len(self._lines)

    def tell(self, trajectories: Sequence[Trajectory], vocab_size: int) -> None:
        """Commit the rounds of the file, those of the first tokens included.

        Raises:
            Eagle3RefError: a line that no journal of these prompts has.
        """
        for number, line in enumerate(self._lines):
            tokens = _tokens(_parsed(line), number, len(trajectories), vocab_size)
            if tokens is None:
                raise self._refusal(
                    f"line {number + 2}, which is damaged",
                    "rounds in order, each with the new tokens of some of the prompts",
                    f"Cut the file off before that line to go on from there, or delete {self._path}.",
                )
            for place, new in tokens.items():
                trajectories[place].commit(new)
        self._lines = []

    def add(self, new_tokens: Mapping[int, list[int]]) -> None:
        """Write down a round: of each open prompt, by its place, the new tokens.

        Raises:
            Eagle3RefError: the operating system refuses, say for a full disk. The rounds before are kept.
        """
        tokens = {str(place): new for place, new in new_tokens.items()}
        with _told(self._path):
            self._size = write_line(self._path, self._size, _line({"round": self.num_lines, "tokens": tokens}))
        self.num_lines += 1

    def _check_header(self, found: Any, expected: dict[str, Any]) -> None:
        if not isinstance(found, dict) or found.get("schema_version") != _VERSION:
            raise self._refusal("something else", "a journal of answers", "Give another path; nothing was touched.")
        changed = [name for name in expected | found if found.get(name) != expected.get(name)]
        if changed:
            raise self._refusal(
                f"a journal of answers with another {', '.join(changed)}",
                "the prompts and settings with which it was begun",
                f"Give those, and it goes on where it was. To give its rounds up, delete {self._path}.",
            )

    def _refusal(self, found: str, expected: str, action: str) -> Eagle3RefError:
        return Eagle3RefError(f"going on with {self._path}", found=found, expected=expected, action=action)


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _tokens(record: Any, number: int, num_prompts: int, vocab_size: int) -> dict[int, list[int]] | None:
    """place -> new tokens; None if that is not round ``number`` of so many prompts."""
    if not isinstance(record, dict) or record.get("round") != number or not isinstance(record.get("tokens"), dict):
        return None
    tokens: dict[int, list[int]] = {}
    for place, new in record["tokens"].items():
        if not (place.isdecimal() and int(place) < num_prompts and isinstance(new, list) and new):
            return None
        if not all(type(token) is int and 0 <= token < vocab_size for token in new):
            return None
        tokens[int(place)] = new
    return tokens


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the operating system refuses becomes an ``Eagle3RefError``."""
    try:
        yield
    except OSError as error:
        raise Eagle3RefError(
            f"writing answers down in {path}",
            found=error.strerror or str(error),
            expected="a file that can be read and written, on a disk with room",
            action="Mend that. The same call goes on behind the last round that is complete.",
        ) from error
