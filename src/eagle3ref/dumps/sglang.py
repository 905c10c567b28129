"""What a patched SGLang server left: ``aux_0.pt`` … ``final.pt``, or lists of them, by request or by forward."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from eagle3ref.config import TargetConfig
from eagle3ref.dumps.dump import Dump, DumpedSequence
from eagle3ref.dumps.files import load_pt, refuse
from eagle3ref.dumps.sglang_layers import believed_layers
from eagle3ref.dumps.sglang_parts import Part, PartFiles, is_server_list, load_part, part_files
from eagle3ref.dumps.sglang_rows import place_rows
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace import Prompt

_FINAL = "final"
_SNIFFED = 4
_NOTES = (
    "the last tensor of a list is taken for the final state; before or behind the norm, the files do not say",
    "the last token of an answer was never run, and has no row",
)


def holds_sglang_dump(path: Path) -> bool:
    """Whether there are files named ``aux_<i>.pt``, or files that hold lists of states."""
    try:
        found = part_files(path)
    except Eagle3RefError:  # only files with such names clash
        return True
    if any({"aux_0", "aux"} & part.paths.keys() for part in found):
        return True
    for part in found[:_SNIFFED]:
        try:
            if "all" in part.paths and is_server_list(load_pt(part.paths["all"])):
                return True
        except Eagle3RefError:
            continue
    return False


def read_sglang_folder(path: Path, target: TargetConfig | None, prompts: Mapping[str, Prompt] | None) -> Dump:
    """Files of a debug patch: one folder or file for each request, or for each forward of it.

    Names that end in words for a forward (``prefill``, ``decode_3``, ``forward_0012``) are joined into one sequence:
    prefills first, then by number, unless ``positions`` say more. Files beside the states may hold ``input_ids`` and
    ``positions`` of the rows; tokens that are in none of them come from ``prompts``.

    Args:
        path: a folder, or one file.
        target: for its width, and for SGLang's rule of layers.
        prompts: by the sequence's id, or as many as there are sequences, in their order.

    Raises:
        Eagle3RefError: no such files, or none that can be read.
    """
    groups: dict[str, list[PartFiles]] = {}
    for part in part_files(path):
        groups.setdefault(part.sequence or path.stem, []).append(part)
    if not groups:
        refuse(path, "no .pt file", "aux_0.pt … final.pt, or lists of them", "Check the path.")
    given = dict(prompts or {})
    if given and len(given) == len(groups) and not all(name in given for name in groups):
        given = dict(zip(groups, given.values(), strict=True))

    def load(name: str) -> DumpedSequence:
        return _sequence(path, name, [load_part(files, target) for files in groups[name]], given.get(name))

    first = _first_readable(groups, target)
    believed = believed_layers(path if path.is_dir() else path.parent, len(first.states), target)
    num_forwards = sum(map(len, groups.values()))
    joined = f"{num_forwards} forwards were joined into {len(groups)} sequences by their names"
    notes = (*_NOTES, joined) if num_forwards > len(groups) else _NOTES
    return Dump(path, "sglang-server", tuple(groups), load, *believed[:2], notes, believed.engine)


def _first_readable(groups: dict[str, list[PartFiles]], target: TargetConfig | None) -> Part:
    """The first forward of the first sequence that can be read; the error of the very first if none can."""
    error: Eagle3RefError | None = None
    for files in groups.values():
        try:
            return load_part(files[0], target)
        except Eagle3RefError as found:
            error = error or found
    assert error is not None  # there is a group
    raise error


def _sequence(path: Path, name: str, parts: list[Part], prompt: Prompt | None) -> DumpedSequence:
    doing = f"reading the sequence {name!r} of {path}"
    _check_alike(parts, doing)
    placed = place_rows(parts, prompt, doing)

    kept = [_kept(part, number) for part, number in zip(placed.parts, placed.kept, strict=True)]
    joined = {label: torch.cat([rows[label] for rows in kept]) for label in kept[0]}
    _check_repeated(joined, placed.first_row, doing)
    final = joined.pop(_FINAL, None)
    return DumpedSequence(name, placed.tokens, placed.prompt_length, joined, placed.first_row, final)


def _check_repeated(joined: dict[str, Tensor], first_row: int, doing: str) -> None:
    """Two rows that are equal in every state are one row that was written twice, as by prefill and decoding both.

    Of a single state that would prove nothing: embeddings of equal tokens are equal.
    """
    equal = torch.stack([(rows[1:] == rows[:-1]).all(dim=1) for rows in joined.values()]).all(dim=0)
    if len(joined) > 1 and equal.any():
        at = first_row + int(equal.nonzero()[0])
        raise Eagle3RefError(
            doing,
            found=f"the same row at positions {at} and {at + 1}",
            expected="another one for each token",
            action="Drop the row that the second part repeats from the first, or the padding.",
        )


def _kept(part: Part, number: int) -> dict[str, Tensor]:
    return {label: rows[:number] for label, rows in _all_states(part).items()}


def _all_states(part: Part) -> dict[str, Tensor]:
    """The final one among them."""
    return part.states if part.final is None else {**part.states, _FINAL: part.final}


def _check_alike(parts: list[Part], doing: str) -> None:
    """Every forward has the states of the first one, as wide and in the same dtype."""
    kinds = [{label: (rows.shape[1], rows.dtype) for label, rows in _all_states(part).items()} for part in parts]
    odd = next((i for i, kind in enumerate(kinds) if kind != kinds[0]), None)
    if odd is not None:
        raise Eagle3RefError(
            doing,
            found=f"{_told(kinds[odd])} in {parts[odd].name}",
            expected=f"{_told(kinds[0])}, as in {parts[0].name}",
            action="Leave out a draft's forwards, which end in a head as well, and those of other servers.",
        )


def _told(kind: dict[str, tuple[int, torch.dtype]]) -> str:
    return ", ".join(f"{label} {width} wide in {str(dtype)[6:]}" for label, (width, dtype) in kind.items())
