"""What the layouts of training pipelines share: folders of one file a sequence, joined states, masks, usual layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from eagle3ref.config import TargetConfig
from eagle3ref.dumps.dump import DumpedSequence
from eagle3ref.dumps.files import refuse
from eagle3ref.engines import FEWEST_LAYERS, default_capture_points
from eagle3ref.errors import Eagle3RefError

_Loaded = TypeVar("_Loaded")
_USUAL = 3  # states
_SNIFFED_FILES = 8  # a folder is known by the first of these that can be read
_NO_SEQUENCES = ("d2t.pt", "vocab_mapping.pt", "token_freq.pt")  # what pipelines write beside them


class AnswerSpan(NamedTuple):
    """Where the answer lies in a sequence.

    Args:
        start: its first token; what stands before is the prompt. None when the mask does not tell.
        end: the token behind its last one.
    """

    start: int | None
    end: int


def answer_span(loss_mask: Tensor) -> AnswerSpan:
    """The last run of ones of a mask over T tokens: the last turn that the target answered.

    A trace has one prompt and one answer, so earlier turns are prompt, and what a template puts behind the last answer
    is no answer of the target. A mask that is 1 from the first token on tells nothing.
    """
    ones = (loss_mask != 0).nonzero().flatten()
    if len(ones) == 0:
        return AnswerSpan(None, len(loss_mask))
    end = int(ones[-1]) + 1
    zeros = (loss_mask[:end] == 0).nonzero().flatten()
    return AnswerSpan(int(zeros[-1]) + 1, end) if len(zeros) else AnswerSpan(None, end)


def split_states(joined: Tensor, width: int, path: Path, key: str) -> dict[str, Tensor]:
    """States that lie side by side, [T, A * C], as ``state_0`` … of [T, C] each (views).

    Raises:
        Eagle3RefError: the joined width is no multiple of C.
    """
    if joined.shape[1] == 0 or joined.shape[1] % width:
        expected = f"a multiple of {width}, the width of the final state"
        refuse(path, f"{key} {joined.shape[1]} wide", expected, "Check which model and which layers were dumped.")
    return {f"state_{i}": part for i, part in enumerate(joined.split(width, dim=1))}


def usual_points(
    num_states: int, target: TargetConfig | None, rule: str, later: int = 0
) -> tuple[tuple[int, ...] | None, str]:
    """The points (2, n // 2, n - 3) of a producer with that default, and the sentence that says why.

    Args:
        num_states: that lie in a sequence, the final one not counted.
        target: for the number of layers.
        rule: what the producer does when nobody says otherwise.
        later: how many layers behind those points this producer captures.
    """
    if num_states != _USUAL:
        return None, f"{num_states} states were dumped, not {_USUAL}, so somebody chose the layers"
    if target is None or target.num_layers < FEWEST_LAYERS:
        layers = "the target is not known" if target is None else f"the target has {target.num_layers} layers"
        return None, f"{rule}, but {layers}"
    points = tuple(point + later for point in default_capture_points(target.num_layers))
    return points, f"{rule}; the dump itself does not say"


def files_in(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The file itself, or the files of a folder and of folders in it, in natural order: 2 before 10."""
    if path.is_file():
        return [path] if path.name.endswith(suffixes) else []
    found = [file for file in path.rglob("*") if file.name.endswith(suffixes) and file.name not in _NO_SEQUENCES]
    return sorted(found, key=lambda file: _natural(file.relative_to(path).as_posix()))


def files_by_id(path: Path, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """The files of a dump in natural order, each by its path below the folder without its suffix.

    Raises:
        Eagle3RefError: two files of one id, or no file.
    """
    named: dict[str, Path] = {}
    for file in files_in(path, suffixes):
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        sequence_id = name.removesuffix(next(suffix for suffix in suffixes if name.endswith(suffix)))
        if sequence_id in named:
            found = f"{named[sequence_id].name} and {file.name}, which give one id"
            refuse(path, found, "one file for each sequence", "Remove the older of the two.")
        named[sequence_id] = file
    if not named:
        refuse(path, "no file of that format", f"files named *{', *'.join(suffixes)}", "Check the path.")
    return named


def first_readable(files: Iterable[Path], load: Callable[[Path], _Loaded]) -> _Loaded | None:
    """What the first file holds that can be read, of the first few; None if none can."""
    for file in islice(files, _SNIFFED_FILES):
        try:
            return load(file)
        except Eagle3RefError:
            continue
    return None


def first_sequence(path: Path, files: Iterable[Path], load: Callable[[Path], DumpedSequence]) -> DumpedSequence:
    """The first sequence of a dump that can be read: its layout stands for that of the others.

    Raises:
        Eagle3RefError: none can, and why not the first.
    """
    first: Eagle3RefError | None = None
    for file in files:
        try:
            return load(file)
        except Eagle3RefError as error:
            first = first or error
    assert first is not None  # a dump without files is refused before
    raise Eagle3RefError(
        f"reading {path}",
        found=f"no file that can be used; of the first, {first.found}",
        expected=first.expected,
        action=first.action,
    )


def same_lengths(path: Path, lengths: dict[str, int]) -> None:
    """Refuse a file whose tensors have different numbers of rows.

    Raises:
        Eagle3RefError: they differ.
    """
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{number} rows of {name}" for name, number in lengths.items())
        refuse(path, found, "one row of each for every token", "Rows are missing: dump that sequence again.")


def as_mask(value: Any, path: Path) -> Tensor:
    """A loss mask as int64 [T]; older pipelines have written it as a list.

    Raises:
        Eagle3RefError: something else.
    """
    try:
        mask = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        refuse(path, f"loss_mask is a {type(value).__name__}", "one number for each token")
    if mask.dim() == 2 and mask.shape[0] == 1:
        mask = mask[0]
    if mask.dim() != 1:
        refuse(path, f"loss_mask of shape {list(mask.shape)}", "one number for each token")
    return mask.to(torch.int64)


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdigit() and part.isascii() else (1, 0, part) for part in parts]
