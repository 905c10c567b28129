"""The files of a patched server, and what one forward of it, or one request, left in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eagle3ref.config import TargetConfig
from eagle3ref.dumps.files import load_pt, refuse
from eagle3ref.dumps.sglang_layers import split_packed

_SUFFIXES = (".pt", ".pth")
_WHOLE = "all"  # one file with everything
_EITHER = "hidden_state"  # captured ones side by side, or the final one
# What a tensor of one file is called, with what else the name says around it.
_NAMED = re.compile(
    r"^(?P<before>.*?)(?P<label>aux[_-]?(?:hidden_states?_)?(?P<number>\d+)|aux(?:_hidden_states?)?"
    r"|final(?:_hidden_states?)?|hidden_states?|input_ids|token_ids|tokens|positions)(?P<after>(?:[_.-].*)?)$",
    re.IGNORECASE,
)
_LISTS = ("aux_hidden_states", "aux_hidden_state", "aux")
_FINALS = ("final", "final_hidden_states", "final_hidden_state", "last_hidden_states", "hidden_states")
_IDS = ("input_ids", "token_ids", "tokens")
# A forward, by the last words of a name: prefill, decode_3, forward_0012, …
_FORWARD = re.compile(
    r"(?:^|[/_.-])(?P<kind>prefill|extend|chunk|decode|verify|forward|fwd|call|step|iter|part)s?(?:[/_.-]?\d+)*$",
    re.IGNORECASE,
)
_EARLY, _LATE = {"prefill", "extend", "chunk"}, {"decode", "verify"}


class PartFiles(NamedTuple):
    """The files of one forward, or of one request.

    Args:
        name: below the dump's folder.
        paths: by label: ``aux_<i>``, ``aux``, ``final``, ``hidden_state``, ``ids``, ``positions``, or ``all``.
    """

    name: str
    paths: dict[str, Path]

    @property
    def sequence(self) -> str:
        """The name without the words for a forward: of the request; "" if nothing is left."""
        name = self.name
        while found := _FORWARD.search(name):
            name = name[: found.start()].rstrip("/_.-")
        return name

    @property
    def is_prefill(self) -> bool:
        """Whether the name says so."""
        found = _FORWARD.search(self.name)
        return found is not None and found["kind"].lower() in _EARLY

    @property
    def order(self) -> tuple[int, list[tuple[int, int | str]]]:
        """Prefills before decoding, then by number: 9 before 10."""
        found = _FORWARD.search(self.name)
        is_late = found is not None and found["kind"].lower() in _LATE
        pieces = re.split(r"(\d+)", self.name)
        return int(is_late), [(0, int(piece)) if piece.isdigit() else (1, piece) for piece in pieces]


class Part(NamedTuple):
    """What was in them, R rows.

    Args:
        name: as above.
        states: label -> [R, C].
        final: [R, C], what went into the head.
        ids, positions: int64 [R] each, of the tokens that went in.
        is_prefill: whether the name says so.
    """

    name: str
    states: dict[str, Tensor]
    final: Tensor | None
    ids: Tensor | None
    positions: Tensor | None
    is_prefill: bool

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.states.values()))) if self.final is None else len(self.final)


def part_files(path: Path) -> list[PartFiles]:
    """The files below a folder, or one file, by forward and in the order of their names.

    Beside files of states, whatever else was saved there (logits, masks) is left alone.

    Raises:
        Eagle3RefError: two files for one tensor.
    """
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.name.endswith(_SUFFIXES)]
    found: dict[str, dict[str, Path]] = {}
    for file in files:
        named = _NAMED.match(file.stem)
        folder = "" if path.is_file() else file.parent.relative_to(path).as_posix().removeprefix(".")
        label, stem = (_WHOLE, file.stem) if named is None else (_label(named), named["before"] + named["after"])
        name = "/".join(piece for piece in (folder, stem.strip("_.-")) if piece)
        held = found.setdefault(name, {})
        if label in held:
            refuse(file, f"{label} for the second time beside {held[label].name}", "one file for each tensor")
        held[label] = file
    has_named = any(_WHOLE not in held for held in found.values())
    parts = [PartFiles(*item) for item in found.items() if not (has_named and _WHOLE in item[1])]
    return sorted(parts, key=lambda part: part.order)


def load_part(files: PartFiles, target: TargetConfig | None) -> Part:
    """Read one forward.

    Raises:
        Eagle3RefError: a damaged file, one that is missing, shapes that are no rows, or numbers of rows that differ.
    """
    at = next(iter(files.paths.values()))
    if _WHOLE in files.paths:
        states, final, rest = _unpacked(load_pt(at), at)
    else:
        loaded = {label: load_pt(path) for label, path in files.paths.items()}
        if _EITHER in loaded:
            loaded["final" if any(label.startswith("aux") for label in loaded) else "aux"] = loaded.pop(_EITHER)
        states, final, rest = _unpacked(loaded, at)
    named = {label: _rows(value, at, label) for label, value in states.items()}
    last = None if final is None else _rows(final, at, "final")
    if list(named) == ["aux"]:
        named, alone = split_packed(named["aux"], target, f"reading {at}")
        last = alone if last is None else last
    ids, positions = (_row_numbers(rest.get(label), at, label) for label in ("ids", "positions"))
    part = Part(files.name, named, last, ids, positions, files.is_prefill)
    if not named and last is None:
        refuse(at, "no states", "aux_0, aux_1, … and final")
    lengths = {**named, "final": last, "input_ids": ids, "positions": positions}
    odd = {name: len(rows) for name, rows in lengths.items() if rows is not None and len(rows) != part.num_rows}
    if odd:
        name, length = next(iter(odd.items()))
        refuse(at, f"{length} rows of {name}, and {part.num_rows} of the others", "one for each token that went in")
    return part


def is_server_list(value: Any) -> bool:
    """Whether a file holds states as such patches write them, and not as a training pipeline does."""
    if isinstance(value, (list, tuple)):
        return len(value) > 1 and all(isinstance(item, (Tensor, list, tuple)) for item in value)
    if not isinstance(value, dict) or {"loss_mask", "conversation_id"} & value.keys():
        return False
    return "positions" in value or any(isinstance(key, str) and re.fullmatch(r"aux_\d+", key) for key in value)


def _label(named: re.Match[str]) -> str:
    label = named["label"].lower()
    if named["number"] is not None:
        return f"aux_{int(named['number'])}"
    return next((short for short in ("aux", "final", _EITHER, "positions") if label.startswith(short)), "ids")


def _unpacked(value: Any, path: Path) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Captured states, the final one, and what else is told, out of a dictionary or a list."""
    if isinstance(value, (list, tuple)):
        items = list(value)
        if len(items) == 2 and isinstance(items[0], (list, tuple)):
            items = [*items[0], items[1]]
        if len(items) < 2:
            refuse(path, f"a list of {len(items)}", "[aux_0, …, final]")
        captured, last = items[:-1], items[-1]
        names = ["aux"] if _is_packed(captured, last) else [f"aux_{i}" for i in range(len(captured))]
        return dict(zip(names, captured, strict=True)), last, {}
    if not isinstance(value, dict):
        refuse(path, f"a {type(value).__name__}", "[aux_0, …, final], or a dictionary of them")
    numbered = sorted(int(key[4:]) for key in value if isinstance(key, str) and re.fullmatch(r"aux_\d+", key))
    missing = sorted(set(range(len(numbered))) - set(numbered))
    if missing:
        refuse(path, f"aux_{numbered[-1]} and no aux_{missing[0]}", "every one of them")
    states = {f"aux_{i}": value[f"aux_{i}"] for i in numbered}
    joined = next((value[key] for key in _LISTS if key in value), None)
    if not states and isinstance(joined, (list, tuple)):
        states = {f"aux_{i}": item for i, item in enumerate(joined)}
    elif not states and joined is not None:
        states = {"aux": joined}
    final = next((value[key] for key in _FINALS if value.get(key) is not None), None)
    ids = next((value[key] for key in ("ids", *_IDS) if key in value), None)
    return states, final, {"ids": ids, "positions": value.get("positions")}


def _is_packed(captured: list[Any], last: Any) -> bool:
    """Whether all captured states lie side by side in one tensor."""
    tensors = isinstance(last, Tensor) and len(captured) == 1 and isinstance(captured[0], Tensor)
    return tensors and captured[0].shape[-1] != last.shape[-1]


def _rows(value: Any, path: Path, name: str) -> Tensor:
    """[R, C] of [R, C], [1, R, C], or [C]."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or not value.is_floating_point():
        found = f"{name} in {value.dtype}" if isinstance(value, Tensor) else f"{name} of type {type(value).__name__}"
        refuse(path, found, "a dense tensor of floats")
    rows = value.detach()
    while rows.dim() > 2 and rows.shape[0] == 1:
        rows = rows[0]
    rows = rows[None] if rows.dim() == 1 else rows
    if rows.dim() != 2 or 0 in rows.shape:
        refuse(path, f"{name} of shape {list(value.shape)}", "[rows, hidden_size]")
    return rows


def _row_numbers(value: Any, path: Path, name: str) -> Tensor | None:
    if value is None:
        return None
    numbers = torch.as_tensor(value) if isinstance(value, (Tensor, list)) else torch.empty(0)
    if numbers.is_floating_point() or numbers.is_complex():
        refuse(path, f"{name} that are no integers", "one integer for each row")
    return numbers.reshape(-1).to(torch.int64)
