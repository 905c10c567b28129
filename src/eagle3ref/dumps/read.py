"""Which format a dump has, and its reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

from eagle3ref.config import TargetConfig
from eagle3ref.dumps.dump import Dump
from eagle3ref.dumps.files import load_pt, load_safetensors
from eagle3ref.dumps.layout import files_in
from eagle3ref.dumps.meta_info import holds_meta_info, read_meta_info
from eagle3ref.dumps.modelopt import holds_modelopt, read_modelopt
from eagle3ref.dumps.named import holds_named, read_named
from eagle3ref.dumps.sglang import holds_sglang_dump, read_sglang_folder
from eagle3ref.dumps.specforge import holds_specforge, read_specforge
from eagle3ref.dumps.speculators import holds_speculators, read_speculators
from eagle3ref.dumps.speculators_pt import holds_speculators_pt, read_speculators_pt
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace import Prompt
from eagle3ref.trace.format import HEADER_FILE

_Read = Callable[[Path, TargetConfig | None, Mapping[str, Prompt] | None], Dump]


class DumpFormat(NamedTuple):
    """How one kind of dump is known and read.

    Args:
        files: what it looks like, for people.
        holds: whether a path is one; cheap, and never raises for a damaged file.
        read: opens it, given what is known of the target and of the prompts.
    """

    files: str
    holds: Callable[[Path], bool]
    read: _Read


def _no_prompts(read: Callable[[Path, TargetConfig | None], Dump]) -> _Read:
    """Of a format that holds its tokens: where the prompt ends, ``import_dump`` asks the prompts itself."""
    return lambda path, target, _prompts: read(path, target)


# In the order of asking: the first that holds is taken.
FORMATS = {
    "sglang-meta-info": DumpFormat("SGLang's answers, *.json or *.jsonl", holds_meta_info, read_meta_info),
    "sglang-server": DumpFormat("aux_0.pt … final.pt, or lists of them", holds_sglang_dump, read_sglang_folder),
    "specforge": DumpFormat("*.ckpt, *.ckpt.gz", holds_specforge, _no_prompts(read_specforge)),
    "modelopt": DumpFormat("*.pt with aux_hidden_states", holds_modelopt, _no_prompts(read_modelopt)),
    "speculators-pt": DumpFormat("data_*.pt of speculators", holds_speculators_pt, _no_prompts(read_speculators_pt)),
    "speculators": DumpFormat("hs_*.safetensors of vLLM", holds_speculators, _no_prompts(read_speculators)),
    "named": DumpFormat("*.pt or *.safetensors with token ids and any states", holds_named, _no_prompts(read_named)),
}
_KNOWN = "; ".join(f"{name} ({kind.files})" for name, kind in FORMATS.items())


def read_dump(
    path: str | Path,
    *,
    format: str | None = None,
    target: TargetConfig | str | Path | None = None,
    prompts: Mapping[str, Prompt] | None = None,
) -> Dump:
    """Open a dump of hidden states; sequences are read when they are asked for.

    Args:
        path: a file, or a folder of files.
        format: a key of ``FORMATS``; told from the files when None.
        target: the model, or its folder: its number of layers is needed to say which layers were dumped.
        prompts: by id, for formats that do not hold the prompt.

    Raises:
        Eagle3RefError: nothing there, a format that is not known, or files that belong to none.
    """
    place = Path(path)
    if not place.exists():
        _refuse(place, "nothing there", "a file or a folder", "Check the path.")
    if (place / HEADER_FILE).is_file():
        _refuse(place, "a trace", "a dump that is to become one", "Use it as it is: eagle3ref replay reads it.")
    if format is not None and format not in FORMATS:
        _refuse(place, f"the format {format!r}", f"one of {', '.join(FORMATS)}", "Correct --format.")
    config = TargetConfig.from_folder(target) if isinstance(target, str | Path) else target
    name = format or next((name for name, kind in FORMATS.items() if kind.holds(place)), None)
    if name is None:
        empty = place.is_dir() and not any(file.is_file() for file in place.rglob("*"))
        action = "Check the path; --format says what the files are when their names and keys do not."
        found = "a folder without files" if empty else f"no file of a known format{_first_damage(place)}"
        _refuse(place, found, _KNOWN, action)
    return FORMATS[name].read(place, config, prompts)


def _first_damage(place: Path) -> str:
    """What is wrong with the first file of tensors, if it cannot be read: its keys would have told the format."""
    for file in files_in(place, (".pt", ".safetensors"))[:1]:
        try:
            load_safetensors(file) if file.suffix == ".safetensors" else load_pt(file)
        except Eagle3RefError as error:
            return f"; {file.name} is {error.found}"
    return ""


def _refuse(path: Path, found: str, expected: str, action: str) -> NoReturn:
    raise Eagle3RefError(f"opening the dump {path}", found=found, expected=expected, action=action)
