"""Tables of benchmarks and model cards: Markdown, and the boxes that terminals draw."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3ref.servers.formats.blocks import Statements
from eagle3ref.servers.formats.fields import NUMBER, first_value, integer, plain_name, rates, rounded
from eagle3ref.servers.formats.unwrap import MAX_RAW, Line
from eagle3ref.servers.reading import Average, Reading
from eagle3ref.servers.rounded import Rounded

_RULE = re.compile(r"^[\s|+:\-=┌┬┐├┼┤└┴┘─━│╞═╪╡]+$")
_LENGTHS = (
    *("accept len", "accept length", "acc length", "acceptance length", "mean acceptance length", "a.len", "al"),
    *("avg accept len", "mean al", "mean accept length", "τ", "tau"),
)
_RATES = ("accept rate", "acceptance rate", "draft acceptance rate", "rate")
_NAMES = ("task", "model", "benchmark", "dataset", "category", "draft", "config")
_SPEEDS = ("speed (token/s)", "tok/s", "output throughput (tok/s)", "throughput (tok/s)")
_POSITION = re.compile(r"^(?:pos(?:ition)?|depth)\s*(\d+)$")
_OF = re.compile(r"(\d[\d,]*)\s*/\s*(\d[\d,]*)")
_TOKENSPEED_MICRO = ("global weighted accept length", "global draft token acceptance rate")
_TOKENSPEED_MACRO = ("per request mean accept length", "per request mean acceptance rate")


class Table:
    """Collects the rows of one table; a few other lines may stand between them."""

    reach = 3

    def __init__(self) -> None:
        self.last_line = 0
        self._clear()

    def _clear(self) -> None:
        self._header: list[str] = []
        self._rows: list[tuple[Line, list[str]]] = []

    def feed(self, line: Line) -> Statements | None:
        """As ``BlockReader``."""
        text = line.text.strip().replace("│", "|").replace("┃", "|")
        if _RULE.match(text) and text:
            if not self.last_line and not text.startswith(("+", "┌", "┏")):
                return None
            self.last_line = line.number
            return []
        if not text.startswith("|") or text.count("|") < 2:
            return None
        cells = [cell.strip().strip("*` ") for cell in text.strip("|").split("|")]
        ended = self.finish() if self._rows and len(cells) != len(self._rows[-1][1]) else []
        if not self._header and not self._rows and not any(map(_is_figure, cells)):
            self._header = [plain_name(cell) for cell in cells]
        else:
            self._rows.append((line, cells))
        self.last_line = line.number
        return ended

    def finish(self) -> Statements:
        """As ``BlockReader``; a table without a column of acceptance says nothing."""
        header, rows = self._header, self._rows
        self._clear()
        self.last_line = 0
        if header and any(name in header for name in _LENGTHS):
            found = (_row(dict(zip(header, cells, strict=False)), line) for line, cells in rows)
            return [reading for reading in found if reading is not None]
        pairs = {plain_name(cells[0]): cells[1] for _, cells in rows if len(cells) == 2}
        return _tokenspeed(pairs, rows) if any(name in pairs for name in _TOKENSPEED_MICRO) else []


def _is_figure(cell: str) -> bool:
    return re.match(rf"^{NUMBER}\s*%?(?:\s|$)", cell) is not None


def _row(cells: dict[str, str], line: Line) -> Reading | None:
    length = rounded(_value(cells, _LENGTHS))
    if length is None:
        return None
    at_depth = {int(match[1]): value for name, value in cells.items() if (match := _POSITION.match(name))}
    positions = rates(tuple(first_value(at_depth[depth]) or "" for depth in sorted(at_depth)))
    positions = positions or rates(tuple(re.findall(rf"{NUMBER}%?", cells.get("pos accept", ""))))
    of = _OF.search(cells.get("accepted", ""))
    is_send_one, is_ik_llama = "acc length" in cells and "latency (s)" in cells and "tokens" in cells, "a.len" in cells
    used = {name for name in cells if _POSITION.match(name)} | {
        *_LENGTHS,
        *_RATES,
        *_SPEEDS,
        "pos accept",
        "accepted",
        "rounds",
        "tokens",
    }
    return Reading(
        **_origin(is_send_one, is_ik_llama, bool(positions)),
        source=next((cells[name] for name in _NAMES if name in cells), ""),
        line=line.number,
        raw=line.raw,
        accept_length=length,
        accept_rate=rounded(_value(cells, _RATES)),
        accept_rate_at=positions,
        accepted_drafts=None if of is None else integer(of[1]),
        proposed_drafts=None if of is None else integer(of[2]),
        rounds=integer(cells.get("rounds")),
        completion_tokens=integer(cells.get("tokens")),
        num_steps=len(positions) or None,
        gen_throughput=rounded(_value(cells, _SPEEDS)),
        other={name: _plain(value) for name, value in cells.items() if name and name not in used},
    )


def _origin(is_send_one: bool, is_ik_llama: bool, has_positions: bool) -> dict[str, Any]:
    if is_send_one:
        return {"tool": "SGLang", "format": "send_one table", "scope": "request", "length_kind": "completion_per_round"}
    if is_ik_llama:
        return {"tool": "ik_llama.cpp", "format": "llama-spec-bench table", "scope": "run"}
    return {"tool": "table", "format": "model card" if has_positions else "table", "scope": "reference"}


def _tokenspeed(pairs: Mapping[str, str], rows: Sequence[tuple[Line, list[str]]]) -> Statements:
    """tokenspeed prints both means: pooled over rounds, and over requests."""
    at: dict[str, Any] = {"tool": "tokenspeed", "format": "benchmark table", "scope": "run", "line": rows[0][0].number}
    at["raw"] = "\n".join(line.text for line, _ in rows)[:MAX_RAW]
    of = re.search(rf"{NUMBER}\s*/\s*(\d+)", pairs.get("accepted draft length", ""))
    steps = None if of is None else int(of[1])
    found: Statements = []
    means: tuple[tuple[Average, Sequence[str]], ...] = (("rounds", _TOKENSPEED_MICRO), ("requests", _TOKENSPEED_MACRO))
    for average, names in means:
        length, rate = (rounded(first_value(pairs.get(name, ""))) for name in names)
        if length is not None:
            found.append(Reading(**at, average=average, accept_length=length, accept_rate=rate, num_steps=steps))
    return found


def _value(cells: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((value for name in names if name in cells and (value := first_value(cells[name])) is not None), None)


def _plain(text: str) -> float | str:
    number: Rounded | None = rounded(text)
    return text if number is None else number.value
