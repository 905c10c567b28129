"""JSON files of an engine's responses, whose long lists of numbers are read only when they are asked for."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from eagle3ref.dumps.files import is_packed, refuse, unpacked

_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_NO_RESPONSES = ("server_info.json", "config.json")
_SNIFFED = 1 << 20  # bytes
# Numbers nested in brackets: skipped without parsing them, since a large model has 20,000 for each token.
_STATES = re.compile(rb'("hidden_states"\s*:\s*)(\[[\[\]\d\s.,eE+\-NaInfitynul]*\])')
_SPAN = "eagle3ref span"  # key of what stands in their place: where they begin, and their size


@dataclass(frozen=True)
class Response:
    """One response, without its hidden states.

    Args:
        file: where it stands.
        request: what was asked, if the line says so.
        fields: of the response, with a span in the file in the place of its hidden states; empty for one that is
            damaged.
        damage: what is wrong with its JSON; "" if nothing is.
    """

    file: Path
    request: dict[str, Any]
    fields: dict[str, Any]
    damage: str = ""

    @property
    def meta(self) -> dict[str, Any]:
        """``meta_info``; empty when there is none."""
        meta = self.fields.get("meta_info")
        return meta if isinstance(meta, dict) else {}

    def hidden_states(self) -> Any:
        """``meta_info["hidden_states"]`` from the file; None when there are none.

        Raises:
            Eagle3RefError: the file was changed since.
        """
        states = self.meta.get("hidden_states")
        if not isinstance(states, dict) or _SPAN not in states:
            return states
        start, size = states[_SPAN]
        try:
            with _opened(self.file) as file:
                file.seek(start)
                return _parsed(file.read(size))
        except (OSError, EOFError, ValueError, zlib.error):
            refuse(self.file, "other contents than before", "a file that nobody writes to meanwhile")


def speaks_of_states(file: Path) -> bool:
    """Whether a JSON file has hidden states in a ``meta_info`` near its beginning."""
    try:
        with _opened(file) as opened:
            head = opened.read(_SNIFFED)
    except (OSError, EOFError, zlib.error):
        return False
    return b'"meta_info"' in head and b'"hidden_states"' in head


def json_files(path: Path) -> list[Path]:
    """The file, or the JSON files right inside a folder by name."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [file for file in files if file.name.endswith(_SUFFIXES) and file.name not in _NO_RESPONSES]


def read_responses(file: Path) -> Iterator[Response]:
    """Every response of a file in its order: one object or a list of them, in the whole file or on each line.

    A line that is no JSON, as a killed recorder leaves one, gives a response with ``damage``.

    Raises:
        Eagle3RefError: the file cannot be read.
    """
    try:
        for _ in unpacked(file) if is_packed(file) else ():
            pass  # it is as large as it should be: a line may be all of it
        with _opened(file) as opened:
            start = 0
            for number, line in enumerate(_lines(opened), 1):
                if line.strip():
                    yield from _on_line(file, number, start, line)
                start += len(line)
    except (OSError, EOFError, zlib.error) as error:
        refuse(file, f"a file that cannot be read ({error})", "a complete file")


def _lines(opened: IO[bytes]) -> Iterable[bytes]:
    """The lines, if each holds a value; else the whole file as one, as people print JSON on many lines."""
    first = opened.readline()
    opened.seek(0)
    if _is_json(first):
        return opened
    whole = opened.read()
    lines = whole.splitlines(keepends=True)
    is_by_line = any(line.startswith(b"{") and _is_json(line) for line in lines)
    return lines if is_by_line and not _is_json(whole) else [whole]


def _on_line(file: Path, number: int, start: int, line: bytes) -> Iterator[Response]:
    try:
        bodies = _bodies(_without_states(line, start))
    except ValueError as error:
        yield Response(file, {}, {}, f"line {number} is no complete JSON ({error})")
        return
    for request, fields in bodies:
        damage = "" if fields else f"line {number} holds no object of a response"
        yield Response(file, request, fields, damage)


def _bodies(value: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Request and response of each; what is no object is empty."""
    request: Any = {}
    if isinstance(value, dict) and isinstance(value.get("response"), (dict, list)):
        request, value = value.get("request"), value["response"]
    responses = value if isinstance(value, list) else [value]
    requests = _each(request, len(responses))
    return [(asked, body if isinstance(body, dict) else {}) for asked, body in zip(requests, responses, strict=True)]


def _each(request: Any, number: int) -> list[dict[str, Any]]:
    """A request with several prompts, as that many requests."""
    asked = request if isinstance(request, dict) else {}
    ids = asked.get("input_ids")
    if isinstance(ids, list) and len(ids) == number and all(isinstance(part, list) for part in ids):
        return [{**asked, "input_ids": part} for part in ids]
    return [asked] * number


def _is_json(line: bytes) -> bool:
    try:
        _without_states(line)
    except ValueError:
        return False
    return True


def _without_states(text: bytes, start: int = 0) -> Any:
    """The value, with the span in the file in the place of hidden states; ``start`` is where the text begins."""

    def span(found: re.Match[bytes]) -> bytes:
        return found[1] + json.dumps({_SPAN: [start + found.start(2), len(found[2])]}).encode()

    try:
        return _parsed(_STATES.sub(span, text))
    except ValueError:
        return _parsed(text)  # something else than numbers stands among them, which is said when they are read


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _opened(file: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(file, "rb")) if is_packed(file) else file.open("rb")
