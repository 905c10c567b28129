"""Files of freely named states, as a hook of one's own writes them: ``{"input_ids": [T], "embed": [T, C], …}``.

One dictionary a sequence, with ``prompt_length`` if one likes, by ``torch.save`` or in safetensors. Every float matrix
in it is a state, under the name it has; what that name means only its owner knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle3ref.config import TargetConfig
from eagle3ref.dumps.dump import Dump, DumpedSequence
from eagle3ref.dumps.files import ids_of, load_pt, load_safetensors, refuse, tensor_of
from eagle3ref.dumps.layout import files_by_id, files_in, first_readable

_SUFFIXES = (".pt", ".safetensors")
_PROMPT_LENGTH = "prompt_length"
_TOKENS = ("input_ids", "token_ids", "tokens")


def holds_named(path: Path) -> bool:
    """Whether it is such a file, or a folder with one."""
    found = first_readable(files_in(path, _SUFFIXES), _load_fields)
    return isinstance(found, dict) and any(key in found for key in _TOKENS) and any(map(_is_state, found.values()))


def read_named(path: Path, _target: TargetConfig | None) -> Dump:
    """Open such a dump.

    Raises:
        Eagle3RefError: no file of that kind.
    """
    files = files_by_id(path, _SUFFIXES)
    return Dump(
        path=path,
        format="named",
        ids=tuple(files),
        load=lambda sequence_id: _load(files[sequence_id], sequence_id),
        capture_points=None,
        reason="the names of the states are their owner's own; `eagle3ref align` finds the layers that they come from",
    )


def _load(path: Path, sequence_id: str) -> DumpedSequence:
    fields = _load_fields(path)
    key = next((key for key in _TOKENS if isinstance(fields, dict) and key in fields), None)
    if key is None:
        refuse(path, "no token ids", f"a dictionary with one of {', '.join(_TOKENS)}")
    states = {str(name): tensor_of(fields, name, path, 2) for name, value in fields.items() if _is_state(value)}
    if not states:
        refuse(path, f"{key} and no state", "at least one float matrix [T, C]")
    return DumpedSequence(sequence_id, ids_of(fields, key, path), _prompt_length(fields, path), states)


def _prompt_length(fields: Mapping[str, Any], path: Path) -> int | None:
    """``prompt_length``, which safetensors can only hold as a tensor; None without it."""
    value = fields.get(_PROMPT_LENGTH)
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_floating_point():
        return int(value)
    if value is not None and not isinstance(value, int):
        refuse(path, f"{_PROMPT_LENGTH} is a {type(value).__name__}", "one integer")
    return value


def _load_fields(path: Path) -> Any:
    return load_pt(path) if path.suffix == ".pt" else load_safetensors(path)


def _is_state(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2
